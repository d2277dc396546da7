"""A street that is drawn, not photographed: pictures with exact labels, depth and a right eye.

    scene = street(seed=3)                      # a world, its traffic, a light, all from the seed
    view = render(scene, Camera())              # image (BGR), labels, depth, anomaly
    left, right = stereo(scene, Camera.kitti()) # the same world from both eyes
    for frame in drive(3, frames=100, fps=10, anomaly_at=5.0): ...

numpy and OpenCV only. The same seed gives the same bytes.
"""

from penumbra.offline.scenes.anomalies import KINDS as ANOMALIES
from penumbra.offline.scenes.camera import Camera, Pose, View
from penumbra.offline.scenes.driving import RenderedFrame, drive, journey
from penumbra.offline.scenes.layout import street
from penumbra.offline.scenes.picture import render, stereo
from penumbra.offline.scenes.scene import Scene

__all__ = [
    "ANOMALIES",
    "Camera",
    "Pose",
    "RenderedFrame",
    "Scene",
    "View",
    "drive",
    "journey",
    "render",
    "stereo",
    "street",
]

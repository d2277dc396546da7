"""Rendered streets: images with exact labels and depth, mono or stereo.

    scene = street(seed=3)                      # world, traffic and light, all from the seed
    view = render(scene, Camera())              # image (BGR), labels, depth, anomaly
    left, right = stereo(scene, Camera.kitti()) # the same scene from both cameras of the rig
    for frame in drive(3, frames=100, fps=10, anomaly_at=5.0): ...

Uses NumPy and OpenCV only. The same seed gives the same bytes.
"""

from penumbra.offline.scenes.anomalies import KINDS as ANOMALIES
from penumbra.offline.scenes.camera import Camera, Pose, View
from penumbra.offline.scenes.driving import RenderedFrame, drive, journey
from penumbra.offline.scenes.rendering import render, stereo
from penumbra.offline.scenes.scene import Scene
from penumbra.offline.scenes.street_layout import street

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

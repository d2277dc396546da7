"""Rendering of a scene: one camera, or both cameras of a rectified stereo rig."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from penumbra.offline.datasets.camvid_classes import SKY
from penumbra.offline.scenes.camera import Camera, View
from penumbra.offline.scenes.ray_casting import Hits, cast
from penumbra.offline.scenes.scene import Scene
from penumbra.offline.scenes.shading import Shader, Viewpoint

CONTRAST = 1.22
"""Contrast of the tone curve about a middle grey of 120, chosen for the spread of grey levels of
CamVid and KITTI."""


def render(scene: Scene, camera: Camera | None = None, *, right: bool = False) -> View:
    """The view of the left (or right) camera from the scene's own vehicle."""
    camera = camera or Camera()
    mesh = scene.mesh
    rotation = camera.rotation(scene.pose.yaw)
    eye = np.array([scene.pose.x, camera.height_m, scene.pose.z])
    if right:
        eye = eye + rotation[:, 0] * camera.baseline
    hits = cast(mesh, eye, rotation, camera)
    shader = Shader(mesh, scene.world.light, scene.shadows, scene.world.stripes)
    fine, scale = hits, camera.supersample
    if scale > 1:
        fine = cast(mesh, eye, rotation, camera, scale)
    colours = shader.shade(fine, Viewpoint.of(eye, rotation, camera, scale))
    if scale > 1:
        size = (camera.width, camera.height)
        colours = cv2.resize(colours, size, interpolation=cv2.INTER_AREA)
    image = _develop(colours, scene, camera, right)
    return View(image, *_truth(scene, hits))


def stereo(scene: Scene, camera: Camera | None = None) -> tuple[View, View]:
    """The views of both cameras (left, right).

    Column u at depth z of the left image is column u - f b / z of the right one, unless occluded.
    """
    return render(scene, camera), render(scene, camera, right=True)


def _truth(scene: Scene, hits: Hits) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mesh = scene.mesh
    labels = np.concatenate([mesh.quads["label"], mesh.rounds["label"], [SKY]]).astype(np.uint8)
    anomaly = np.concatenate([mesh.quads["anomaly"], mesh.rounds["anomaly"], [False]])
    sky = hits.surface == len(labels) - 1
    depth = np.where(sky, np.float32(np.inf), 1 / hits.inverse_depth)
    return labels[hits.surface], depth, anomaly[hits.surface]


def _develop(colours: np.ndarray, scene: Scene, camera: Camera, right: bool) -> np.ndarray:
    """Lens, exposure and sensor: slight blur and vignette, contrast, noise, eight bits."""
    colours = cv2.GaussianBlur(colours, (3, 3), 0.45)
    gain = np.float32(scene.world.light.exposure * CONTRAST)
    colours *= gain * _vignette(camera.width, camera.height)
    colours -= np.float32((CONTRAST - 1) * 120)
    if camera.noise:
        # a part of a fixed strip of noise, chosen by seed, camera and time: reproducible and cheap
        key = [scene.world.seed, int(right), round(scene.time * 1e6)]
        strip, needed = _noise(), colours.size
        start = int(np.random.default_rng(key).integers(len(strip)))
        noise = (
            np.resize(strip[start:], needed)
            if start + needed > len(strip)
            else strip[start : start + needed]
        )
        colours += np.float32(camera.noise) * noise.reshape(colours.shape)
    return cv2.convertScaleAbs(np.maximum(colours, 0, out=colours))


@lru_cache(maxsize=1)
def _noise() -> np.ndarray:
    return np.random.default_rng(5).standard_normal(4_000_037, dtype=np.float32)


@lru_cache(maxsize=4)
def _vignette(width: int, height: int) -> np.ndarray:
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    return cv2.merge([1.02 - 0.07 * (x * x + y * y)] * 3)

"""Evaluation of a depth network against measured or matched depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.bundle import DepthSpec
from penumbra.errors import PenumbraError
from penumbra.offline.datasets.kitti import KittiRecording, read_depth
from penumbra.offline.datasets.rgb_images import read_rgb_image
from penumbra.offline.datasets.stereo_matching import match_both, median_depth
from penumbra.offline.metrics.coverage import Coverage
from penumbra.offline.metrics.depth import DepthErrors, judged_pixels
from penumbra.offline.models.network import Network, normalised_for
from penumbra.propagation import ExactMoments, Moments, monte_carlo, propagate
from penumbra.vehicle.geometry import PinholeCamera, depth_of

DepthPredictor = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]]
"""From an RGB image (uint8, H x W x 3) to the disparity and its standard deviation (None: unknown),
both in fractions of the image width (H x W)."""


def depth_predictor(
    model: Network,
    method: str = "deterministic",
    samples: int = 50,
    seed: int = 0,
    walk: nn.Module | None = None,
) -> DepthPredictor:
    """Disparity by the `method` deterministic, monte-carlo or propagated.

    `walk` is the propagated model (None: `propagate` with the default rules).
    """
    size = model.input_size
    if size is None:
        raise PenumbraError("the network has no input size: it is not a depth network")
    run = _moments_by(model, method, samples, seed, walk)

    @torch.inference_mode()
    def predict(image: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        # As in the exported graph: plain bilinear, before and after.
        x = normalised_for(model, torch.from_numpy(image)[None])
        moments = run(F.interpolate(x, size, mode="bilinear", align_corners=False))
        mean = _at_size_of(image, moments.mean)
        is_exact = isinstance(moments, ExactMoments)
        return mean, None if is_exact else _at_size_of(image, moments.std)

    return predict


def _moments_by(
    model: Network, method: str, samples: int, seed: int, walk: nn.Module | None
) -> Callable[[Tensor], Moments]:
    if method == "propagated":
        return walk or propagate(model)
    if method == "monte-carlo":
        return lambda x: monte_carlo(model, x, samples=samples, seed=seed)
    return lambda x: ExactMoments(model(x))


def _at_size_of(image: np.ndarray, values: Tensor) -> np.ndarray:
    height, width = image.shape[:2]
    scaled = F.interpolate(values.float(), (height, width), mode="bilinear", align_corners=False)
    return scaled[0, 0].cpu().numpy()


def median_predictor(pairs: Iterable[KittiRecording], scale: DepthSpec) -> DepthPredictor:
    """A baseline without a network: for every image the median matched disparity of `pairs`."""
    camera = PinholeCamera(scale.focal_per_width, 1)
    depth = median_depth(pairs, camera, scale.baseline_m, scale.max_depth_m)
    disparity = np.float32(scale.focal_per_width * scale.baseline_m) / depth

    def predict(image: np.ndarray) -> tuple[np.ndarray, None]:
        return cv2.resize(disparity, image.shape[1::-1], interpolation=cv2.INTER_NEAREST), None

    return predict


def depth_errors_of(
    predict: DepthPredictor,
    recordings: list[KittiRecording],
    scale: DepthSpec,
    progress: Callable[[Iterable[KittiRecording]], Iterable[KittiRecording]] = iter,
    coverage: Coverage | None = None,
) -> DepthErrors:
    """Predict every image and compare with its measured depth, or with its matched depth if none.

    `coverage`, if given, collects the errors of the disparity at the same pixels; `predict` must
    return standard deviations then.
    """
    errors = DepthErrors()
    for recording in progress(recordings):
        image = read_rgb_image(recording.left)
        camera = recording.calibration.camera if recording.calibration else None
        disparity, std = predict(image)
        depth, _, _ = depth_of(disparity, np.float32(0), scale, camera)
        truth = true_depth(recording, image, scale, camera)
        errors.add(truth, depth)
        if coverage is not None:
            if std is None:
                raise PenumbraError("coverage needs standard deviations: use another method")
            judged = judged_pixels(truth)
            product = (camera or scale).focal_per_width * scale.baseline_m
            coverage.add(disparity[judged] - product / truth[judged], std[judged])
    return errors


def true_depth(
    recording: KittiRecording, image: np.ndarray, scale: DepthSpec, camera: PinholeCamera | None
) -> np.ndarray:
    """Measured depth in metres, or matched depth if none was measured; 0 where unknown."""
    if recording.depth is not None:
        return read_depth(recording.depth)
    _, right = recording.stereo_pair()
    disparity, _ = match_both(image, read_rgb_image(right))
    depth, _, _ = depth_of(disparity, np.float32(0), scale, camera)
    return np.where(disparity > 0, depth, np.float32(0))

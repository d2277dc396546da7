"""Judging a depth network: what it predicts, and how far that is from what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.bundle import DepthSpec
from penumbra.offline.datasets.camvid import read_image
from penumbra.offline.datasets.kitti import KittiRecording, read_depth
from penumbra.offline.metrics.coverage import Coverage
from penumbra.offline.metrics.depth import DepthErrors, judged_pixels
from penumbra.offline.training.segmentation import normalised_for
from penumbra.offline.training.stereo_matching import match_both, median_depth
from penumbra.propagation import ExactMoments, Moments, propagate
from penumbra.propagation.montecarlo import monte_carlo
from penumbra.vehicle.geometry import PinholeCamera, depth_of

# From a uint8 RGB image (H x W x 3) to its disparity and the standard deviation of that (None: not
# known), both in fractions of the width (H x W).
Predictor = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]]


def predictor(
    model: nn.Module,
    method: str = "deterministic",
    samples: int = 50,
    seed: int = 0,
    walk: nn.Module | None = None,
) -> Predictor:
    """Disparity by one plain pass, by sampling, or by one propagated pass (`walk`, if given)."""
    if method == "propagated":
        run = walk or propagate(model)
    elif method == "monte-carlo":
        run = partial(monte_carlo, model, samples=samples, seed=seed)
    else:

        def run(x: Tensor) -> Moments:
            return ExactMoments(model(x))

    size = tuple(model.config["size"])

    @torch.inference_mode()
    def predict(image: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        # As in the exported graph: plain bilinear, before and after.
        x = normalised_for(model, torch.from_numpy(image)[None])
        x = F.interpolate(x, size, mode="bilinear", align_corners=False)
        moments = run(x)

        def full(values: Tensor) -> np.ndarray:
            scaled = F.interpolate(
                values.float(), image.shape[:2], mode="bilinear", align_corners=False
            )
            return scaled[0, 0].cpu().numpy()

        return full(moments.mean), None if isinstance(moments, ExactMoments) else full(moments.std)

    return predict


def median_predictor(pairs: Iterable[KittiRecording], scale: DepthSpec) -> Predictor:
    """The same for every image: the median of what matching finds in `pairs`, as disparity."""
    camera = PinholeCamera(scale.focal_per_width, 1)
    depth = median_depth(pairs, camera, scale.baseline_m, scale.max_depth_m)
    disparity = np.float32(scale.focal_per_width * scale.baseline_m) / depth

    def predict(image: np.ndarray) -> tuple[np.ndarray, None]:
        return cv2.resize(disparity, image.shape[1::-1], interpolation=cv2.INTER_NEAREST), None

    return predict


def errors_of(
    predict: Predictor,
    recordings: list[KittiRecording],
    scale: DepthSpec,
    progress: Callable = iter,
    coverage: Coverage | None = None,
) -> DepthErrors:
    """Predict every image and compare with its measured (else its matched) depth.

    `coverage`, if given, is told of the disparity's errors at the same pixels: `predict` knows a
    standard deviation then.
    """
    errors = DepthErrors()
    for recording in progress(recordings):
        image = read_image(recording.left)
        camera = recording.calibration.camera if recording.calibration else None
        disparity, std = predict(image)
        depth, _, _ = depth_of(disparity, np.float32(0), scale, camera)
        truth = true_depth(recording, image, scale, camera)
        errors.add(truth, depth)
        if coverage is not None:
            judged = judged_pixels(truth)
            product = (camera or scale).focal_per_width * scale.baseline_m
            coverage.add(disparity[judged] - product / truth[judged], std[judged])
    return errors


def true_depth(
    recording: KittiRecording, image: np.ndarray, scale: DepthSpec, camera: PinholeCamera | None
) -> np.ndarray:
    """Metres, 0 where unknown."""
    if recording.depth is not None:
        return read_depth(recording.depth)
    disparity, _ = match_both(image, read_image(recording.right))
    depth, _, _ = depth_of(disparity, np.float32(0), scale, camera)
    return np.where(disparity > 0, depth, np.float32(0))

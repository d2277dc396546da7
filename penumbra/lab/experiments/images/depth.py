"""Depth of one KITTI frame: sampled, propagated, and measured by LiDAR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from penumbra.bundle import WEIGHTS
from penumbra.errors import PenumbraError
from penumbra.lab.experiments.images.networks import NetworkForms
from penumbra.lab.experiments.images.result_cache import FOLDER, cached
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.offline.datasets.kitti import KittiRecording, find_measured, read_depth
from penumbra.offline.datasets.rgb_images import read_rgb_image
from penumbra.offline.metrics.agreement import Sparsification
from penumbra.offline.metrics.depth import LEAST, MOST, judged_pixels
from penumbra.propagation import Moments
from penumbra.propagation.montecarlo import monte_carlo
from penumbra.vehicle.geometry import PinholeCamera, depth_of


@dataclass(frozen=True)
class KittiFrame:
    """An image with measured depth (metres, 0 where nothing was measured)."""

    name: str
    image: np.ndarray  # RGB
    truth: np.ndarray
    camera: PinholeCamera | None


@dataclass(frozen=True)
class DepthEstimate:
    """Depth and its standard deviation (first order), metres, at the image's resolution."""

    depth: np.ndarray
    std: np.ndarray

    def at(self, pixels: np.ndarray) -> DepthEstimate:
        """The estimate at the pixels of a mask."""
        return DepthEstimate(self.depth[pixels], self.std[pixels])


def frames(folder: Path, every: int) -> list[KittiRecording]:
    """Every n-th image with measured depth."""
    return find_measured(folder)[::every]


def read(recording: KittiRecording) -> KittiFrame:
    """The frame of a recording with measured depth."""
    if recording.depth is None:
        raise PenumbraError(f"{recording.left}: no measured depth")
    camera = recording.calibration.camera if recording.calibration else None
    truth = read_depth(recording.depth)
    return KittiFrame(recording.left.stem, read_rgb_image(recording.left), truth, camera)


def sampled(
    setting: ExperimentSetting, network: NetworkForms, frame: KittiFrame, counts: Sequence[int]
) -> dict[int, Moments]:
    """The sampled disparity by number of samples; cached in the experiment's folder."""
    facts = {
        "weights": network.bundle.files[WEIGHTS],
        "counts": list(counts),
        "seed": setting.seed,
        "torch": str(torch.__version__),  # its random numbers may change
    }

    def compute() -> dict[str, np.ndarray]:
        x = network.input(frame.image)
        found = [monte_carlo(network.sampled, x, samples=n, seed=setting.seed) for n in counts]
        return {
            "mean": np.stack([m.mean.float().numpy() for m in found]),
            "variance": np.stack([m.variance.float().numpy() for m in found]),
        }

    name = f"{network.bundle.name}-{frame.name}.npz"
    arrays = cached(setting.folder / FOLDER / name, facts, compute)
    pairs = zip(
        *(map(torch.from_numpy, arrays[part]) for part in ("mean", "variance")), strict=True
    )
    return {count: Moments(*pair) for count, pair in zip(counts, pairs, strict=True)}


@torch.inference_mode()
def propagated(network: NetworkForms, walk: str, frame: KittiFrame) -> Moments:
    """The disparity by one pass."""
    return network.walks[walk](network.input(frame.image))


@torch.inference_mode()
def deterministic(network: NetworkForms, frame: KittiFrame) -> Moments:
    """The disparity with dropout off."""
    disparity = network.model(network.input(frame.image))
    return Moments(disparity, torch.zeros_like(disparity))


def depth_estimate(network: NetworkForms, frame: KittiFrame, disparity: Moments) -> DepthEstimate:
    """Depth in metres from a disparity, as the node computes it."""
    outputs, scale = network.outputs(disparity, frame.image), network.bundle.depth
    if scale is None:
        raise PenumbraError(f"the bundle {network.bundle.name} estimates no depth")
    depth, std, _ = depth_of(outputs["disparity"], outputs["uncertainty"], scale, frame.camera)
    return DepthEstimate(depth, std)


def evaluated_pixels(frame: KittiFrame) -> np.ndarray:
    """The mask of evaluated pixels: measured, within 80 m and the crop of Garg et al."""
    return judged_pixels(frame.truth)


def errors(frame: KittiFrame, found: DepthEstimate) -> np.ndarray:
    """|z - truth| in metres at the evaluated pixels."""
    pixels = evaluated_pixels(frame)
    return np.abs(np.clip(found.depth[pixels], LEAST, MOST) - frame.truth[pixels])


# Error measures of the sparsification (Poggi et al. 2020).
MEASURES = ("abs_rel", "rmse", "a1")


def sparsifications(frame: KittiFrame, found: DepthEstimate) -> dict[str, Sparsification]:
    """How well σ ranks the errors of a frame, by error measure.

    abs_rel is |e| / z; rmse the root of the mean e²; a1 here the share of pixels off by a factor of
    1.25 or more, so that less is better for all of them. Relative errors are ranked by the relative
    uncertainty, σ / ẑ; rmse by σ.
    """
    pixels = evaluated_pixels(frame)
    truth, at = frame.truth[pixels], found.at(pixels)
    depth, error = np.clip(at.depth, LEAST, MOST), errors(frame, found)
    relative = at.std / at.depth
    off = np.maximum(depth / truth, truth / depth) >= 1.25
    squared = Sparsification.of(error.astype(float) ** 2, at.std)
    rooted = replace(squared, curve=np.sqrt(squared.curve), oracle=np.sqrt(squared.oracle))
    return {
        "abs_rel": Sparsification.of(error / truth, relative),
        "rmse": rooted,
        "a1": Sparsification.of(off.astype(np.float32), relative),
    }

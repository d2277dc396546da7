"""One frame of KITTI, as a depth network sees it: sampled, propagated, and as the LiDAR does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from penumbra.bundle import WEIGHTS
from penumbra.lab.experiments.pictures.networks import NetworkForms
from penumbra.lab.experiments.pictures.result_cache import FOLDER, kept
from penumbra.lab.experiments.reporting import Setting
from penumbra.offline.datasets.camvid import read_image
from penumbra.offline.datasets.kitti import KittiRecording, find_measured, read_depth
from penumbra.offline.metrics.agreement import Sparsification
from penumbra.offline.metrics.depth import LEAST, MOST, judged_pixels
from penumbra.propagation import Moments
from penumbra.propagation.montecarlo import monte_carlo
from penumbra.vehicle.geometry import PinholeCamera, depth_of


@dataclass(frozen=True)
class DepthFrame:
    """An image with measured depth (metres, 0 where there is none)."""

    name: str
    image: np.ndarray  # RGB
    truth: np.ndarray
    camera: PinholeCamera | None


@dataclass(frozen=True)
class Metres:
    """Depth and its standard deviation, to first order, at the image's own pixels."""

    depth: np.ndarray
    std: np.ndarray

    def at(self, pixels: np.ndarray) -> Metres:
        return Metres(self.depth[pixels], self.std[pixels])


def frames(folder: Path, every: int) -> list[KittiRecording]:
    """One in `every` of the images whose depth was measured."""
    return find_measured(folder)[::every]


def read(recording: KittiRecording) -> DepthFrame:
    """The frame of a recording."""
    camera = recording.calibration.camera if recording.calibration else None
    truth = read_depth(recording.depth)
    return DepthFrame(recording.left.stem, read_image(recording.left), truth, camera)


def sampled(
    setting: Setting, network: NetworkForms, frame: DepthFrame, counts: Sequence[int]
) -> dict[int, Moments]:
    """The disparity by so many samples, for each count; kept in the experiment's folder."""
    facts = {
        "weights": network.bundle.manifest["files"][WEIGHTS],
        "counts": list(counts),
        "seed": setting.seed,
        "torch": str(torch.__version__),  # which draws
    }

    def compute() -> dict[str, np.ndarray]:
        x = network.input(frame.image)
        found = [monte_carlo(network.sampled, x, samples=n, seed=setting.seed) for n in counts]
        return {
            "mean": np.stack([m.mean.float().numpy() for m in found]),
            "variance": np.stack([m.variance.float().numpy() for m in found]),
        }

    name = f"{network.bundle.name}-{frame.name}.npz"
    arrays = kept(setting.folder / FOLDER / name, facts, compute)
    pairs = zip(
        *(map(torch.from_numpy, arrays[part]) for part in ("mean", "variance")), strict=True
    )
    return {count: Moments(*pair) for count, pair in zip(counts, pairs, strict=True)}


@torch.inference_mode()
def propagated(network: NetworkForms, walk: str, frame: DepthFrame) -> Moments:
    """The disparity by one pass."""
    return network.walks[walk](network.input(frame.image))


@torch.inference_mode()
def plain(network: NetworkForms, frame: DepthFrame) -> Moments:
    """The disparity with dropout off."""
    return Moments(network.model(network.input(frame.image)))


def metres(network: NetworkForms, frame: DepthFrame, disparity: Moments) -> Metres:
    """What the node makes of it."""
    outputs = network.outputs(disparity, frame.image)
    scale = network.bundle.depth
    depth, std, _ = depth_of(outputs["disparity"], outputs["uncertainty"], scale, frame.camera)
    return Metres(depth, std)


def known(frame: DepthFrame) -> np.ndarray:
    """The pixels that are judged: measured, within 80 m and the crop of Garg et al."""
    return judged_pixels(frame.truth)


def errors(frame: DepthFrame, found: Metres) -> np.ndarray:
    """|z - truth| in metres at the judged pixels."""
    pixels = known(frame)
    return np.abs(np.clip(found.depth[pixels], LEAST, MOST) - frame.truth[pixels])


# What is left when the most uncertain are taken away, by which measure (Poggi et al. 2020).
MEASURES = ("abs_rel", "rmse", "a1")


def sparsifications(frame: DepthFrame, found: Metres) -> dict[str, Sparsification]:
    """How well σ knows the errors of a frame, by measure.

    abs_rel is |e| / z; rmse the root of the mean e²; a1 here the share of pixels off by a factor of
    1.25 or more, so that less is better in all of them. Where errors are relative, so is the
    uncertainty they are ranked by, σ / ẑ; for rmse it is σ.
    """
    pixels = known(frame)
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

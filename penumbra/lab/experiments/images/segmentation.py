"""Segmentation of one CamVid frame: sampled, propagated, and labelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from penumbra.bundle import WEIGHTS, ClassSpec
from penumbra.lab.experiments.images.networks import NetworkForms
from penumbra.lab.experiments.images.result_cache import FOLDER, cached
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.offline.datasets.camvid import images_of, read_label
from penumbra.offline.datasets.camvid_classes import VOID
from penumbra.offline.datasets.rgb_images import read_rgb_image
from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.propagation.montecarlo import monte_carlo
from penumbra.vehicle.colours import colour_labels

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class CamvidFrame:
    """A test frame; labels by CamVid's numbers, IGNORE where unlabelled."""

    name: str
    image: np.ndarray  # RGB
    label: np.ndarray


@dataclass(frozen=True)
class Segmentation:
    """The result of one method for a frame."""

    labels: np.ndarray  # of the largest mean probability, by the network's own numbers
    class_std: np.ndarray  # of each class's probability: classes x height x width

    @property
    def std(self) -> np.ndarray:
        """The paper's uncertainty: the mean over the classes."""
        return self.class_std.mean(0, dtype=np.float32)


def frames(folder: Path, every: int) -> list[Path]:
    """The images of every n-th test frame."""
    return images_of(folder, "test")[::every]


def read(path: Path) -> CamvidFrame:
    """The frame of a test image."""
    image = read_rgb_image(path)
    label = read_label(path.parents[1] / f"{path.parent.name}annot" / f"{path.stem}.png", image)
    return CamvidFrame(path.stem, image, np.where(label == VOID, np.uint8(IGNORE), label))


def sampled(
    setting: ExperimentSetting, network: NetworkForms, frame: CamvidFrame, samples: int
) -> tuple[Segmentation, np.ndarray]:
    """By Monte Carlo, cached in the experiment's folder; and QUANTILES of the std of the scores.

    The cache has standard deviations in half precision, accurate to 0.05 %; the sampling error of
    fifty samples is 10 %.
    """
    name = f"{network.bundle.name}-{frame.name}-{samples}.npz"
    facts = {
        "weights": network.bundle.files[WEIGHTS],
        "samples": samples,
        "seed": setting.seed,
        "torch": str(torch.__version__),  # its random numbers may change
    }

    def compute() -> dict[str, np.ndarray]:
        x = network.input(frame.image)
        scores, p = monte_carlo(network.sampled, x, samples=samples, seed=setting.seed)
        return {
            "labels": p.mean[0].argmax(0).numpy().astype(np.uint8),
            "class_std": p.std[0].numpy().astype(np.float16),
            "score_std": np.quantile(scores.std.numpy(), QUANTILES),
        }

    found = cached(setting.folder / FOLDER / name, facts, compute)
    return Segmentation(found["labels"], found["class_std"].astype(np.float32)), found["score_std"]


@torch.inference_mode()
def propagated(
    network: NetworkForms, walk: str, frame: CamvidFrame
) -> tuple[Segmentation, dict[str, np.ndarray]]:
    """By one pass; and all outputs of the bundle."""
    walked = network.walks[walk](network.input(frame.image))
    outputs = network.outputs(walked, frame.image)
    return Segmentation(outputs["labels"], walked[1].std[0].numpy()), outputs


@torch.inference_mode()
def deterministic_labels(network: NetworkForms, frame: CamvidFrame) -> np.ndarray:
    """Labels with dropout off."""
    return network.model(network.input(frame.image))[0].argmax(0).numpy().astype(np.uint8)


def painted(labels: np.ndarray, classes: Sequence[ClassSpec]) -> np.ndarray:
    """Labels in the colours of their classes, black where unlabelled."""
    unknown = (labels == IGNORE)[..., None]
    return np.where(unknown, np.uint8(0), colour_labels(labels, classes))

"""What can be set in a training run, with its default and its help: the one place for all three.

No torch here: the command line builds its `--help` from these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def option(default: Any, text: str) -> Any:
    """A field that is also a command-line option; `text` is its help."""
    return field(default=default, metadata={"help": text})


@dataclass
class TrainingSettings:
    """How any network is trained."""

    optimizer: str = option("adamw", "adamw or sgd")
    rate: float = option(1e-3, "learning rate")
    weight_decay: float = option(0.01, "on convolution weights only")
    batch: int = option(8, "images per step, over all GPUs together")
    warmup: int = option(200, "steps of linear warm-up")
    steps: int | None = option(None, "end after so many steps; without it, train until stopped")
    decay_steps: int = option(1000, "the last steps of a run, in which the rate falls to zero")
    average: float = option(0.999, "decay of the running average of weights that is judged, kept")
    precision: str = option(
        "auto", "fp32, or mixed with fp16 or bf16; auto: fp16 on a GPU, fp32 on a CPU"
    )
    patience: int | None = option(None, "stop after so many validations without a new best")
    validate_every: int = option(1000, "steps between validations")
    save_every: int = option(200, "steps between saved states")
    log_every: int = option(50, "steps between lines in metrics.jsonl")
    seed: int = option(0, "of weights, order, augmentation and dropout")
    threads: int | None = option(None, "CPU threads")
    workers: int = option(0, "processes that prepare the data; 0 does it in line")


@dataclass
class SegNetOptions:
    """Semantic segmentation with SegNet.

    The defaults are the published network's.
    """

    data: str | None = option(None, "CamVid's folder")
    width: float = option(1.0, "factor on all channel counts")
    dropout: str = option("encdec", "encdec, class, none, or places such as encoder3,decoder3")
    dropout_rate: float = option(0.5, "share of activations dropped")
    withhold: str = option("", "classes to leave out, e.g. pedestrian,bicyclist")
    crop: str = option("256x192", "WIDTHxHEIGHT of the training crops")
    scales: str = option("0.55,1.5", "range of the random scale")
    outliers: float = option(0.0, "share of the crops into which something without a class is put")
    balance: float = option(1.0, "1: median-frequency balancing; 0: none; between: its power")
    skip_bad: bool = option(False, "leave unreadable frames out and count them")
    init: str | None = option(None, "weights to start from (a model's folder or file)")


@dataclass
class MonodepthOptions:
    """Depth from one image with Monodepth, learnt from stereo pairs.

    The defaults are the published network's.
    """

    data: tuple[str, ...] | None = option(
        None, "folders of pairs: KITTI raw, odometry, or left/ right/"
    )
    rendered: int = option(0, "add so many rendered pairs (drawn once, kept in the cache)")
    validation: str | None = option(
        None, "folder with measured depth; without it, the last tenth of the pairs"
    )
    encoder: str = option("vgg", "vgg or resnet50")
    width: float = option(1.0, "factor on all channel counts")
    batch_norm: bool = option(False, "behind each convolution; for short trainings")
    dropout_rate: float = option(0.5, "share of activations dropped before the last convolution")
    size: str = option("512x256", "WIDTHxHEIGHT that images are scaled to, multiples of 128")
    zoom: str = option("1,1", "range of the random zoom, from 1 on")
    grey: float = option(0.0, "share of the pairs that are shown without their colours")
    known: float = option(0.0, "weight of known disparities in the loss; the paper has none")
    hints: bool = option(False, "match pairs without measured depth and take that as known")
    baseline: float = option(0.54, "metres between the two cameras")
    focal_per_width: float = option(0.58, "of pairs without calibration")
    skip_bad: bool = option(False, "leave unreadable frames out and count them")
    init: str | None = option(None, "weights to start from (a model's folder or file)")

"""The options of training runs, with their defaults and help texts.

No torch here: the command line builds its `--help` from these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def option(default: Any, text: str) -> Any:
    """A field that is also a command-line option with the help `text`."""
    return field(default=default, metadata={"help": text})


@dataclass
class TrainingSettings:
    """Settings that all networks share."""

    optimizer: str = option("adamw", "adamw, muon or sgd")
    rate: float = option(1e-3, "learning rate")
    weight_decay: float = option(0.01, "of convolution weights")
    batch: int = option(8, "images per step, over all GPUs")
    warmup: int = option(200, "steps of linear warm-up")
    steps: int | None = option(None, "number of steps; default: until stopped")
    decay_steps: int = option(1000, "final steps, in which the rate decays to zero")
    average: float = option(0.999, "decay of the moving average of the weights, which is saved")
    precision: str = option(
        "auto", "fp32, or mixed precision with fp16 or bf16; auto: fp16 on GPU, fp32 on CPU"
    )
    patience: int | None = option(None, "stop after so many validations without improvement")
    validate_every: int = option(1000, "steps between validations")
    save_every: int = option(200, "steps between saved states")
    log_every: int = option(50, "steps between lines in metrics.jsonl")
    seed: int = option(0, "seed of weights, order, augmentation and dropout")
    threads: int | None = option(None, "number of CPU threads")
    workers: int = option(0, "number of data loader processes; 0: none")


@dataclass
class SegNetOptions:
    """Semantic segmentation with SegNet.

    The defaults are the published network's.
    """

    data: str | None = option(None, "CamVid's folder")
    width: float = option(1.0, "factor on all channel counts")
    dropout: str = option("encdec", "encdec, class, none, or places such as encoder3,decoder3")
    dropout_rate: float = option(0.5, "share of activations dropped")
    withhold: str = option("", "classes to exclude, e.g. pedestrian,bicyclist")
    crop: str = option("256x192", "WIDTHxHEIGHT of the training crops")
    scales: str = option("0.55,1.5", "range of the random scale")
    outliers: float = option(0.0, "share of the crops with a pasted outlier")
    paste: int = option(0, "objects of rare classes pasted into each frame from other frames")
    teacher: str | None = option(None, "folder with a teacher's soft labels of the training frames")
    teacher_weight: float = option(0.5, "share of the teacher in the loss")
    temperature: float = option(2.0, "that softens the teacher's probabilities and the network's")
    balance: float = option(1.0, "exponent of median-frequency balancing; 0: none")
    skip_bad: bool = option(False, "skip and count unreadable frames")
    init: str | None = option(None, "weights to start from (a model's folder or file)")


@dataclass
class MonodepthOptions:
    """Depth from one image with Monodepth, learnt from stereo pairs.

    The defaults are the published network's.
    """

    data: tuple[str, ...] | None = option(
        None, "folders of pairs: KITTI raw, odometry, or left/ right/"
    )
    rendered: int = option(0, "number of rendered pairs to add (kept in the cache)")
    validation: str | None = option(
        None, "folder with measured depth; default: the last tenth of the pairs"
    )
    encoder: str = option("vgg", "vgg or resnet50")
    width: float = option(1.0, "factor on all channel counts")
    batch_norm: bool = option(False, "batch norm after each convolution, for short trainings")
    dropout_rate: float = option(0.5, "share of activations dropped before the last convolution")
    size: str = option("512x256", "WIDTHxHEIGHT that images are scaled to, multiples of 128")
    zoom: str = option("1,1", "range of the random zoom, at least 1")
    grey: float = option(0.0, "share of the pairs converted to grey")
    known: float = option(0.0, "weight of known disparities in the loss; 0 in the paper")
    hints: bool = option(False, "match pairs without measured depth, as known disparities")
    baseline: float = option(0.54, "distance of the two cameras in metres")
    focal_per_width: float = option(0.58, "focal length over width, of pairs without calibration")
    skip_bad: bool = option(False, "skip and count unreadable frames")
    init: str | None = option(None, "weights to start from (a model's folder or file)")

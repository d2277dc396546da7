"""Untrained SegNets, for measurements that depend on the size of the network alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from penumbra.bundle import Bundle
from penumbra.lab.timing import interleaved
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.offline.models import save_model
from penumbra.offline.models.segnet import SegNet
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig

CLASSES, DROPOUT, RATE = 11, "encdec", 0.2


def untrained_segnet(width: float) -> SegNet:
    """Bayesian SegNet with `width` times its channels; the same weights at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        names = [f"class {number}" for number in range(CLASSES)]
        return SegNet(names, width, DROPOUT, RATE).eval()


def untrained_bundle(width: float, folder: Path, size: tuple[int, int]) -> Bundle:
    """The untrained network, propagated, as a bundle for images of `size` (height, width)."""
    save_model(untrained_segnet(width), folder / "model")
    options = ExportOptions(*size)
    return export_bundle(folder / "model", folder / "bundle", options, name=f"segnet-{width:g}")


def bundle_of_about(
    milliseconds: float, folder: Path, size: tuple[int, int], config: PipelineConfig
) -> Bundle:
    """A network whose width is chosen so that a frame takes about that time on this machine.

    Time is roughly the multiply-adds to the power of 0.85, and these the width squared.
    """
    first, image = 1 / 8, np.zeros((*size, 3), np.uint8)
    with Pipeline(untrained_bundle(first, folder / "first", size), config) as pipeline:
        taken = interleaved({"frame": lambda: pipeline.process(image)}, 5)["frame"].median * 1e3
    width = first * (milliseconds / taken) ** (1 / 1.7)
    # Multiples of eight channels (1/64 of 512), as the kernels of the runners need them.
    width = min(max(round(width * 64) / 64, 1 / 64), 1.0)
    return untrained_bundle(width, folder / "sized", size)


def multiply_adds(model: nn.Module, size: tuple[int, int]) -> int:
    """The multiply-adds of the convolutions in one deterministic pass for an image of `size`."""
    count = 0

    def note(layer: nn.Conv2d, _: object, output: Tensor) -> None:
        nonlocal count
        count += output.numel() * layer.weight[0].numel()

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    with torch.inference_mode():
        model(torch.zeros(1, 3, *size))
    for hook in hooks:
        hook.remove()
    return count

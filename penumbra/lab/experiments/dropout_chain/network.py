"""The paper's small network: convolution, dropout block, fully connected layer; on CamVid patches.

The block is D CR CR CR D CR CR CR (dropout; 3x3x3 convolution and ReLU) on maps of 10x10x3. The
paper uses CIFAR-10; here the network classifies the centre of a patch of 32x32 pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penumbra.offline.datasets.camvid import load_camvid
from penumbra.offline.metrics.segmentation import IGNORE

PATCH, SIDE, CHANNELS = 32, 10, 3
RATE = 0.2
STEPS, BATCH = 2_000, 128
_PER_IMAGE = 60

LAYERS = ("D", "C+R", "C+R", "C+R", "D", "C+R", "C+R", "C+R")  # one entry of `stages` each


def network(classes: int) -> nn.Sequential:
    """Front, block and head in one sequence, with He's initial weights."""

    def convolution() -> tuple[nn.Module, ...]:
        return nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()

    model = nn.Sequential(
        nn.Conv2d(3, CHANNELS, 5, stride=3), nn.ReLU(),
        nn.Dropout(RATE), *convolution(), *convolution(), *convolution(),
        nn.Dropout(RATE), *convolution(), *convolution(), *convolution(),
        nn.Flatten(), nn.Linear(CHANNELS * SIDE**2, classes),
    )  # fmt: skip
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model.eval()


def untrained(classes: int, seed: int) -> nn.Sequential:
    """The network with the initial weights of `train`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network(classes)


def stages(model: nn.Sequential) -> list[nn.Sequential]:
    """The model up to each entry of `LAYERS`, and the whole model."""
    ends = [i + 1 for i, layer in enumerate(model) if isinstance(layer, (nn.Dropout, nn.ReLU))][1:]
    return [nn.Sequential(*list(model)[:end]) for end in (*ends, len(model))]


def patches(folder: Path, split: str, seed: int) -> tuple[Tensor, Tensor, int]:
    """Patches (N, 3, 32, 32), roughly normalised, their classes, and the number of classes."""
    data = load_camvid(folder, split)
    generator = np.random.default_rng(seed)
    images, labels = [], []
    for image, label in zip(data.images, data.labels, strict=True):
        height, width = label.shape
        for top, left in zip(
            generator.integers(0, height - PATCH, _PER_IMAGE),
            generator.integers(0, width - PATCH, _PER_IMAGE),
            strict=True,
        ):
            name = label[top + PATCH // 2, left + PATCH // 2]
            if name != IGNORE:
                images.append(image[top : top + PATCH, left : left + PATCH])
                labels.append(name)
    x = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
    return (x - 110) / 70, torch.from_numpy(np.array(labels)).long(), len(data.classes)


def train(
    x: Tensor, y: Tensor, classes: int, seed: int,
    progress: Callable[[Iterable[int]], Iterable[Any]] = iter,
) -> nn.Sequential:  # fmt: skip
    """The network fitted by cross entropy."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network(classes).train()
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)
        for _ in progress(range(STEPS)):
            batch = torch.randint(len(x), (BATCH,))
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()

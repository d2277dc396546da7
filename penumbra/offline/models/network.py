"""The base class of the networks, and the normalisation of their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

# The statistics of ImageNet's RGB pixels (0 to 255), a common default for cameras.
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)


class Network(nn.Module):
    """A network that keeps the arguments of its constructor.

    `config` contains them in a form that JSON can store. It has the keys `mean` and `std`, and
    `size` if the network has an input size of its own.
    """

    config: dict[str, Any]

    @property
    def pixel_mean(self) -> list[float]:
        """Mean of the RGB pixels (0 to 255) in training, which belongs to the weights."""
        return list(self.config["mean"])

    @property
    def pixel_std(self) -> list[float]:
        """Standard deviation of the RGB pixels (0 to 255) in training."""
        return list(self.config["std"])

    @property
    def input_size(self) -> tuple[int, int] | None:
        """Height and width that images are scaled to; None: any size."""
        if "size" not in self.config:
            return None
        height, width = self.config["size"]
        return height, width


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """`uint8` RGB images (N x H x W x 3) as input of a network: float, N x 3 x H x W."""
    x = images.permute(0, 3, 1, 2).to(torch.float32)
    shape = (1, 3, 1, 1)
    return (x - x.new_tensor(mean).view(shape)) / x.new_tensor(std).view(shape)


def normalised_for(model: Network, images: Tensor) -> Tensor:
    """`images` on the model's device, normalised with its statistics, in channels-last layout."""
    device = next(model.parameters()).device
    x = normalise(images.to(device), model.pixel_mean, model.pixel_std)
    return x.contiguous(memory_format=torch.channels_last)

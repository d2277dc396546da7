"""Padding and cropping, for networks that halve their input several times.

Both are modules, so that a walk can treat each as one step, and index arithmetic on shapes, so that
tracing through them and an export with dynamic sizes work as well.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PadToMultiple(nn.Module):
    """Replicate the right and bottom edges until height and width are multiples of `multiple`."""

    def __init__(self, multiple: int) -> None:
        super().__init__()
        self.multiple = multiple

    def forward(self, x: Tensor) -> Tensor:
        """The padded batch."""
        height, width = x.shape[-2], x.shape[-1]
        # Written as n ⌈h/n⌉, not h + (-h mod n), so that a dynamic export knows it for a multiple.
        bottom = (height + self.multiple - 1) // self.multiple * self.multiple - height
        right = (width + self.multiple - 1) // self.multiple * self.multiple - width
        return F.pad(x, (0, right, 0, bottom), mode="replicate")

    def extra_repr(self) -> str:
        """The argument, for `repr`."""
        return str(self.multiple)


class CropLike(nn.Module):
    """The top left part of `x` with the height and width of `reference`."""

    def forward(self, x: Tensor, reference: Tensor) -> Tensor:
        """The cropped batch."""
        return x[..., : reference.shape[-2], : reference.shape[-1]]

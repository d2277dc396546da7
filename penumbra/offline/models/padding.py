"""Any image size for a network that halves its input several times: pad in front, crop behind.

Both are modules so that a graph walk can treat each as one step, and both are plain index
arithmetic on shapes so that a walk that looks inside, or an export with dynamic sizes, works too.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PadToMultiple(nn.Module):
    """Repeat the right and bottom edge until height and width are multiples of `multiple`."""

    def __init__(self, multiple: int) -> None:
        super().__init__()
        self.multiple = multiple

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2], x.shape[-1]
        # An export with dynamic sizes has to see the multiple: n ⌈h/n⌉, not h + (-h mod n).
        bottom = (height + self.multiple - 1) // self.multiple * self.multiple - height
        right = (width + self.multiple - 1) // self.multiple * self.multiple - width
        return F.pad(x, (0, right, 0, bottom), mode="replicate")

    def extra_repr(self) -> str:
        return str(self.multiple)


class CropLike(nn.Module):
    """The top left part of `x` that has the height and width of `reference`."""

    def forward(self, x: Tensor, reference: Tensor) -> Tensor:
        return x[..., : reference.shape[-2], : reference.shape[-1]]

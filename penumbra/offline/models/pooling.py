"""2x2 max-pooling that records the position of the maximum, and unpooling to that position.

SegNet's decoder places each value where its encoder found the maximum. PyTorch's operators are the
fastest for that, but TensorRT supports neither the `Indices` output of MaxPool nor MaxUnpool. Each
function here has two equivalent forms and selects one by context:

- native (training, sampling, propagation): `max_pool2d`, flat indices, `max_unpool2d`;
- export (inside `torch.export` and `torch.onnx.export`): the four phases of each 2x2 window as
  strided views, comparisons and a pixel shuffle, all of which TensorRT compiles.

The *selection* that they exchange is an integer tensor of the pooled shape. Its encoding differs
between the two forms (flat index; phase 0 to 3) and is private to this module.

Ties go to the first position in row-major order in both forms: after ReLU an all-zero window is
common, and `x == upsample(max)` would copy its variance to four places. Differences within rounding
are ties as well: in uniform sky, and where the image is padded with its edge, neighbours are equal
up to the order of summation, and each runtime would select another maximum. So a later position
wins only if it is larger by `MARGIN` (relative, or absolute below 1). The pooled value is the true
maximum in any case.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.moments import Moments, map_within_channels
from penumbra.propagation.registry import rule
from penumbra.propagation.strips import in_strips

MARGIN = 1e-4
"""Margin by which a later position must be larger; rounding is below a hundredth of it."""


def select_max(x: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of every 2x2 window of `x` (N, C, H, W; H and W even) and its selection."""
    if _exporting():
        first, second, third, fourth = _phases(x)
        upper, lower = torch.maximum(first, second), torch.maximum(third, fourth)
        return torch.maximum(upper, lower), winner(first, second, third, fourth)
    height, width = x.shape[-2:]
    if height % 2 or width % 2:
        raise ValueError(f"2x2 pooling needs even height and width, not {(height, width)}")
    phase = winner(*_phases(x.detach()))
    rows = torch.arange(0, height, 2, device=x.device).unsqueeze(1)
    columns = torch.arange(0, width, 2, device=x.device)
    corner = rows * width + columns
    return _largest(x), corner + (phase >> 1) * width + (phase & 1)


def _largest(x: Tensor) -> Tensor:
    """The pooled value; without a gradient by rows, then columns: 8 times as fast as max_pool2d."""
    if x.requires_grad:
        return F.max_pool2d(x, kernel_size=2, stride=2)
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def winner(first: Tensor, second: Tensor, third: Tensor, fourth: Tensor) -> Tensor:
    """The selected phase of each window, 0 to 3, by pairwise comparison with a margin.

    (ArgMax has no margin, and TensorRT does not specify its ties.)
    """
    (won,) = in_strips(_knock_out, first, second, third, fourth, dim=-2)
    return won


def _knock_out(first: Tensor, second: Tensor, third: Tensor, fourth: Tensor) -> tuple[Tensor]:
    def beats(challenger: Tensor, holder: Tensor) -> Tensor:
        smaller = torch.minimum(challenger.abs(), holder.abs())  # finite if one of them is
        return challenger - holder > MARGIN * (1 + smaller)

    if not _exporting():  # strided views are read ten times: copy them once
        first, second, third, fourth = (p.contiguous() for p in (first, second, third, fourth))
    upper, lower = torch.maximum(first, second), torch.maximum(third, fourth)
    won = torch.where(
        beats(lower, upper),
        beats(fourth, third).to(torch.int32) + 2,
        beats(second, first).to(torch.int32),
    )
    return (won,)


def gather_selected(x: Tensor, selection: Tensor) -> Tensor:
    """The values of `x` (N, C, H, W) at the selected positions."""
    if _exporting():
        first, second, third, fourth = _phases(x)
        upper = torch.where(selection == 0, first, second)
        lower = torch.where(selection == 2, third, fourth)
        return torch.where(selection < 2, upper, lower)
    return x.flatten(2).gather(2, selection.flatten(2)).view_as(selection)


def scatter_selected(x: Tensor, selection: Tensor) -> Tensor:
    """`x` (N, C, h, w) at the selected positions of (N, C, 2h, 2w), zero elsewhere."""
    if _exporting():
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        placed = [torch.where(selection == phase, x, zero) for phase in range(4)]
        return F.pixel_shuffle(torch.stack(placed, dim=2).flatten(1, 2), 2)
    return F.max_unpool2d(x, selection, kernel_size=(2, 2), stride=(2, 2))


class MaxPool2x2(nn.Module):
    """2x2 max-pooling of an image of even height and width."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The pooled values and their selection."""
        return select_max(x)


class MaxUnpool2x2(nn.Module):
    """Places each value at the position that `MaxPool2x2` selected; the rest is zero."""

    def forward(self, x: Tensor, selection: Tensor) -> Tensor:
        """The unpooled values."""
        return scatter_selected(x, selection)


def _phases(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four positions of each 2x2 window, row-major, each as an image of half the size."""
    return x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]


def _exporting() -> bool:
    return torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()


# torch.fx must not trace into these functions: that would fix the native form, and the traced model
# could not be exported.
torch.fx.wrap("select_max")
torch.fx.wrap("gather_selected")
torch.fx.wrap("scatter_selected")


@rule(select_max)
def select_max_of_moments(x: Moments) -> tuple[Moments, Tensor]:
    """The element with the largest median, with its own mean and variance.

    In a window where ReLU cuts off all four elements, their means are tiny but not zero. The
    largest of them would be decided in the far tails of Gaussians (down to 1e-40), where runtimes
    and precisions disagree, and the decoder places a large value at the selected position. The
    medians are zero there and the first position wins, as in the deterministic network and in
    nearly every sample.
    """
    typical = x.typical
    largest, selection = select_max(typical)

    def take(value: Tensor) -> Tensor:
        return gather_selected(value, selection)

    def take_mean(mean: Tensor) -> Tensor:
        return largest if typical is x.mean else take(mean)

    return map_within_channels(x, take_mean, take), selection


@rule(scatter_selected)
def scatter_selected_moments(x: Moments, selection: Tensor) -> Moments:
    """Each value at its position with its variance; the zeros around it are exact."""
    return map_within_channels(x, lambda v: scatter_selected(v, selection))

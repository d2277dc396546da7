"""Pooling and unpooling.

Averages are affine within a channel: exact for independent inputs and for noise shared by the
channel. The maximum has two rules: "argmax" follows the element with the largest mean, as the
plain network does; "moment" takes the window as independent Gaussians (Clark 1961).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.gaussian import corner
from penumbra.propagation.moments import Moments, map_within_channels
from penumbra.propagation.registry import layer, rule

_AVERAGE = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_MAXIMUM = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def _tuple(value: Any, dimensions: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, Sequence) else (value,) * dimensions


def _one_channel(value: Tensor, dimensions: int) -> Tensor:
    """The first channel, with or without a batch before it."""
    return value[(slice(0, 1),) * (value.dim() - dimensions)]


def _over_windows(like: Tensor, counts: Sequence[list[int]]) -> Tensor:
    """The product of counts along each dimension, as a tensor over all windows."""
    product = torch.ones((), dtype=like.dtype, device=like.device)
    for axis, values in enumerate(counts):
        shape = [-1 if i == axis else 1 for i in range(len(counts))]
        product = product * torch.tensor(values).to(like).reshape(shape)
    return product


def _elements(
    index: int, size: int, outputs: int, kernel: int, stride: int, padding: int, with_padding: bool
) -> int:
    """The number of elements along one dimension that torch divides a window by."""
    start = index * stride - padding
    stop = min(start + kernel, size + padding)
    return stop - start if with_padding else min(stop, size) - max(start, 0)


def _average_rule(average: Callable[..., Tensor], dimensions: int) -> Callable[..., Moments]:
    @rule(average)
    def average_pool(
        x: Moments, kernel_size: Any, stride: Any = None, padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Moments:  # fmt: skip
        """Var = Σ V / n², where n is the divisor of each window (it varies at the borders).

        torch.onnx.export silently ignores `divisor_override`, so it is multiplied in.
        """
        kernel, padding = _tuple(kernel_size, dimensions), _tuple(padding, dimensions)
        stride = kernel if stride is None or stride == [] else _tuple(stride, dimensions)

        def pool(value: Tensor) -> Tensor:
            return average(value, kernel, stride, padding, ceil_mode, count_include_pad)

        mean = pool(x.mean)
        geometry = (x.mean.shape[-dimensions:], mean.shape[-dimensions:], kernel, stride, padding)
        n = _over_windows(mean, [
            [_elements(i, *axis, count_include_pad) for i in range(axis[1])]
            for axis in zip(*geometry, strict=True)
        ])  # fmt: skip
        if divisor_override is None:
            return map_within_channels(x, pool, squared=lambda v: pool(v) / n)
        scale = n / divisor_override
        return map_within_channels(
            x, lambda v: pool(v) * scale, squared=lambda v: pool(v) * (scale / divisor_override)
        )

    return average_pool


average_pool_2d = _average_rule(F.avg_pool2d, 2)
_average_rule(F.avg_pool3d, 3)
layer(nn.AvgPool2d, F.avg_pool2d, *_AVERAGE, "divisor_override")
layer(nn.AvgPool3d, F.avg_pool3d, *_AVERAGE, "divisor_override")
layer(nn.AvgPool1d, F.avg_pool1d, *_AVERAGE)


@rule(F.avg_pool1d)
def average_pool_1d(
    x: Moments, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Moments:  # fmt: skip
    """Average pooling of an image of height one."""
    kernel, step, pad = (
        None if value is None else (first, *_tuple(value, 1))
        for value, first in ((kernel_size, 1), (stride, 1), (padding, 0))
    )
    flat = map_within_channels(x, lambda v: v.unsqueeze(-2))
    pooled = average_pool_2d(flat, kernel, step, pad, ceil_mode, count_include_pad)
    return map_within_channels(pooled, lambda v: v.squeeze(-2))


def _adaptive_rule(average: Callable[..., Tensor], dimensions: int) -> None:
    @rule(average)
    def adaptive_average_pool(x: Moments, output_size: Any) -> Moments:
        """Var = Σ V / n², where windows [⌊i H/h⌋, ⌈(i+1) H/h⌉) may differ in size."""
        sizes = x.mean.shape[-dimensions:]
        outputs = [
            size if output is None else output
            for size, output in zip(sizes, _tuple(output_size, dimensions), strict=True)
        ]

        n = _over_windows(x.mean, [
            [-(-(i + 1) * size // output) - i * size // output for i in range(output)]
            for size, output in zip(sizes, outputs, strict=True)
        ])  # fmt: skip
        return map_within_channels(
            x,
            lambda v: average(v, output_size),
            squared=lambda v: average(v, output_size) / n,
        )


_adaptive_rule(F.adaptive_avg_pool1d, 1)
_adaptive_rule(F.adaptive_avg_pool2d, 2)
_adaptive_rule(F.adaptive_avg_pool3d, 3)
layer(nn.AdaptiveAvgPool1d, F.adaptive_avg_pool1d, "output_size")
layer(nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d, "output_size")
layer(nn.AdaptiveAvgPool3d, F.adaptive_avg_pool3d, "output_size")


def gather_positions(value: Tensor, indices: Tensor, dimensions: int) -> Tensor:
    """The elements at the flat spatial `indices` that max pooling returned."""
    flat = value.flatten(-dimensions).gather(-1, indices.flatten(-dimensions))
    return flat.reshape(indices.shape)


def _maximum_rule(
    pool: Callable[..., Any],
    plain: tuple[Callable[..., Any], ...],
    with_indices: Any,
    dimensions: int,
) -> None:
    def argmax(x: Moments, *geometry: Any, **named: Any) -> tuple[Moments, Tensor]:
        _, indices = with_indices(x.typical, *geometry, **named)
        # Noise shared by a channel scales or shifts a whole window, so it follows the argmax.
        chosen = map_within_channels(x, lambda v: gather_positions(v, indices, dimensions))
        return chosen, indices

    def moment(
        x: Moments, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Moments, Tensor]:  # fmt: skip
        """Fold the window with `maximum_of_gaussians`, which is exact for two elements.

        The maximum of two is then taken as Gaussian; docs/rules.md has the error for more.
        """
        stride = kernel_size if stride is None else stride
        mean, indices = with_indices(x.mean, kernel_size, stride, padding, dilation, ceil_mode)
        windows = _windows(
            x, mean.shape[-dimensions:],
            *(_tuple(value, dimensions) for value in (kernel_size, stride, padding, dilation)),
        )  # fmt: skip
        largest, filled = next(windows)
        for other, valid in windows:
            both = maximum_of_gaussians(largest, other)
            pick = [
                torch.where(filled & valid, together, torch.where(filled, old, new))
                for together, old, new in (
                    (both.mean, largest.mean, other.mean),
                    (both.variance, largest.variance, other.variance),
                )
            ]
            largest, filled = Moments(*pick), filled | valid
        return largest, indices

    for form, compute in (("argmax", argmax), ("moment", moment)):

        def register(compute: Callable[..., tuple[Moments, Tensor]], form: str) -> None:
            @rule(pool, *plain, max_pool=form)
            def maximum_pool(
                x: Moments, kernel_size: Any, stride: Any = None, padding: Any = 0,
                dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
            ) -> Moments | tuple[Moments, Tensor]:  # fmt: skip
                """The maximum of each window; the indices are those of the largest means."""
                largest, indices = compute(x, kernel_size, stride, padding, dilation, ceil_mode)
                return (largest, indices) if return_indices else largest

            @rule(with_indices, max_pool=form)
            def maximum_pool_with_indices(
                x: Moments, kernel_size: Any, stride: Any = None, padding: Any = 0,
                dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = True,
            ) -> tuple[Moments, Tensor]:  # fmt: skip
                """The same, always with indices."""
                return compute(x, kernel_size, stride, padding, dilation, ceil_mode)

        register(compute, form)


def maximum_of_gaussians(a: Moments, b: Moments) -> Moments:
    """max(A, B) = B + max(0, D), D = A - B, of independent Gaussians (Clark 1961).

    By Stein's lemma Cov(B, max(0, D)) = Cov(B, D) P(D > 0) = -V_B P(D > 0). With the moments of
    max(0, D) from `gaussian.corner` (lift g, loss h, variance V = V_A + V_B of D) this is

        E = max(A, B) + √V g        Var = V_A P(D > 0) + V_B P(D < 0) - V h.
    """
    together = a.variance + b.variance
    std = together.sqrt()
    at_zero = corner(a.mean - b.mean, std)
    mean = torch.maximum(a.mean, b.mean) + std * at_zero.lift
    variance = a.variance * at_zero.positive + b.variance * (1 - at_zero.positive)
    return Moments(mean, (variance - together * at_zero.loss).clamp(min=0))


def _windows(
    x: Moments, output: Sequence[int], kernel: tuple[int, ...], stride: tuple[int, ...],
    padding: tuple[int, ...], dilation: tuple[int, ...],
) -> Iterator[tuple[Moments, Tensor]]:  # fmt: skip
    """For each position in the kernel: its value in every window, and whether it exists."""
    sizes = x.mean.shape[-len(kernel) :]
    reach = [
        (n - 1) * s + (k - 1) * d + 1
        for n, k, s, d in zip(output, kernel, stride, dilation, strict=True)
    ]
    pads = [
        side
        for size, pad, end in reversed(list(zip(sizes, padding, reach, strict=True)))
        for side in (pad, max(0, end - size - pad))
    ]
    exists = torch.ones_like(_one_channel(x.mean, len(kernel)))
    padded = [F.pad(value, pads) for value in (x.mean, x.variance, exists)]
    for offsets in itertools.product(*(range(k) for k in kernel)):
        place: tuple[EllipsisType | slice, ...] = (..., *(
            slice(o * d, o * d + (n - 1) * s + 1, s)
            for o, n, s, d in zip(offsets, output, stride, dilation, strict=True)
        ))  # fmt: skip
        mean, variance, exists = (value[place] for value in padded)
        yield Moments(mean, variance), exists > 0


_maximum_rule(F.max_pool1d, (torch.max_pool1d,), F.max_pool1d_with_indices, 1)
_maximum_rule(F.max_pool2d, (torch.max_pool2d,), F.max_pool2d_with_indices, 2)
_maximum_rule(F.max_pool3d, (torch.max_pool3d,), F.max_pool3d_with_indices, 3)
layer(nn.MaxPool1d, F.max_pool1d, *_MAXIMUM)
layer(nn.MaxPool2d, F.max_pool2d, *_MAXIMUM)
layer(nn.MaxPool3d, F.max_pool3d, *_MAXIMUM)


def _unpool_rule(function: Callable[..., Tensor], module_type: type[nn.Module]) -> None:
    @rule(function)
    def unpool(x: Moments, indices: Tensor, *geometry: Any, **named: Any) -> Moments:
        """Every value back at its position, exact zeros elsewhere."""
        return map_within_channels(x, lambda v: function(v, indices, *geometry, **named))

    @rule(module_type)
    def unpool_layer(
        unpooling: nn.MaxUnpool2d, x: Moments, indices: Tensor, output_size: Any = None
    ) -> Moments:
        """As the function."""
        return unpool(
            x, indices, unpooling.kernel_size, unpooling.stride, unpooling.padding, output_size
        )


_unpool_rule(F.max_unpool1d, nn.MaxUnpool1d)
_unpool_rule(F.max_unpool2d, nn.MaxUnpool2d)
_unpool_rule(F.max_unpool3d, nn.MaxUnpool3d)

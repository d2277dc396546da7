"""Interpolation and padding: affine within channels, so squared weights are exact."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import (
    ChannelMoments,
    MixedMoments,
    Moments,
    map_within_channels,
)
from penumbra.propagation.registry import layer, rule


@rule(F.interpolate, F.upsample)
def interpolate(
    x: Moments, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Moments:  # fmt: skip
    """Σ w² V. Interpolation is separable, and so are its squared weights.

    The weights of each dimension are those of torch itself, found by interpolating a unit matrix.
    """
    dimensions = x.mean.dim() - 2

    def interpolated(value: Tensor, size: Any, scale_factor: Any) -> Tensor:
        result: Tensor = F.interpolate(
            value, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
        )
        return result

    def resample(value: Tensor) -> Tensor:
        return interpolated(value, size, scale_factor)

    def weights(length: int, axis: int, like: Tensor) -> Tensor:
        """(length, new length): the weight of each old element in each new one.

        Every axis is put along the last dimension: torch 2.13 computes antialiased columns of
        images that are one pixel wide wrongly.
        """
        other = dimensions - 1
        unit = torch.eye(length, dtype=like.dtype, device=like.device)
        unit = unit.reshape(1, length, *(1,) * other, length)
        new_size = None if size is None else [*(1,) * other, _of(size, axis)]
        new_scale = None if scale_factor is None else [*(1.0,) * other, _of(scale_factor, axis)]
        return interpolated(unit, new_size, new_scale).reshape(length, -1)

    def squared(variance: Tensor) -> Tensor:
        if mode.startswith("nearest"):
            return resample(variance)
        for axis in reversed(range(dimensions)):
            factor = weights(variance.shape[2 + axis], axis, variance).square()
            variance = (variance.movedim(2 + axis, -1) @ factor).movedim(-1, 2 + axis)
        return variance

    if x.mean.shape[2:].numel() == 1 and not isinstance(x, ChannelMoments):
        # One value for each channel, everywhere the same: noise that the channel shares.
        x = ChannelMoments(x.mean, None, (x.std,))
    alike = isinstance(x, MixedMoments) and x.dim == -1 - dimensions
    return map_within_channels(x, resample, squared=squared, alike=alike)


def _of(value: Any, axis: int) -> Any:
    return value[axis] if isinstance(value, (tuple, list, torch.Size)) else value


_RESAMPLING = ("size", "scale_factor", "mode", "align_corners")
layer(nn.Upsample, F.interpolate, *_RESAMPLING, "recompute_scale_factor")
layer(nn.UpsamplingNearest2d, F.interpolate, *_RESAMPLING)
layer(nn.UpsamplingBilinear2d, F.interpolate, *_RESAMPLING)


@rule(F.pad)
def pad(x: Moments, pad: Any, mode: str = "constant", value: float | None = None) -> Moments:
    """Constants are exact; reflected and repeated elements keep their variance.

    The diagonal does not know that repeated elements are equal; noise shared by a channel does.
    """
    if isinstance(value, Moments):
        raise PropagationError("the constant of a padding cannot be uncertain")
    x = x if len(pad) <= 2 * (x.mean.dim() - 2) else x.diagonal()
    return map_within_channels(
        x,
        lambda v: F.pad(v, pad, mode, value),
        lambda v: F.pad(v, pad, mode),
    )


def _padding_rule(mode: str, *module_types: type[nn.Module]) -> None:
    @rule(*module_types)
    def padding_layer(padding: nn.Module, x: Moments) -> Moments:
        """As `F.pad`."""
        return pad(x, padding.padding, mode, getattr(padding, "value", None))


_padding_rule("constant", nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)
_padding_rule("constant", nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)
_padding_rule("reflect", nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d)
_padding_rule("replicate", nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d)
_padding_rule("circular", nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d)


layer(nn.PixelShuffle, F.pixel_shuffle, "upscale_factor")
layer(nn.PixelUnshuffle, F.pixel_unshuffle, "downscale_factor")
layer(nn.ChannelShuffle, F.channel_shuffle, "groups")

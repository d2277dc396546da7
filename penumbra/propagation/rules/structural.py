"""Joining, splitting and rearranging values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import (
    ChannelMoments,
    CopiedMoments,
    MixedMoments,
    Moments,
    map_within_channels,
    own_and_shared,
)
from penumbra.propagation.registry import layer, rule


def rearranged(x: Moments, move: Callable[[Tensor], Tensor]) -> Moments:
    """The same elements at other positions; what is known of channels is dropped."""
    return Moments(move(x.mean), move(x.variance))


# ---- several values ------------------------------------------------------------------------------


def _variance_of(x: Tensor | Moments) -> Tensor:
    return x.variance if isinstance(x, Moments) else torch.zeros_like(x)


def _mean_of(x: Tensor | Moments) -> Tensor:
    return x.mean if isinstance(x, Moments) else x


@rule(torch.cat, torch.concat, torch.concatenate)
def concatenate(values: Sequence[Tensor | Moments], dim: int = 0) -> Moments:
    """Side by side. Exact values have variance zero; noise that a channel shares stays shared."""
    mean = torch.cat([_mean_of(v) for v in values], dim)
    shared = [v for v in values if isinstance(v, ChannelMoments)]
    if not shared or dim % mean.dim() != 1 or any(v.channels != v.mean.shape[1] for v in shared):
        return Moments(mean, torch.cat([_variance_of(v) for v in values], dim))
    exact: tuple[Tensor | None, tuple[Tensor, ...]] = (None, ())
    parts = [own_and_shared(v) if isinstance(v, Moments) else exact for v in values]
    zeros = [torch.zeros_like(_mean_of(v)) for v in values]
    independent = None
    if any(own is not None for own, _ in parts):
        filled = [zero if own is None else own for (own, _), zero in zip(parts, zeros, strict=True)]
        independent = torch.cat(filled, 1)
    count = max(len(factors) for _, factors in parts)
    factors = (
        torch.cat([f[k] if k < len(f) else z for (_, f), z in zip(parts, zeros, strict=True)], 1)
        for k in range(count)
    )
    return ChannelMoments(mean, independent, tuple(factors))


@rule(torch.stack)
def stack(values: Sequence[Tensor | Moments], dim: int = 0) -> Moments:
    """Along a new dimension."""
    return Moments(
        torch.stack([_mean_of(v) for v in values], dim),
        torch.stack([_variance_of(v) for v in values], dim),
    )


# ---- one value, elements at other positions ------------------------------------------------------


@rule(operator.getitem)
def item(x: Any, index: Any) -> Any:
    """An element of a tuple, or a part of an uncertain value."""
    if not isinstance(x, Moments):
        return x[index]
    entries = index if isinstance(index, tuple) else (index,)
    slices = all(isinstance(e, slice) or e is Ellipsis for e in entries)
    if isinstance(x, ChannelMoments) and _whole_channels(x) and slices:
        independent = None if x.independent is None else x.independent[index]
        return ChannelMoments(x.mean[index], independent, tuple(f[index] for f in x.factors))
    if isinstance(x, MixedMoments) and _keeps_dimension(x.dim, x.mean.dim(), entries):
        return x.moved(lambda v: v[index], lambda v: v[index])
    return Moments(x.mean[index], x.variance[index])


def _keeps_dimension(dim: int, dimensions: int, entries: tuple[Any, ...]) -> bool:
    """Whether an index of slices keeps all of a dimension (counted from the end)."""
    if not all(isinstance(e, slice) or e is Ellipsis for e in entries):
        return False
    around = Ellipsis in entries
    before = entries[: entries.index(Ellipsis)] if around else entries
    after = entries[len(before) + 1 :]
    if -dim <= len(after):
        return bool(after[dim] == slice(None))
    place = dimensions + dim
    return place >= len(before) or bool(before[place] == slice(None))


def _whole_channels(x: Moments) -> bool:
    """Whether noise is shared by the channels of dimension 1 (not by blocks of a flattened one)."""
    return isinstance(x, ChannelMoments) and x.channels == x.mean.shape[1]


@rule(torch.flatten, "flatten")
def flatten(x: Moments, start_dim: int = 0, end_dim: int = -1) -> Moments:
    """Channels become blocks; the next linear layer still knows that they share noise."""
    return reshape(x, x.mean.flatten(start_dim, end_dim).shape)


@rule(torch.reshape, "reshape", "view")
def reshape(x: Moments, *shape: Any, **named: Any) -> Moments:
    """As `flatten` if the result is (batch, everything else) or (batch, channels, …)."""
    old, new = x.mean.shape, x.mean.reshape(*shape, **named).shape
    kept = old[0] == new[0] and (len(new) == 2 or (_whole_channels(x) and old[1] == new[1]))
    return map_within_channels(x if kept else x.diagonal(), lambda v: v.reshape(new))


@rule("view_as", "reshape_as", "expand_as")
def shaped_like(x: Moments, other: Tensor | Moments) -> Moments:
    """The shape of another value."""
    if not isinstance(x, Moments):
        x = Moments(x, torch.zeros_like(x))
    shape = _mean_of(other).shape
    expands = x.mean.numel() != shape.numel()
    if expands:
        return copied_to(x, shape)
    return rearranged(x, lambda v: v.reshape(shape))


def copied_to(x: Moments, shape: torch.Size) -> Moments:
    """`x` expanded to a shape."""
    sizes = (1,) * (len(shape) - x.mean.dim()) + tuple(x.mean.shape)
    counts = tuple(new // old for new, old in zip(shape, sizes, strict=True))
    return CopiedMoments(x.mean.expand(shape), x.variance.expand(shape), counts)


layer(nn.Flatten, torch.flatten, "start_dim", "end_dim")


def _moving_rule(move: Callable[..., Any], *targets: Any) -> None:
    """Register an operation that only moves, copies or drops elements."""

    @rule(move, *targets)
    def moved(x: Moments, *arguments: Any, **named: Any) -> Any:
        """The same for mean and variance."""
        means = move(x.mean, *arguments, **named)
        variances = move(x.variance, *arguments, **named)
        if isinstance(means, Tensor):
            return Moments(means, variances)
        return tuple(Moments(m, v) for m, v in zip(means, variances, strict=True))


def _register_moves() -> None:
    """Functions of torch that are also methods of the same name, and methods."""
    for name in (
        "permute", "transpose", "swapaxes", "movedim", "squeeze", "unsqueeze", "unflatten", "flip",
        "roll", "narrow", "select", "index_select", "gather", "chunk", "split", "unbind",
        "tensor_split", "t", "swapdims", "moveaxis",
    ):  # fmt: skip
        _moving_rule(getattr(torch, name))
        _moving_rule(getattr(Tensor, name), name)  # x.permute(0, 2, 1) takes other arguments
    for function in (F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle):
        _moving_rule(function)


_register_moves()


def _copying_rule(copy: Callable[..., Tensor], *targets: Any) -> None:
    @rule(copy, *targets)
    def copies(x: Moments, *arguments: Any, **named: Any) -> Moments:
        """Every element several times; sums and means over the copies know that they are equal."""
        mean, variance = copy(x.mean, *arguments, **named), copy(x.variance, *arguments, **named)
        sizes = (1,) * (mean.dim() - x.mean.dim()) + tuple(x.mean.shape)
        counts = tuple(new // old if old else 1 for new, old in zip(mean.shape, sizes, strict=True))
        return CopiedMoments(mean, variance, counts)


for _name in ("tile", "broadcast_to", "repeat_interleave"):
    _copying_rule(getattr(torch, _name))
    _copying_rule(getattr(Tensor, _name), _name)
for _name in ("expand", "repeat"):
    _copying_rule(getattr(Tensor, _name), _name)


@rule(nn.Unflatten)
def unflatten_layer(unflatten: nn.Unflatten, x: Moments) -> Moments:
    """One dimension becomes several."""
    return rearranged(x, unflatten)


@rule(nn.Identity)
def identity(layer: nn.Identity, x: Moments) -> Moments:
    """The value itself, so that `x + identity(x)` is 2x."""
    return x


@rule(torch.clone, torch.detach, "clone", "detach", "contiguous")
def copied(x: Moments, **memory_format: Any) -> Moments:
    """The value itself: the walk overwrites nothing."""
    return x


def _conversion_rule(name: str) -> None:
    @rule(name)
    def converted(x: Tensor | Moments, *arguments: Any, **named: Any) -> Tensor | Moments:
        """Another type or device, perhaps that of an argument which is itself uncertain."""
        like = [_mean_of(argument) for argument in arguments]

        def convert(value: Tensor) -> Tensor:
            result: Tensor = getattr(value, name)(*like, **named)
            return result

        if not isinstance(x, Moments):
            return convert(x)
        unchanged = convert(x.mean) is x.mean
        return x if unchanged else map_within_channels(x, convert, alike=True)


for _name in ("to", "float", "double", "half", "bfloat16", "type_as", "cpu", "cuda"):
    _conversion_rule(_name)


# ---- exact properties of an uncertain value ------------------------------------------------------


@rule(getattr)
def attribute(x: Any, name: str) -> Any:
    """Shape, type, device and flags are exact; `.T` and `.mT` are transposes."""
    if not isinstance(x, Moments):  # a named tuple, such as torch.max returns
        return getattr(x, name)
    if name in ("T", "mT"):
        return rearranged(x, lambda v: getattr(v, name))
    value = getattr(x.mean, name)
    if value is None or isinstance(value, Tensor):
        raise PropagationError(f"the attribute .{name} of an uncertain value has no rule")
    return value


def _query_rule(ask: Callable[..., Any], *targets: Any) -> None:
    @rule(*targets)
    def query(x: Moments, *arguments: Any, **named: Any) -> Any:
        """A property of the shape, or an exact tensor of that shape."""
        return ask(x.mean, *arguments, **named)


for _name in (
    "size", "dim", "numel", "ndimension", "is_floating_point", "new_zeros", "new_ones", "new_full",
):  # fmt: skip
    _query_rule(getattr(Tensor, _name), _name)
for _like in (torch.zeros_like, torch.ones_like, torch.full_like, torch.numel):
    _query_rule(_like, _like)

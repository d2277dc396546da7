"""Arithmetic of values and the rearranging of their elements.

Two different uncertain values are taken as independent, which skip connections are only nearly: it
is the diagonal approximation. One value used twice is exact: `x + x` has four times the variance of
x, `x - x` none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import ChannelMoments, Moments, map_within_channels
from penumbra.propagation.registry import layer, rule


def rearranged(x: Moments, move: Callable[[Tensor], Tensor]) -> Moments:
    """The same elements in other places; what is known of channels is lost with their places."""
    return Moments(move(x.mean), move(x.variance))


# ---- arithmetic ----------------------------------------------------------------------------------


@rule(operator.add, operator.iadd, torch.add, "add", "add_", "__add__", "__radd__")
def add(x: Any, y: Any, *, alpha: float = 1) -> Moments:
    """V_x + α² V_y; a value added to itself: (1 + α)² V."""
    if x is y:
        return _scaled(x, 1 + alpha)
    if isinstance(x, Moments) and isinstance(y, Moments):
        return Moments(x.mean + alpha * y.mean, x.variance + alpha**2 * y.variance)
    if isinstance(x, Moments):
        return _shifted(x, alpha * y)
    return _shifted(_scaled(y, alpha), x)


@rule(operator.sub, operator.isub, torch.sub, torch.subtract, "sub", "sub_", "__sub__")
def subtract(x: Any, y: Any, *, alpha: float = 1) -> Moments:
    """V_x + α² V_y; a value minus itself is exactly zero."""
    return add(x, y, alpha=-alpha)


@rule(torch.rsub, "__rsub__", "rsub")
def subtract_from(x: Any, y: Any, *, alpha: float = 1) -> Moments:
    """y - α x."""
    return add(y, x, alpha=-alpha)


@rule(operator.neg, torch.neg, torch.negative, "neg", "negative")
def negate(x: Moments) -> Moments:
    """Var[-x] = Var[x]."""
    return _scaled(x, -1)


@rule(operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_", "__mul__", "__rmul__")
def multiply(x: Any, y: Any) -> Moments:
    """By an exact factor: a² V. By another uncertain value: x² V_y + y² V_x + V_x V_y."""
    if x is y:
        return square(x)
    if not isinstance(y, Moments):
        return _scaled(x, y)
    if not isinstance(x, Moments):
        return _scaled(y, x)
    variance = x.mean.square() * y.variance + x.variance * (y.mean.square() + y.variance)
    return Moments(x.mean * y.mean, variance)


@rule(operator.truediv, operator.itruediv, torch.div, torch.divide, "div", "div_", "__truediv__")
def divide(x: Any, y: Any, *, rounding_mode: str | None = None) -> Moments:
    """By an exact divisor: V / a²."""
    if isinstance(y, Moments):
        raise PropagationError(
            "division by an uncertain value has no finite variance: multiply by a value whose "
            "noise comes later, or register a rule of your own for it"
        )
    if rounding_mode is not None:
        raise PropagationError("division with rounding has no rule")
    return _scaled(x, 1 / y)


@rule(torch.square, "square")
def square(x: Moments) -> Moments:
    """X² of a Gaussian: E = μ² + σ², Var = 4 μ² σ² + 2 σ⁴."""
    mean, variance = x.mean, x.variance
    return Moments(mean.square() + variance, 4 * mean.square() * variance + 2 * variance.square())


@rule(operator.pow, torch.pow, "pow", "__pow__")
def power(x: Any, exponent: Any) -> Moments:
    """x² as `square`, x¹ as it is; no other power has a rule."""
    if (
        not isinstance(x, Moments)
        or isinstance(exponent, (Moments, Tensor))
        or exponent not in (1, 2)
    ):
        raise PropagationError(
            f"only the powers 1 and 2 of an uncertain value have a rule, not {exponent!r}"
        )
    return square(x) if exponent == 2 else x


@rule(torch.exp, "exp")
def exponential(x: Moments) -> Moments:
    """e^X of a Gaussian (log-normal): E = exp(μ + σ²/2), Var = E² (exp(σ²) - 1)."""
    mean = torch.exp(x.mean + 0.5 * x.variance)
    return Moments(mean, mean.square() * torch.expm1(x.variance))


def _scaled(x: Moments, factor: float | Tensor) -> Moments:
    """x times an exact factor."""
    x = x if _fits(x, factor) else x.diagonal()
    return map_within_channels(x, lambda v: v * factor, squared=lambda v: v * (factor * factor))


def _shifted(x: Moments, constant: float | Tensor) -> Moments:
    """x plus an exact constant."""
    x = x if _fits(x, constant) else x.diagonal()
    mean = x.mean + constant
    return map_within_channels(
        x, lambda v: v + constant, lambda v: v.expand_as(mean) if v.shape != mean.shape else v
    )


def _fits(x: Moments, other: float | Tensor) -> bool:
    """Whether arithmetic with `other` leaves x's shape, and so the meaning of its channels."""
    return not isinstance(other, Tensor) or (
        torch.broadcast_shapes(x.mean.shape, other.shape) == x.mean.shape
    )


# ---- sums over dimensions ------------------------------------------------------------------------


@rule(torch.sum, "sum")
def total(x: Moments, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Moments:
    """Var[Σ x] = Σ V."""
    x = x if _keeps_channels(x, dim) else x.diagonal()
    dims = _dimensions(x, dim)
    return map_within_channels(x, lambda v: v.sum(dims, keepdim=keepdim, dtype=dtype))


@rule(torch.mean, "mean")
def average(x: Moments, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Moments:
    """Var[Σ x / n] = Σ V / n²."""
    x = x if _keeps_channels(x, dim) else x.diagonal()
    dims = _dimensions(x, dim)
    n = 1
    for dimension in dims:
        n = n * x.mean.shape[dimension]
    return map_within_channels(
        x,
        lambda v: v.mean(dims, keepdim=keepdim, dtype=dtype),
        squared=lambda v: v.mean(dims, keepdim=keepdim, dtype=dtype) / n,
    )


def _dimensions(x: Moments, dim: Any) -> tuple[int, ...]:
    count = x.mean.dim()
    dims = range(count) if dim is None else dim if isinstance(dim, Sequence) else (dim,)
    return tuple(d % count for d in dims)


def _keeps_channels(x: Moments, dim: Any) -> bool:
    return isinstance(x, ChannelMoments) and all(d >= 2 for d in _dimensions(x, dim))


# ---- several values ------------------------------------------------------------------------------


def _variance_of(x: Tensor | Moments) -> Tensor:
    return x.variance if isinstance(x, Moments) else torch.zeros_like(x)


def _mean_of(x: Tensor | Moments) -> Tensor:
    return x.mean if isinstance(x, Moments) else x


@rule(torch.cat, torch.concat, torch.concatenate)
def concatenate(
    values: Sequence[Tensor | Moments], dim: int = 0, *, axis: int | None = None
) -> Moments:
    """Side by side; exact values have no variance."""
    dim = dim if axis is None else axis
    return Moments(
        torch.cat([_mean_of(v) for v in values], dim),
        torch.cat([_variance_of(v) for v in values], dim),
    )


@rule(torch.stack)
def stack(values: Sequence[Tensor | Moments], dim: int = 0) -> Moments:
    """One above the other."""
    return Moments(
        torch.stack([_mean_of(v) for v in values], dim),
        torch.stack([_variance_of(v) for v in values], dim),
    )


# ---- one value, elements in other places ---------------------------------------------------------


@rule(operator.getitem)
def item(x: Any, index: Any) -> Any:
    """An element of a tuple, or a part of an uncertain value."""
    if not isinstance(x, Moments):
        return x[index]
    entries = index if isinstance(index, tuple) else (index,)
    if entries[0] is Ellipsis:
        spatial = entries[1:] if len(entries) - 1 <= x.mean.dim() - 2 else None
    else:
        spatial = entries[2:] if all(entry == slice(None) for entry in entries[:2]) else None
    crop = spatial is not None and all(isinstance(entry, slice) for entry in spatial)
    return map_within_channels(x if crop else x.diagonal(), lambda v: v[index])


@rule(torch.flatten, "flatten")
def flatten(x: Moments, start_dim: int = 0, end_dim: int = -1) -> Moments:
    """Channels become blocks, whose shared noise the next linear layer still sees."""
    whole = start_dim == 1 and end_dim in (-1, x.mean.dim() - 1)
    return map_within_channels(
        x if whole else x.diagonal(), lambda v: v.flatten(start_dim, end_dim)
    )


@rule(torch.reshape, "reshape", "view")
def reshape(x: Moments, *shape: Any, **named: Any) -> Moments:
    """As `flatten` where the result is (batch, everything else)."""
    mean = x.mean.reshape(*shape, **named)
    flat = mean.dim() == 2 and mean.shape[0] == x.mean.shape[0]
    return map_within_channels(x if flat else x.diagonal(), lambda v: v.reshape(*shape, **named))


@rule("view_as", "reshape_as", "expand_as")
def shaped_like(x: Moments, other: Tensor | Moments) -> Moments:
    """The shape of another value."""
    shape = _mean_of(other).shape
    expands = x.mean.numel() != shape.numel()
    return rearranged(x, lambda v: v.expand(shape) if expands else v.reshape(shape))


layer(nn.Flatten, torch.flatten, "start_dim", "end_dim")


def _moving_rule(move: Callable[..., Any], *targets: Any) -> None:
    """Register an operation that only moves, copies or leaves out elements."""

    @rule(move, *targets)
    def moved(x: Moments, *arguments: Any, **named: Any) -> Any:
        """Mean and variance alike."""
        means = move(x.mean, *arguments, **named)
        variances = move(x.variance, *arguments, **named)
        if isinstance(means, Tensor):
            return Moments(means, variances)
        return tuple(Moments(m, v) for m, v in zip(means, variances, strict=True))


def _register_moves() -> None:
    """Functions of torch that exist as methods of the same name, and methods alone."""
    for name in (
        "permute", "transpose", "swapaxes", "movedim", "squeeze", "unsqueeze", "unflatten", "flip",
        "roll", "narrow", "select", "index_select", "gather", "tile", "chunk", "split", "unbind",
        "tensor_split", "t", "clone", "detach", "broadcast_to", "repeat_interleave",
    ):  # fmt: skip
        _moving_rule(getattr(torch, name), name)
    for name in (
        "expand", "repeat", "contiguous", "to", "float", "double", "half", "type_as", "cpu", "cuda",
    ):  # fmt: skip
        _moving_rule(getattr(Tensor, name), name)
    for function in (F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle):
        _moving_rule(function)


_register_moves()


@rule(nn.Unflatten)
def unflatten_layer(unflatten: nn.Unflatten, x: Moments) -> Moments:
    """One dimension becomes several."""
    return rearranged(x, unflatten)


@rule(nn.Identity)
def identity(layer: nn.Identity, x: Moments) -> Moments:
    """The value itself, so that `x + identity(x)` is known to be 2x."""
    return x


# ---- what is exact of an uncertain value ---------------------------------------------------------


@rule(getattr)
def attribute(x: Moments, name: str) -> Any:
    """Shape, type and device are exact; `.T` and `.mT` are transposes."""
    if name in ("T", "mT"):
        return rearranged(x, lambda v: getattr(v, name))
    if name not in ("shape", "ndim", "dtype", "device", "is_cuda"):
        raise PropagationError(f"the attribute .{name} of an uncertain value has no rule")
    return getattr(x.mean, name)


def _query_rule(name: str) -> None:
    @rule(name)
    def query(x: Moments, *arguments: Any) -> Any:
        """A property of the shape."""
        return getattr(x.mean, name)(*arguments)


for _name in ("size", "dim", "numel", "ndimension", "is_floating_point"):
    _query_rule(_name)

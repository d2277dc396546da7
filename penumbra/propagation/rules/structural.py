"""Arithmetic of values and the rearranging of their elements.

Two different uncertain values are taken as independent, which skip connections are only nearly: it
is the diagonal approximation. One value used twice is exact, also scaled and shifted: `x + x` has
four times the variance of x, `x - x` none, `x - x / 2` a quarter. Rearranged (`x + x.flip(0)`,
`x @ x.mT`) or sent through another layer it counts as a different value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
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


def rearranged(x: Moments, move: Callable[[Tensor], Tensor]) -> Moments:
    """The same elements in other places; what is known of channels is lost with their places."""
    return Moments(move(x.mean), move(x.variance))


# ---- arithmetic ----------------------------------------------------------------------------------


@rule(operator.add, operator.iadd, torch.add, "add", "add_", "__add__", "__radd__")
def add(x: Any, y: Any, *, alpha: float = 1) -> Moments:
    """V_x + α² V_y; two views a·z, b·z of one value: (a + αb)² V_z."""
    if not isinstance(x, Moments):
        return _moved(y, alpha, x + alpha * y.mean)
    if not isinstance(y, Moments):
        return _moved(x, 1, x.mean + alpha * y)
    (source, a), (other, b) = _origin(x), _origin(y)
    if source is other:
        return _moved(source, a + alpha * b, x.mean + alpha * y.mean)
    return _sum(x, y if alpha == 1 else _moved(y, alpha, alpha * y.mean))


def _sum(x: Moments, y: Moments) -> Moments:
    """Of independent values. Noise that either shares along its channels stays shared."""
    mean = x.mean + y.mean
    blocks = {v.channels for v in (x, y) if isinstance(v, ChannelMoments)}
    if len(blocks) != 1 or not mean.shape == x.mean.shape == y.mean.shape:
        return Moments(mean, x.variance + y.variance)
    (one, some), (two, others) = _parts(x), _parts(y)
    independent = one + two if one is not None and two is not None else one if two is None else two
    return ChannelMoments(mean, independent, some + others, blocks.pop())


def _parts(x: Moments) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """The variance that is each element's own, and the factors that channels share."""
    return (x.independent, x.factors) if isinstance(x, ChannelMoments) else (x.variance, ())


@rule(operator.sub, operator.isub, torch.sub, torch.subtract, "sub", "sub_", "subtract", "__sub__")
def subtract(x: Any, y: Any, *, alpha: float = 1) -> Moments:
    """V_x + α² V_y; a value minus itself is exactly zero."""
    return add(x, y, alpha=-alpha)


@rule(torch.rsub, "__rsub__", "rsub")
def subtract_from(x: Any, y: Any, *, alpha: float = 1) -> Moments:
    """y - α x."""
    return add(y, x, alpha=-alpha)


@rule(operator.neg, torch.neg, torch.negative, "neg", "neg_", "negative")
def negate(x: Moments) -> Moments:
    """Var[-x] = Var[x]."""
    return _moved(x, -1, -x.mean)


@rule(
    operator.mul, operator.imul, torch.mul, torch.multiply,
    "mul", "mul_", "multiply", "__mul__", "__rmul__",
)  # fmt: skip
def multiply(x: Any, y: Any) -> Moments:
    """By an exact factor: a² V. By another uncertain value: x² V_y + y² V_x + V_x V_y.

    Two views of one Gaussian z, x = a·z + c and y = b·z + d: with V of z,
    E = x y + ab V and Var = (a y + b x)² V + 2 a²b² V².
    """
    if not isinstance(y, Moments):
        return _moved(x, y, x.mean * y)
    if not isinstance(x, Moments):
        return _moved(y, x, x * y.mean)
    (source, a), (other, b) = _origin(x), _origin(y)
    if source is other:
        v = source.variance
        slope = a * y.mean + b * x.mean
        curved = a * b * v
        return Moments(x.mean * y.mean + curved, slope.square() * v + 2 * curved.square())
    variance = x.mean.square() * y.variance + x.variance * (y.mean.square() + y.variance)
    return Moments(x.mean * y.mean, variance)


@rule(
    operator.truediv, operator.itruediv, torch.div, torch.divide, torch.true_divide,
    "div", "div_", "divide", "true_divide", "__truediv__",
)  # fmt: skip
def divide(x: Any, y: Any, *, rounding_mode: str | None = None) -> Moments:
    """By an exact divisor: V / a²."""
    if isinstance(y, Moments):
        raise PropagationError(
            "division by an uncertain value has no finite variance: multiply by a value whose "
            "noise comes later, or register a rule of your own for it"
        )
    if rounding_mode is not None:
        raise PropagationError("division with rounding has no rule")
    return _moved(x, 1 / y, x.mean / y)


@rule(torch.square, torch.square_, "square", "square_")
def square(x: Moments) -> Moments:
    """X² of a Gaussian: E = μ² + σ², Var = 4 μ² σ² + 2 σ⁴."""
    return multiply(x, x)


@rule(operator.pow, operator.ipow, torch.pow, "pow", "pow_", "__pow__")
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


@rule(torch.exp, torch.exp_, "exp", "exp_")
def exponential(x: Moments) -> Moments:
    """e^X of a Gaussian (log-normal): E = exp(μ + σ²/2), Var = E² (exp(σ²) - 1)."""
    mean = torch.exp(x.mean + 0.5 * x.variance)
    return Moments(mean, mean.square() * torch.expm1(x.variance))


def _moved(x: Moments, factor: float | Tensor, mean: Tensor) -> Moments:
    """factor·x plus whatever constant gives this mean; it remembers that it was made from x."""
    if mean.shape != x.mean.shape:  # copies of elements: the diagonal forgets that they are equal
        return Moments(mean, (x.variance * (factor * factor)).expand(mean.shape))
    shifted = not isinstance(factor, Tensor) and factor == 1
    result = map_within_channels(
        x,
        lambda _: mean,
        lambda v: v if shifted else v * factor,
        lambda v: v if shifted else v * (factor * factor),
        alike=not isinstance(factor, Tensor),
    )
    source, gain = _origin(x)
    object.__setattr__(result, "origin", (source, gain * factor))
    return result


def _origin(x: Moments) -> tuple[Moments, float | Tensor]:
    """The value z and the factor a of x = a·z + constant, as far as arithmetic knows."""
    return x.origin or (x, 1)


# ---- sums over dimensions ------------------------------------------------------------------------


@rule(torch.sum, "sum")
def total(x: Moments, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Moments:
    """Var[Σ x] = Σ V; what a channel shares is summed before it is squared."""
    return _reduced(Tensor.sum, x, dim, keepdim, dtype)


@rule(torch.mean, "mean")
def average(x: Moments, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Moments:
    """Var[Σ x / n] = Σ V / n²."""
    return _reduced(Tensor.mean, x, dim, keepdim, dtype)


def _reduced(
    reduce: Callable[..., Tensor], x: Moments, dim: Any, keepdim: bool, dtype: Any
) -> Moments:
    dims = _dimensions(x.mean.dim(), dim)
    positions = tuple(d for d in dims if d >= 2)
    if isinstance(x, ChannelMoments) and positions != dims:
        # Within channels first, where noise is shared; then over channels and batch, where it
        # is not.
        x = _reduced(reduce, x, positions, True, dtype) if positions else x
        x = x.diagonal()
    n = math.prod(x.mean.shape[d] for d in dims) if reduce is Tensor.mean else 1
    return map_within_channels(
        x,
        lambda v: reduce(v, dims, keepdim=keepdim, dtype=dtype),
        squared=lambda v: reduce(v, dims, keepdim=keepdim, dtype=dtype) / n,
    )


def _dimensions(count: int, dim: Any) -> tuple[int, ...]:
    dims = range(count) if dim is None else dim if isinstance(dim, Sequence) else (dim,)
    if not all(-count <= d < count for d in dims):
        raise PropagationError(f"dimension {dim} of a value with {count} dimensions")
    return tuple(d % count for d in dims)


# ---- several values ------------------------------------------------------------------------------


def _variance_of(x: Tensor | Moments) -> Tensor:
    return x.variance if isinstance(x, Moments) else torch.zeros_like(x)


def _mean_of(x: Tensor | Moments) -> Tensor:
    return x.mean if isinstance(x, Moments) else x


@rule(torch.cat, torch.concat, torch.concatenate)
def concatenate(values: Sequence[Tensor | Moments], dim: int = 0) -> Moments:
    """Side by side; exact values have no variance, and channels share what they shared."""
    mean = torch.cat([_mean_of(v) for v in values], dim)
    shared = [v for v in values if isinstance(v, ChannelMoments)]
    if not shared or dim % mean.dim() != 1 or any(v.channels != v.mean.shape[1] for v in shared):
        return Moments(mean, torch.cat([_variance_of(v) for v in values], dim))
    parts = [_parts(v) if isinstance(v, Moments) else (None, ()) for v in values]
    zeros = [torch.zeros_like(_mean_of(v)) for v in values]
    independent = None
    if any(own is not None for own, _ in parts):
        own = [zero if own is None else own for (own, _), zero in zip(parts, zeros, strict=True)]
        independent = torch.cat(own, 1)
    count = max(len(factors) for _, factors in parts)
    factors = (
        torch.cat([f[k] if k < len(f) else z for (_, f), z in zip(parts, zeros, strict=True)], 1)
        for k in range(count)
    )
    return ChannelMoments(mean, independent, tuple(factors))


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
    if _whole_channels(x) and all(isinstance(e, slice) or e is Ellipsis for e in entries):
        independent = None if x.independent is None else x.independent[index]
        return ChannelMoments(x.mean[index], independent, tuple(f[index] for f in x.factors))
    if isinstance(x, MixedMoments) and _keeps_dimension(x.dim, x.mean.dim(), entries):
        return x.moved(lambda v: v[index], lambda v: v[index])
    return Moments(x.mean[index], x.variance[index])


def _keeps_dimension(dim: int, dimensions: int, entries: tuple) -> bool:
    """Whether an index of slices takes the whole of a dimension (counted from the end)."""
    if not all(isinstance(e, slice) or e is Ellipsis for e in entries):
        return False
    around = Ellipsis in entries
    before = entries[: entries.index(Ellipsis)] if around else entries
    after = entries[len(before) + 1 :]
    if -dim <= len(after):
        return after[dim] == slice(None)
    place = dimensions + dim
    return place >= len(before) or before[place] == slice(None)


def _whole_channels(x: Moments) -> bool:
    """Whether noise is shared by channels as dimension 1 has them (not by blocks, flattened)."""
    return isinstance(x, ChannelMoments) and x.channels == x.mean.shape[1]


@rule(torch.flatten, "flatten")
def flatten(x: Moments, start_dim: int = 0, end_dim: int = -1) -> Moments:
    """Channels become blocks, whose shared noise the next linear layer still sees."""
    return reshape(x, x.mean.flatten(start_dim, end_dim).shape)


@rule(torch.reshape, "reshape", "view")
def reshape(x: Moments, *shape: Any, **named: Any) -> Moments:
    """As `flatten` where the result is (batch, everything else) or (batch, channels, …)."""
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
        "tensor_split", "t", "broadcast_to", "repeat_interleave", "swapdims", "moveaxis",
    ):  # fmt: skip
        _moving_rule(getattr(torch, name))
        _moving_rule(getattr(Tensor, name), name)  # x.permute(0, 2, 1) is no torch.permute call
    for name in ("expand", "repeat"):
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


@rule(torch.clone, torch.detach, "clone", "detach", "contiguous")
def copied(x: Moments, **memory_format: Any) -> Moments:
    """The value itself: the walk overwrites nothing."""
    return x


def _conversion_rule(name: str) -> None:
    @rule(name)
    def converted(x: Tensor | Moments, *arguments: Any, **named: Any) -> Tensor | Moments:
        """Another type or device, taken from an argument that may be uncertain itself."""
        like = [_mean_of(argument) for argument in arguments]

        def convert(value: Tensor) -> Tensor:
            return getattr(value, name)(*like, **named)

        if not isinstance(x, Moments):
            return convert(x)
        unchanged = convert(x.mean) is x.mean
        return x if unchanged else map_within_channels(x, convert, alike=True)


for _name in ("to", "float", "double", "half", "bfloat16", "type_as", "cpu", "cuda"):
    _conversion_rule(_name)


# ---- what is exact of an uncertain value ---------------------------------------------------------


@rule(getattr)
def attribute(x: Moments, name: str) -> Any:
    """Shape, type and device are exact; `.T` and `.mT` are transposes."""
    if name in ("T", "mT"):
        return rearranged(x, lambda v: getattr(v, name))
    if name not in ("shape", "ndim", "dtype", "device", "is_cuda"):
        raise PropagationError(f"the attribute .{name} of an uncertain value has no rule")
    return getattr(x.mean, name)


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

"""Arithmetic of values, and sums over their dimensions.

Two different uncertain values are taken as independent, which is only approximately true of skip
connections (the diagonal approximation). One value used twice is exact, also scaled and shifted:
`x + x` has four times the variance of x, `x - x` none, `x - x / 2` a quarter. A rearranged value
(`x + x.flip(0)`, `x @ x.mT`), or one behind another layer, counts as a different value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import (
    ChannelMoments,
    CopiedMoments,
    Moments,
    map_within_channels,
    own_and_shared,
)
from penumbra.propagation.registry import rule


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
    """The sum of independent values. Noise that a channel shares stays shared."""
    mean = x.mean + y.mean
    blocks = {v.channels for v in (x, y) if isinstance(v, ChannelMoments)}
    if len(blocks) != 1 or not mean.shape == x.mean.shape == y.mean.shape:
        return Moments(mean, x.variance + y.variance)
    (one, some), (two, others) = own_and_shared(x), own_and_shared(y)
    independent = one + two if one is not None and two is not None else one if two is None else two
    return ChannelMoments(mean, independent, some + others, blocks.pop())


@rule(operator.sub, operator.isub, torch.sub, torch.subtract, "sub", "sub_", "subtract", "__sub__")
def subtract(x: Any, y: Any, *, alpha: float = 1) -> Moments:
    """V_x + α² V_y; zero for a value minus itself."""
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
    product = x.mean * y.mean
    if product.shape != x.mean.shape and is_one_per_channel(x, product):
        x, y = y, x
    if product.shape != y.mean.shape and is_one_per_channel(y, product):  # a gate
        own = x.variance * (y.mean.square() + y.variance)
        return ChannelMoments(product, own, (x.mean * y.std,))
    variance = x.mean.square() * y.variance + x.variance * (y.mean.square() + y.variance)
    return Moments(product, variance)


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
    """x² as `square`, x¹ unchanged; other powers have no rule."""
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
    """factor·x plus the constant that gives this mean; the result remembers x as its origin."""
    if mean.shape != x.mean.shape:
        return _broadcast(x, factor, mean)
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


def _broadcast(x: Moments, factor: float | Tensor, mean: Tensor) -> Moments:
    """factor·x as copies; one value for each channel is noise that the channel shares."""
    if is_one_per_channel(x, mean):
        return ChannelMoments(mean, None, ((x.std * factor).expand(mean.shape),))
    variance = (x.variance * (factor * factor)).expand(mean.shape)
    if isinstance(factor, Tensor) and factor.numel() > 1:  # copies that differ
        return Moments(mean, variance)
    sizes = (1,) * (mean.dim() - x.mean.dim()) + tuple(x.mean.shape)
    counts = tuple(new // old if old else 1 for new, old in zip(mean.shape, sizes, strict=True))
    return CopiedMoments(mean, variance, counts)


def is_one_per_channel(x: Moments, result: Tensor) -> bool:
    """Whether x is (batch, channels, 1, …) and the result has more positions: a gate, or a bias."""
    old, new = x.mean.shape, result.shape
    return len(old) == len(new) > 2 and old[:2] == new[:2] and old[2:].numel() == 1


def _origin(x: Moments) -> tuple[Moments, float | Tensor]:
    """The value z and the factor a of x = a·z + constant, if x was made by arithmetic."""
    return x.origin or (x, 1)


# ---- sums over dimensions ------------------------------------------------------------------------


@rule(torch.sum, "sum")
def total(x: Moments, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Moments:
    """Var[Σ x] = Σ V; factors that a channel shares are summed before they are squared."""
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
        # First within channels, which share noise; then over channels and batch, which do not.
        x = _reduced(reduce, x, positions, True, dtype) if positions else x
        x = x.diagonal()
    n = math.prod(x.mean.shape[d] for d in dims) if reduce is Tensor.mean else 1
    # c copies of one element sum to c² of its variance, not c.
    copies = math.prod(x.counts[d] for d in dims) if isinstance(x, CopiedMoments) else 1
    return map_within_channels(
        x,
        lambda v: reduce(v, dims, keepdim=keepdim, dtype=dtype),
        squared=lambda v: reduce(v, dims, keepdim=keepdim, dtype=dtype) * (copies / n),
    )


def _dimensions(count: int, dim: Any) -> tuple[int, ...]:
    dims = range(count) if dim is None else dim if isinstance(dim, Sequence) else (dim,)
    if not all(-count <= d < count for d in dims):
        raise PropagationError(f"dimension {dim} of a value with {count} dimensions")
    return tuple(d % count for d in dims)

"""Choosing elements: by a mask, the largest of a dimension, windows as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import Moments, map_within_channels
from penumbra.propagation.registry import layer, rule
from penumbra.propagation.rules.arithmetic import negate
from penumbra.propagation.rules.pooling import gather_positions, maximum_of_gaussians


def _parts(x: Any, like: Tensor) -> tuple[Any, Any]:
    """Mean and variance of an argument that may be exact, or a number."""
    if isinstance(x, Moments):
        return x.mean, x.variance
    return x, torch.zeros((), dtype=like.dtype, device=like.device)


@rule(torch.where)
def where(condition: Any, x: Any, y: Any) -> Moments:
    """The moments of the value that is chosen; the choice itself must be exact."""
    if isinstance(condition, Moments):
        raise PropagationError("the condition of torch.where is uncertain, which has no rule")
    like = x.mean if isinstance(x, Moments) else y.mean
    (a, v), (b, w) = _parts(x, like), _parts(y, like)
    return Moments(torch.where(condition, a, b), torch.where(condition, v, w))


@rule("where")
def where_method(x: Any, condition: Any, y: Any) -> Moments:
    """x.where(condition, y)."""
    return where(condition, x, y)


@rule(torch.masked_fill, "masked_fill", "masked_fill_")
def masked_fill(x: Any, mask: Tensor, value: Any) -> Moments:
    """Constants have variance zero."""
    return where(mask, value, x)


# ---- the largest ---------------------------------------------------------------------------------


class Largest(NamedTuple):
    """What torch.max returns for a dimension."""

    values: Moments
    indices: Tensor


def _largest(x: Moments, dims: tuple[int, ...], keepdim: bool, form: str) -> Largest:
    """Over `dims`: the element with the largest mean, or the maximum of independent Gaussians."""
    kept = [d for d in range(x.mean.dim()) if d not in dims]

    def flat(value: Tensor) -> Tensor:
        return value.permute(*kept, *dims).flatten(len(kept))

    typical, mean, variance = flat(x.typical), flat(x.mean), flat(x.variance)
    indices = typical.argmax(-1, keepdim=True)
    if form == "moment":
        best = _tournament(Moments(mean, variance))
        mean, variance = best.mean, best.variance
    else:
        mean, variance = mean.gather(-1, indices), variance.gather(-1, indices)
    shape = [1 if d in dims else size for d, size in enumerate(x.mean.shape)]
    if not keepdim:
        shape = [size for d, size in enumerate(shape) if d not in dims]
    return Largest(Moments(mean.reshape(shape), variance.reshape(shape)), indices.reshape(shape))


def _tournament(x: Moments) -> Moments:
    """The maximum over the last dimension, pair by pair (see `maximum_of_gaussians`)."""
    while x.mean.shape[-1] > 1:
        half = x.mean.shape[-1] // 2
        rest = Moments(x.mean[..., 2 * half :], x.variance[..., 2 * half :])
        both = maximum_of_gaussians(
            Moments(x.mean[..., :half], x.variance[..., :half]),
            Moments(x.mean[..., half : 2 * half], x.variance[..., half : 2 * half]),
        )
        x = Moments(
            torch.cat([both.mean, rest.mean], -1), torch.cat([both.variance, rest.variance], -1)
        )
    return x


def _over(x: Moments, dim: Any) -> tuple[int, ...]:
    count = x.mean.dim()
    dims = (
        range(count)
        if dim is None or dim == ()
        else dim
        if isinstance(dim, (tuple, list))
        else (dim,)
    )
    return tuple(d % count for d in dims)


def _maximum_rules(form: str) -> None:
    @rule(torch.amax, "amax", max_pool=form)
    def amax(x: Moments, dim: Any = (), keepdim: bool = False) -> Moments:
        """The largest of some dimensions."""
        return _largest(x, _over(x, dim), keepdim, form).values

    @rule(torch.amin, "amin", max_pool=form)
    def amin(x: Moments, dim: Any = (), keepdim: bool = False) -> Moments:
        """-max(-x)."""
        return negate(amax(negate(x), dim, keepdim))

    @rule(torch.max, "max", max_pool=form)
    def maximum(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        """Of two values, of a dimension (with indices), or of everything."""
        if isinstance(x, Moments) and (dim is None or isinstance(dim, int)):
            found = _largest(x, _over(x, dim), keepdim, form)
            return found.values if dim is None else found
        return largest_of_two(x, dim)

    @rule(torch.min, "min", max_pool=form)
    def minimum(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        """-max(-x)."""
        if isinstance(x, Moments) and (dim is None or isinstance(dim, int)):
            found = _largest(negate(x), _over(x, dim), keepdim, form)
            return negate(found.values) if dim is None else Largest(negate(found.values), found[1])
        return smallest_of_two(x, dim)

    @rule(torch.maximum, "maximum", max_pool=form)
    def largest_of_two(x: Any, y: Any) -> Moments:
        """The value with the larger mean, or the maximum of two independent Gaussians (exact)."""
        a, b = (
            value if isinstance(value, Moments) else Moments(value, torch.zeros_like(value))
            for value in (x, y)
        )
        if form == "moment":
            return maximum_of_gaussians(a, b)
        first = a.mean >= b.mean
        return Moments(torch.maximum(a.mean, b.mean), torch.where(first, a.variance, b.variance))

    @rule(torch.minimum, "minimum", max_pool=form)
    def smallest_of_two(x: Any, y: Any) -> Moments:
        """-max(-x, -y)."""
        x, y = (negate(value) if isinstance(value, Moments) else -value for value in (x, y))
        return negate(largest_of_two(x, y))


_maximum_rules("argmax")
_maximum_rules("moment")


def _adaptive_maximum_rule(
    pool: Callable[..., Any], with_indices: Any, module_type: type[nn.Module], dimensions: int
) -> None:
    @rule(pool, with_indices)
    def adaptive_maximum(x: Moments, output_size: Any, return_indices: bool = False) -> Any:
        """The element with the largest mean of each window, under both options of `max_pool`.

        Windows of different sizes have no fold: the maximum of Gaussians is that of fixed windows.
        """
        _, indices = with_indices(x.typical, output_size)
        chosen = map_within_channels(x, lambda v: gather_positions(v, indices, dimensions))
        return (chosen, indices) if return_indices else chosen

    layer(module_type, pool, "output_size", "return_indices")


_adaptive_maximum_rule(
    F.adaptive_max_pool1d, F.adaptive_max_pool1d_with_indices, nn.AdaptiveMaxPool1d, 1
)
_adaptive_maximum_rule(
    F.adaptive_max_pool2d, F.adaptive_max_pool2d_with_indices, nn.AdaptiveMaxPool2d, 2
)
_adaptive_maximum_rule(
    F.adaptive_max_pool3d, F.adaptive_max_pool3d_with_indices, nn.AdaptiveMaxPool3d, 3
)


# ---- windows as columns --------------------------------------------------------------------------


@rule(F.unfold)
def unfold(
    x: Moments, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Moments:
    """Windows as columns: copies of elements, zeros outside. Mean and variance are moved alike."""
    arguments = (kernel_size, dilation, padding, stride)
    return Moments(F.unfold(x.mean, *arguments), F.unfold(x.variance, *arguments))


layer(nn.Unfold, F.unfold, "kernel_size", "dilation", "padding", "stride")

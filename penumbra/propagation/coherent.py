"""Noise that moves many elements together, carried through the network: `coherent=True`.

Stochastic depth scales a whole image, `Dropout2d` a whole channel. Behind a mixing layer all
outputs then vary together, and a mean over positions does not average the noise away. A value is

    x = mean + e + Σ_r f_r ε_r,       Var[x] = independent + Σ_r f_r²,

where the elements of e are independent and every source ε_r, with variance one, is the same in the
whole network: also along a skip connection. A rule gives the mean m(μ, V) and the variance behind a
layer. The factors follow its derivative, f' = ∂m/∂μ · f: exact for affine layers, pooling and
resampling; for an activation of a Gaussian it is Cov(g(X), ε_r) = E[g'(X)] f_r (Stein), since
E[g'(X)] = ∂E[g(X)]/∂μ.

Cost: one more pass of what follows for each layer of stochastic depth, and one for each channel of
a `Dropout2d`. Such a walk is for PyTorch and is not exported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import ChannelMoments, Moments
from penumbra.propagation.registry import Rule, Target
from penumbra.propagation.rules.noise import dropout_variance
from penumbra.propagation.rules.stochastic_depth import SHARED_BY_ALL, rate_of

_LARGEST = 1 << 29  # elements of all factors of one value: 2 GB in single precision
_SOURCES = itertools.count()
_MIXING = (nn.Linear, _ConvNd)
_MIXING_FUNCTIONS = {
    F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d,
    F.conv_transpose3d,
}  # fmt: skip
# Affine, with the batch first: all factors go through at once.
_AFFINE = (*_MIXING, _BatchNorm, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Upsample)
_AFFINE_FUNCTIONS = {
    *_MIXING_FUNCTIONS, F.avg_pool2d, F.adaptive_avg_pool2d, F.interpolate, F.batch_norm,
}  # fmt: skip
_ELEMENTWISE = (
    "relu", "elu", "selu", "celu", "gelu", "silu", "mish", "sigmoid", "tanh", "softplus",
    "hardtanh", "hardswish", "relu6", "leakyrelu", "leaky_relu", "prelu", "logsigmoid",
    "clamp", "clip", "abs", "exp", "log", "sqrt", "square", "hardsigmoid", "dropout", "sigmoid_",
    "relu_", "tanh_",
)  # fmt: skip
_CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class CoherentMoments(Moments):
    """Moments with factors (sources, *shape) of the sources that they are of."""

    independent: Tensor
    factors: Tensor
    sources: tuple[int, ...]

    def __init__(
        self, mean: Tensor, independent: Tensor, factors: Tensor, sources: tuple[int, ...]
    ) -> None:
        for name, value in (
            ("mean", mean),
            ("independent", independent),
            ("factors", factors),
            ("sources", sources),
        ):
            object.__setattr__(self, name, value)

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance."""
        return self.independent + self.factors.square().sum(0)


def coherent_call(
    target: Target,
    rule: Rule,
    plain: Callable[..., Any],
    layer: nn.Module | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The result of a rule, with the factors behind it.

    Args:
        target: what the node calls.
        rule: its rule, called with moments; a layer's rule has the layer bound to it.
        plain: the call itself, of tensors.
        layer: the layer, if it is one.
        args, kwargs: the arguments.
    """
    name = (type(layer).__name__ if layer is not None else _name(target)).lower()
    if getattr(rule, "func", rule) in SHARED_BY_ALL:
        return _shared_by_all(args[0], *_rate(layer, args, kwargs))
    mixing = isinstance(layer, _MIXING) or target in _MIXING_FUNCTIONS
    elementwise = name in _ELEMENTWISE
    together = any(isinstance(leaf, CoherentMoments) for leaf in _leaves((args, kwargs)))
    if mixing or elementwise or together:
        args, kwargs = pytree.tree_map(_with_sources, (args, kwargs), is_leaf=_is_moments)
    found = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, CoherentMoments)]
    if not found:
        return rule(*args, **kwargs)
    sources = tuple(dict.fromkeys(s for value in found for s in value.sources))
    if isinstance(layer, _CHANNEL_DROPOUT) or _name(target) in ("dropout1d", "dropout2d"):
        rate: Any = layer.p if layer is not None else kwargs.get("p", (*args, 0.5)[1])
        return _channels_dropped(found[0], float(rate))

    def with_moments(change: Callable[[CoherentMoments], Moments]) -> Any:
        changed_args, changed = pytree.tree_map(
            lambda v: change(v) if isinstance(v, CoherentMoments) else v,
            (args, kwargs), is_leaf=_is_moments,
        )  # fmt: skip
        return rule(*changed_args, **changed)

    if elementwise and len(found) == 1:
        result = with_moments(lambda v: Moments(v.mean, v.variance))
        slope = _derivative(
            lambda mean: with_moments(lambda v: Moments(mean, v.variance)), found[0].mean
        )
        factors = found[0].factors * slope
        rest = (result.variance - factors.square().sum(0)).clamp(min=0)
        return CoherentMoments(result.mean, rest, factors, sources)
    result = with_moments(lambda v: Moments(v.mean, v.independent))
    is_affine = isinstance(layer, _AFFINE) or target in _AFFINE_FUNCTIONS
    if is_affine and len(found) == 1 and found[0] is args[0] and found[0].mean.dim() > 1:
        factors = _linear(lambda value: plain(value, *args[1:], **kwargs), found[0])
        return CoherentMoments(result.mean, result.variance, factors, sources)
    tangents = [_along(with_moments, source) for source in sources]
    return _with_factors(result, tangents, sources)


def _name(target: Target) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _is_moments(value: Any) -> bool:
    return isinstance(value, Moments)


def _leaves(value: Any) -> list[Any]:
    return pytree.tree_leaves(value, is_leaf=_is_moments)


def _factor(value: CoherentMoments, source: int) -> Tensor:
    """The factor of one source; zero if the value does not depend on it."""
    if source not in value.sources:
        return torch.zeros_like(value.mean)
    return value.factors[value.sources.index(source)]


def _along(with_moments: Callable[..., Any], source: int) -> Any:
    """The derivative of a rule's mean along the factors of one source."""
    with forward_ad.dual_level():
        result = with_moments(lambda v: Moments(_dual(v.mean, _factor(v, source)), v.independent))
        return pytree.tree_map(
            lambda v: _tangent(v.mean) if isinstance(v, Moments) else None, result,
            is_leaf=_is_moments,
        )  # fmt: skip


def _derivative(function: Callable[[Tensor], Moments], mean: Tensor) -> Tensor:
    """The slope of an element-wise rule's mean."""
    with forward_ad.dual_level():
        return _tangent(function(_dual(mean, torch.ones_like(mean))).mean)


def _dual(value: Tensor, tangent: Tensor) -> Tensor:
    dual: Tensor = forward_ad.make_dual(value, tangent)  # type: ignore[no-untyped-call]
    return dual


def _tangent(value: Tensor) -> Tensor:
    primal, tangent = forward_ad.unpack_dual(value)  # type: ignore[no-untyped-call]
    return torch.zeros_like(primal) if tangent is None else tangent.clone()


def _linear(apply: Callable[[Tensor], Tensor], x: CoherentMoments) -> Tensor:
    """The linear part of an affine map of every factor, in one batch."""
    count, batch = x.factors.shape[:2]
    moved = apply(torch.cat([x.factors.flatten(0, 1), torch.zeros_like(x.mean[:1])]))
    moved = moved[:-1] - moved[-1:]
    return moved.reshape(count, batch, *moved.shape[1:])


def _with_factors(result: Any, tangents: list[Any], sources: tuple[int, ...]) -> Any:
    """A rule's result, or the parts of one, with their factors."""
    values, structure = pytree.tree_flatten(result, is_leaf=_is_moments)
    columns = zip(
        *(pytree.tree_leaves(t, is_leaf=lambda v: v is None) for t in tangents), strict=True
    )
    made = [
        CoherentMoments(value.mean, value.variance, torch.stack(column), sources)
        if isinstance(value, Moments)
        else value
        for value, column in zip(values, columns, strict=True)
    ]
    return pytree.tree_unflatten(made, structure)


def _rate(
    layer: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[float, bool]:
    """The rate of stochastic depth, and whether it divides by 1-p."""
    if layer is not None:
        return rate_of(layer)
    given = kwargs.get("drop_prob", kwargs.get("p"))
    return float(args[1] if given is None else given), bool(kwargs.get("scale_by_keep", True))


def _shared_by_all(x: Tensor | Moments, rate: float, scaled: bool) -> Tensor | Moments:
    """Behind stochastic depth: one source more, and what varied before varies by (1 + v)."""
    variance = dropout_variance(rate)
    if variance == 0:
        return x
    keep = 1.0 if scaled else 1 - rate
    source = (next(_SOURCES),)
    if not isinstance(x, Moments):
        own = (x * (keep * variance**0.5))[None]
        return CoherentMoments(x * keep, torch.zeros_like(x), own, source)
    own = (x.mean * (keep * variance**0.5))[None]
    grown = keep * (1 + variance) ** 0.5
    before = _with_sources(x)
    if not isinstance(before, CoherentMoments):
        return CoherentMoments(x.mean * keep, x.variance * grown**2, own, source)
    factors = torch.cat([before.factors * grown, own])
    independent = before.independent * grown**2
    return CoherentMoments(x.mean * keep, independent, factors, before.sources + source)


def _channels_dropped(x: CoherentMoments, rate: float) -> CoherentMoments:
    """Dropout of channels behind other coherent noise: every channel is a source more."""
    variance = dropout_variance(rate)
    new = _with_sources(ChannelMoments(x.mean, None, (x.mean * variance**0.5,)))
    return CoherentMoments(
        x.mean,
        x.independent * (1 + variance),
        torch.cat([x.factors * (1 + variance) ** 0.5, new.factors]),
        x.sources + new.sources,
    )


def _with_sources(value: Any) -> Any:
    """Noise that channels share as one source for each channel and factor."""
    if not isinstance(value, ChannelMoments):
        return value
    count = value.channels * len(value.factors)
    if count * value.mean.numel() > _LARGEST:
        raise PropagationError(
            f"coherent=True carries {count} sources of {value.mean.numel()} elements: more than "
            "memory should hold. Use a smaller input, or coherent=False with gains"
        )
    blocks = torch.arange(value.channels, device=value.mean.device)
    of_element = blocks.repeat_interleave(value.mean.shape[1] // value.channels)
    shape = (value.channels, 1, -1) + (1,) * (value.mean.dim() - 2)
    own = (blocks[:, None] == of_element).reshape(shape)
    factors = torch.cat([factor * own for factor in value.factors])
    independent = value.independent
    if independent is None:
        independent = torch.zeros_like(value.mean)
    sources = tuple(next(_SOURCES) for _ in range(count))
    return CoherentMoments(value.mean, independent, factors, sources)

"""Softmax and log-softmax: by the Jacobian over independent classes, or with their covariance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.moments import MixedMoments, Moments
from penumbra.propagation.registry import layer, rule
from penumbra.propagation.rules import one_vs_rest
from penumbra.propagation.strips import in_strips

layer(nn.Softmax, F.softmax, "dim")
layer(nn.LogSoftmax, F.log_softmax, "dim")


@rule(F.softmax, torch.softmax, "softmax", softmax="jacobian")
def softmax(x: Moments, dim: int | None = None, _stacklevel: Any = 3, dtype: Any = None) -> Moments:
    """J_kj = s_k (δ_kj - s_j) (the supplement), squared, over classes of diagonal covariance:

    Var[s_k] = s_k² (V_k (1 - 2 s_k) + Σ_j s_j² V_j).
    """
    dim = _class_dimension(x) if dim is None else dim
    s = torch.softmax(x.mean, dim, dtype=_dtype(_stacklevel, dtype))
    return Moments(s, s.square() * _log_softmax_variance(s, x.variance.to(s.dtype), dim))


@rule(F.log_softmax, torch.log_softmax, "log_softmax", softmax="jacobian")
def log_softmax(
    x: Moments, dim: int | None = None, _stacklevel: Any = 3, dtype: Any = None
) -> Moments:
    """J_kj = δ_kj - s_j: Var[log s_k] = V_k (1 - 2 s_k) + Σ_j s_j² V_j."""
    dim = _class_dimension(x) if dim is None else dim
    logarithm = torch.log_softmax(x.mean, dim, dtype=_dtype(_stacklevel, dtype))
    variance = _log_softmax_variance(logarithm.exp(), x.variance.to(logarithm.dtype), dim)
    return Moments(logarithm, variance)


def _log_softmax_variance(s: Tensor, variance: Tensor, dim: int) -> Tensor:
    """V_k (1 - 2 s_k) + Σ_j s_j² V_j = V_k (1 - s_k)² + Σ_{j≠k} s_j² V_j, a sum of positive terms.

    A class with s_k > 1/2 (there is at most one) would cancel in the first form, and a confident
    prediction lose its variance in float32: it takes the second, with 1 - s_k as a sum as well.
    """
    likely = s > 0.5
    others = torch.where(likely, 0.0, s)
    shares = s.square() * variance
    small = torch.where(likely, 0.0, shares).sum(dim, keepdim=True)
    total = shares.sum(dim, keepdim=True)
    remaining = others.sum(dim, keepdim=True)
    return torch.where(
        likely, variance * remaining.square() + small, variance * (1 - 2 * others) + total
    )


def _dtype(third: Any, dtype: Any) -> Any:
    """The third argument is F.softmax's stack level, but the dtype of torch.softmax."""
    return third if isinstance(third, torch.dtype) else dtype


def _class_dimension(x: Moments) -> int:
    """torch's own choice where `dim` is left out: 0 for 0, 1 and 3 dimensions, otherwise 1."""
    return 0 if x.mean.dim() in (0, 1, 3) else 1


@rule(F.softmax, torch.softmax, "softmax", softmax="moment")
def softmax_of_gaussian(
    x: Moments, dim: int | None = None, _stacklevel: Any = 3, dtype: Any = None
) -> Moments:
    """One class against the rest, over the covariance that the scores have at their position."""
    dim = _class_dimension(x) if dim is None else dim
    if x.mean.dim() == 0 or x.mean.shape[dim] == 1:  # one class has no rest, and no variance
        return softmax(x, dim, _stacklevel, dtype)
    odds_of, known, back = _log_odds(x, dim, _dtype(_stacklevel, dtype))

    def probabilities(mean: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        return one_vs_rest.probabilities(odds_of(mean, known))

    mean, variance = in_strips(probabilities, *known, dim=-1)
    return Moments(back(mean), back(variance))


@rule(F.log_softmax, torch.log_softmax, "log_softmax", softmax="moment")
def log_softmax_of_gaussian(
    x: Moments, dim: int | None = None, _stacklevel: Any = 3, dtype: Any = None
) -> Moments:
    """First order, over the covariance: log p_k changes by (1 - s_k) times the log-odds."""
    dim = _class_dimension(x) if dim is None else dim
    if x.mean.dim() == 0 or x.mean.shape[dim] == 1:
        return log_softmax(x, dim, _stacklevel, dtype)
    odds_of, known, back = _log_odds(x, dim, _dtype(_stacklevel, dtype))
    odds = odds_of(*known)
    variance = (odds.rest / (odds.share + odds.rest)).square() * odds.variance
    return Moments(torch.log_softmax(x.mean, dim, dtype=_dtype(_stacklevel, dtype)), back(variance))


def _log_odds(
    x: Moments, dim: int, dtype: torch.dtype | None
) -> tuple[
    Callable[[Tensor, Tensor], one_vs_rest.LogOdds],
    tuple[Tensor, Tensor],
    Callable[[Tensor], Tensor],
]:
    """How to get the log-odds, from what (classes second of three dimensions), and the way back.

    Pictures too become rows of pixels, one for each class: a CPU runtime that has put the channels
    last for its convolutions would otherwise stay with it, and maxima and sums over few classes are
    several times slower there.
    """
    shape, dim = x.mean.shape, dim % x.mean.dim()

    def classes_second(value: Tensor) -> Tensor:
        value = value.flatten(dim + 1) if dim + 1 < len(shape) else value.unsqueeze(-1)
        if dim == 0:
            return value.unsqueeze(0)
        return value.flatten(0, dim - 1) if dim > 1 else value

    rows = one_vs_rest.contrasts(shape[dim], x.mean)
    mean = _as(classes_second(x.mean), dtype)
    mixed = isinstance(x, MixedMoments) and x.dim == dim - len(shape)
    if mixed and x.factors is not None:
        loadings, sources = x.factors
        known = _as(classes_second(sources()), dtype)
        odds_of = partial(one_vs_rest.log_odds_of_factors, _as(loadings, dtype))
    else:
        # If nothing is known of how the classes vary together: as if they did not.
        pairs = x.of(rows) if mixed else None
        known = rows.abs() @ classes_second(x.variance) if pairs is None else classes_second(pairs)
        known, odds_of = _as(known, dtype), one_vs_rest.log_odds
    if dim == 1 and len(shape) > 2:
        return odds_of, (mean, known), lambda value: value.unflatten(2, shape[2:])
    return odds_of, (mean, known), lambda value: value.reshape(shape)


def _as(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    return value if dtype is None else value.to(dtype)


@rule(nn.Softmax2d, softmax="jacobian")
def softmax2d(layer: nn.Softmax2d, x: Moments) -> Moments:
    """Softmax over channels."""
    return softmax(x, -3)


@rule(nn.Softmax2d, softmax="moment")
def softmax2d_of_gaussian(layer: nn.Softmax2d, x: Moments) -> Moments:
    """Softmax over channels."""
    return softmax_of_gaussian(x, -3)

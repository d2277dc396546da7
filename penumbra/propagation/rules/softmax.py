"""Softmax and log-softmax: by the Jacobian for independent classes, or with their covariance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.moments import MixedMoments, Moments, SimplexMoments
from penumbra.propagation.registry import layer, rule
from penumbra.propagation.rules.one_vs_rest import (
    LogOdds,
    contrasts,
    log_odds,
    log_odds_of_factors,
    probabilities,
)
from penumbra.propagation.rules.simplex import of_scores
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
    spread = x.variance.to(s.dtype)
    variance = s.square() * _log_softmax_variance(s, spread, dim)
    if dim not in (-1, s.dim() - 1):
        return Moments(s, variance)
    return SimplexMoments(s, variance, lambda: of_scores(x.mean.to(s.dtype), spread))


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

    For a class with s_k > 1/2 (there is at most one) the first form cancels, and a confident
    prediction would lose its variance in float32. It takes the second, with 1 - s_k as a sum.
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
    """torch's default for `dim`: 0 for 0, 1 and 3 dimensions, otherwise 1."""
    return 0 if x.mean.dim() in (0, 1, 3) else 1


@rule(F.softmax, torch.softmax, "softmax", softmax="moment")
def softmax_of_gaussian(
    x: Moments, dim: int | None = None, _stacklevel: Any = 3, dtype: Any = None
) -> Moments:
    """Each class against the rest (see `one_vs_rest`), with the scores' covariance."""
    dim = _class_dimension(x) if dim is None else dim
    if x.mean.dim() == 0 or x.mean.shape[dim] == 1:  # one class has variance zero
        return softmax(x, dim, _stacklevel, dtype)
    odds_of, known, back = _log_odds(x, dim, _dtype(_stacklevel, dtype))

    def moments(mean: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        return probabilities(odds_of(mean, known))

    mean, variance = in_strips(moments, *known, dim=-1)
    return Moments(back(mean), back(variance))


@rule(F.log_softmax, torch.log_softmax, "log_softmax", softmax="moment")
def log_softmax_of_gaussian(
    x: Moments, dim: int | None = None, _stacklevel: Any = 3, dtype: Any = None
) -> Moments:
    """First order, with the covariance: log p_k changes by (1 - s_k) times the log-odds."""
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
    Callable[[Tensor, Tensor], LogOdds],
    tuple[Tensor, Tensor],
    Callable[[Tensor], Tensor],
]:
    """A function for the log-odds, its arguments (batch, classes, positions), and the way back.

    Images too become rows of pixels, one for each class: a CPU runtime that stores channels last
    for its convolutions would otherwise keep that order, in which maxima and sums over few classes
    are several times slower.
    """
    shape, dim = x.mean.shape, dim % x.mean.dim()

    def classes_second(value: Tensor) -> Tensor:
        value = value.flatten(dim + 1) if dim + 1 < len(shape) else value.unsqueeze(-1)
        if dim == 0:
            return value.unsqueeze(0)
        return value.flatten(0, dim - 1) if dim > 1 else value

    mean = _as(classes_second(x.mean), dtype)
    mixed = x if isinstance(x, MixedMoments) and x.dim == dim - len(shape) else None
    odds_of: Callable[[Tensor, Tensor], LogOdds]
    if mixed is not None and mixed.factors is not None:
        loadings, sources = mixed.factors
        known = _as(classes_second(sources()), dtype)
        odds_of = partial(log_odds_of_factors, _as(loadings, dtype))
    else:
        rows = contrasts(shape[dim], x.mean)
        if mixed is not None:
            known = classes_second(mixed.of(rows))
        else:  # nothing is known of the classes' covariance: take them as independent
            known = rows.abs() @ classes_second(x.variance)
        known, odds_of = _as(known, dtype), log_odds
    if dim == 1 and len(shape) > 2:
        return odds_of, (mean, known), lambda value: torch.unflatten(value, 2, shape[2:])
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

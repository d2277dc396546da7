"""Softmax and log-softmax, by the Jacobian over the classes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.moments import Moments
from penumbra.propagation.registry import layer, rule

layer(nn.Softmax, F.softmax, "dim")
layer(nn.LogSoftmax, F.log_softmax, "dim")


@rule(F.softmax, torch.softmax, "softmax")
def softmax(x: Moments, dim: int | None = None, _stacklevel: Any = 3, dtype: Any = None) -> Moments:
    """J_kj = s_k (δ_kj - s_j) (the supplement), squared, over classes of diagonal covariance:

    Var[s_k] = s_k² (V_k (1 - 2 s_k) + Σ_j s_j² V_j).
    """
    dim = _class_dimension(x) if dim is None else dim
    s = torch.softmax(x.mean, dim, dtype=_dtype(_stacklevel, dtype))
    return Moments(s, s.square() * _log_softmax_variance(s, x.variance.to(s.dtype), dim))


@rule(F.log_softmax, torch.log_softmax, "log_softmax")
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


@rule(nn.Softmax2d)
def softmax2d(layer: nn.Softmax2d, x: Moments) -> Moments:
    """Softmax over channels."""
    return softmax(x, -3)

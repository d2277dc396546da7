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
def softmax(x: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Moments:
    """J_kj = s_k (δ_kj - s_j) (the supplement), squared, over classes of diagonal covariance:

    Var[s_k] = s_k² (V_k (1 - 2 s_k) + Σ_j s_j² V_j).
    """
    dim = _class_dimension(x) if dim is None else dim
    s = torch.softmax(x.mean, dim, dtype=dtype)
    return Moments(s, s.square() * _log_softmax_variance(s, x.variance.to(s.dtype), dim))


@rule(F.log_softmax, torch.log_softmax, "log_softmax")
def log_softmax(
    x: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Moments:
    """J_kj = δ_kj - s_j: Var[log s_k] = V_k (1 - 2 s_k) + Σ_j s_j² V_j."""
    dim = _class_dimension(x) if dim is None else dim
    logarithm = torch.log_softmax(x.mean, dim, dtype=dtype)
    variance = _log_softmax_variance(logarithm.exp(), x.variance.to(logarithm.dtype), dim)
    return Moments(logarithm, variance)


def _log_softmax_variance(s: Tensor, variance: Tensor, dim: int) -> Tensor:
    together = (s.square() * variance).sum(dim, keepdim=True)
    return (variance * (1 - 2 * s) + together).clamp(min=0)


def _class_dimension(x: Moments) -> int:
    """torch's own choice where `dim` is left out: 0 for 0, 1 and 3 dimensions, otherwise 1."""
    return 0 if x.mean.dim() in (0, 1, 3) else 1


@rule(nn.Softmax2d)
def softmax2d(layer: nn.Softmax2d, x: Moments) -> Moments:
    """Softmax over channels."""
    return softmax(x, -3)

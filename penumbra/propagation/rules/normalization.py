"""Normalisation: batch norm in eval mode is affine; others divide by statistics of their input."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import Moments, map_within_channels
from penumbra.propagation.registry import layer, rule


@rule(F.batch_norm)
def batch_norm(
    x: Moments, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Moments:  # fmt: skip
    """V γ²/(σ² + ε): exact. (The authors' code divides by √(σ⁴ + ε).)"""
    if training or running_mean is None or running_var is None:
        raise PropagationError("batch norm needs its running statistics: call model.eval() first")
    shape = (1, -1) + (1,) * (x.mean.dim() - 2)
    scale = (running_var + eps).rsqrt()
    scale = (scale if weight is None else scale * weight).reshape(shape)
    return map_within_channels(
        x,
        lambda v: F.batch_norm(v, running_mean, running_var, weight, bias, False, 0.0, eps),
        lambda v: v * scale,
        lambda v: v * scale.square(),
    )


for _norm in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm):
    layer(_norm, F.batch_norm, "running_mean", "running_var", "weight", "bias", "eps")


def _self_normalized(
    x: Moments, normalized: Tensor, inverse_std: Tensor, dims: tuple[int, ...]
) -> Tensor:
    """First-order variance of x̂ = (x - mean(x)) / std(x) over the n elements of `dims`.

    ∂x̂_i/∂x_j = (δ_ij - (1 + x̂_i x̂_j)/n) / std, so with independent x_j of variance V_j

        Var[x̂_i] = (V_i (1 - 2(1 + x̂_i²)/n) + Σ_j (1 + x̂_i x̂_j)² V_j / n²) / std².

    Approximate in two ways: first order, and correlations within the result are dropped.
    """
    v = x.variance
    n = math.prod(v.shape[dim] for dim in dims)
    plain = v.sum(dims, keepdim=True)
    once = (normalized * v).sum(dims, keepdim=True)
    twice = (normalized.square() * v).sum(dims, keepdim=True)
    total = plain + 2 * normalized * once + normalized.square() * twice
    variance = v * (1 - 2 * (1 + normalized.square()) / n) + total / n**2
    return variance.clamp(min=0) * inverse_std.square()


@rule(F.group_norm)
def group_norm(
    x: Moments, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Moments:  # fmt: skip
    """Approximate: first order (see `_self_normalized`), group by group."""
    shape = x.mean.shape
    mean = torch.unflatten(x.mean, 1, (num_groups, -1)).flatten(2)
    grouped = Moments(mean, torch.unflatten(x.variance, 1, (num_groups, -1)).flatten(2))
    inverse_std = (mean.var(-1, correction=0, keepdim=True) + eps).rsqrt()
    normalized = (mean - mean.mean(-1, keepdim=True)) * inverse_std
    variance = _self_normalized(grouped, normalized, inverse_std, (-1,)).reshape(shape)
    if weight is not None:
        variance = variance * weight.square().reshape((1, -1) + (1,) * (len(shape) - 2))
    return Moments(F.group_norm(x.mean, num_groups, weight, bias, eps), variance)


layer(nn.GroupNorm, F.group_norm, "num_groups", "weight", "bias", "eps")


@rule(F.layer_norm)
def layer_norm(
    x: Moments, normalized_shape: tuple[int, ...], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Moments:  # fmt: skip
    """Approximate: first order (see `_self_normalized`) over the last dimensions."""
    dims = tuple(range(-len(normalized_shape), 0))
    inverse_std = (x.mean.var(dims, correction=0, keepdim=True) + eps).rsqrt()
    normalized = (x.mean - x.mean.mean(dims, keepdim=True)) * inverse_std
    variance = _self_normalized(x, normalized, inverse_std, dims)
    if weight is not None:
        variance = variance * weight.square()
    return Moments(F.layer_norm(x.mean, normalized_shape, weight, bias, eps), variance)


layer(nn.LayerNorm, F.layer_norm, "normalized_shape", "weight", "bias", "eps")


@rule(F.instance_norm)
def instance_norm(
    x: Moments, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Moments:  # fmt: skip
    """Approximate: group norm with one channel per group. Affine with running statistics."""
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, eps=eps)
    return group_norm(x, x.mean.shape[1], weight, bias, eps)


def _instance_norm_layer(module_type: type[nn.Module], dimensions: int) -> None:
    @rule(module_type)
    def instance_norm_layer(norm: nn.InstanceNorm2d, x: Moments) -> Moments:
        """As the function, also for an input without a batch dimension."""
        unbatched = x.mean.dim() == dimensions + 1
        x = Moments(x.mean[None], x.variance[None]) if unbatched else x
        by_input = norm.training or not norm.track_running_stats
        result = instance_norm(
            x, norm.running_mean, norm.running_var, norm.weight, norm.bias, by_input, eps=norm.eps
        )
        return Moments(result.mean[0], result.variance[0]) if unbatched else result


_instance_norm_layer(nn.InstanceNorm1d, 1)
_instance_norm_layer(nn.InstanceNorm2d, 2)
_instance_norm_layer(nn.InstanceNorm3d, 3)


def _of_unit_length(x: Moments, unit: Tensor, inverse: Tensor, dims: Any, n: int) -> Tensor:
    """First-order variance of u = x √n / ‖x‖ over `dims`, where ∂u_i/∂x_j = (δ_ij - u_i u_j/n)/s:

    Var[u_i] = (V_i (1 - 2 u_i²/n) + u_i² Σ_j u_j² V_j / n²) / s²,    s = ‖x‖/√n.
    """
    squares = unit.square()
    total = (squares * x.variance).sum(dims, keepdim=True) / n**2
    variance = x.variance * (1 - 2 * squares / n) + squares * total
    return variance.clamp(min=0) * inverse.square()


@rule(F.rms_norm, torch.rms_norm)
def rms_norm(
    x: Moments, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Moments:
    """x / √(mean of squares + ε) over the last dimensions; first order (see `_of_unit_length`)."""
    dims = tuple(range(-len(normalized_shape), 0))
    eps = torch.finfo(x.mean.dtype).eps if eps is None else eps
    inverse = (x.mean.square().mean(dims, keepdim=True) + eps).rsqrt()
    n = math.prod(x.mean.shape[dim] for dim in dims)
    variance = _of_unit_length(x, x.mean * inverse, inverse, dims, n)
    if weight is not None:
        variance = variance * weight.square()
    return Moments(F.rms_norm(x.mean, normalized_shape, weight, eps), variance)


layer(nn.RMSNorm, F.rms_norm, "normalized_shape", "weight", "eps")


@rule(F.normalize)
def normalize(
    x: Moments, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None
) -> Moments:
    """x / ‖x‖ along a dimension; first order (see `_of_unit_length`, with n = 1)."""
    if p != 2:
        raise PropagationError(f"F.normalize has a rule for p=2, not {p}")
    inverse = 1 / x.mean.norm(2, dim, keepdim=True).clamp(min=eps)
    unit = x.mean * inverse
    return Moments(unit, _of_unit_length(x, unit, inverse, dim, 1))

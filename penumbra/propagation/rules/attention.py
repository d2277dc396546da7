"""Attention: scores as products of uncertain values, weights that sum to one, their weighted mean.

The variance of a score q·k/√d is that of a product of independent vectors, except that what all
keys have in common moves no weight: the keys are centred by their mean under the weights. The
weighted mean of the values is `simplex.weighted_mean`, bounded where weights are sharp. Queries,
keys and values are made from the same tokens; that they vary together is left to gains.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.gains import gains_of
from penumbra.propagation.moments import Moments, SimplexMoments
from penumbra.propagation.registry import noise
from penumbra.propagation.rules.affine import linear
from penumbra.propagation.rules.noise import dropout_variance
from penumbra.propagation.rules.simplex import of_scores, weighted_mean


def _moments_of(x: Tensor | Moments) -> Moments:
    return x if isinstance(x, Moments) else Moments(x, torch.zeros_like(x))


def attention_weights(
    query: Moments, key: Moments, mask: Tensor | None, scale: float, form: str
) -> SimplexMoments:
    """softmax(q kᵀ · scale + mask), the variances of the scores with centred keys.

    With s the weights at the mean and k̄ = Σ_k s_k k_k, a score's variance is

        scale² Σ_e (V[q_e] (k_e - k̄_e)² + q_e² V[k_e] + V[q_e] V[k_e]).

    The mean weights are those of the plain network ("jacobian") or those under noise ("moment");
    the variance is that under noise in both.
    """
    scores = scale * (query.mean @ key.mean.mT)
    scores = scores if mask is None else scores + mask
    plain = torch.softmax(scores, -1)
    centre = plain @ key.mean
    spread = (
        query.variance @ (key.mean.square() + key.variance).mT
        - 2 * (query.variance * centre) @ key.mean.mT
        + (query.variance * centre.square()).sum(-1, keepdim=True)
    )
    spread = scale**2 * (spread.clamp(min=0) + query.mean.square() @ key.variance.mT)
    likely, own = of_scores(scores, spread)
    variance = torch.minimum(own, likely * (1 - likely))  # that of a value between 0 and 1
    mean = likely if form == "moment" else plain
    return SimplexMoments(mean, variance, lambda: (likely, own))


def attend(
    weights: SimplexMoments, value: Tensor | Moments, dropout_p: float
) -> tuple[Moments, SimplexMoments]:
    """The weighted mean of the values, and the weights, with dropout of the weights."""
    noise_variance = dropout_variance(dropout_p)
    if noise_variance:
        dropped = (weights.mean.square() + weights.variance) * noise_variance
        weights = SimplexMoments(weights.mean, weights.variance + dropped, weights.spread, dropped)
    return weighted_mean(weights, value), weights


def _function_rule(form: str) -> None:
    @noise(F.scaled_dot_product_attention, softmax=form)
    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Moments:  # fmt: skip
        """softmax(q kᵀ/√d + mask) v; a boolean mask is True where attention is allowed."""
        q, k = _moments_of(query), _moments_of(key)
        if isinstance(attn_mask, Moments):
            raise PropagationError("an uncertain attention mask has no rule")
        if enable_gqa:
            repeats = q.mean.shape[-3] // k.mean.shape[-3]
            k, value = (_repeated_heads(_moments_of(x), repeats) for x in (k, value))
        mask = attn_mask
        if is_causal:
            shape = q.mean.shape[-2], k.mean.shape[-2]
            mask = torch.ones(shape, dtype=torch.bool, device=q.mean.device).tril()
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.mean.dtype).masked_fill(~mask, -math.inf)
        scale = 1 / math.sqrt(q.mean.shape[-1]) if scale is None else scale
        return attend(attention_weights(q, k, mask, scale, form), value, dropout_p)[0]


_function_rule("jacobian")
_function_rule("moment")


def _repeated_heads(x: Moments, count: int) -> Moments:
    return Moments(x.mean.repeat_interleave(count, -3), x.variance.repeat_interleave(count, -3))


def _layer_rule(form: str) -> None:
    @noise(nn.MultiheadAttention, softmax=form)
    def multihead_attention(
        layer: nn.MultiheadAttention, query: Any, key: Any, value: Any,
        key_padding_mask: Tensor | None = None, need_weights: bool = True,
        attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Moments, Moments | None]:  # fmt: skip
        """Projections, `attend` for each head, projection. Gains are those of `out_proj`."""
        if layer.bias_k is not None or layer.bias_v is not None or layer.add_zero_attn:
            raise PropagationError(
                "MultiheadAttention with bias_k, bias_v or add_zero_attn has no rule"
            )
        inputs = [_moments_of(x) for x in (query, key, value)]
        alone = inputs[0].mean.dim() == 2
        if alone:
            inputs = [Moments(x.mean[None], x.variance[None]) for x in inputs]
        elif not layer.batch_first:
            inputs = [Moments(x.mean.transpose(0, 1), x.variance.transpose(0, 1)) for x in inputs]
        q, k, v = (
            _heads(linear(x, *projection), layer.num_heads)
            for x, projection in zip(inputs, _projections(layer), strict=True)
        )
        mask = _additive_mask(layer, q.mean, attn_mask, key_padding_mask)
        scale = 1 / math.sqrt(layer.head_dim)
        together, weights = attend(attention_weights(q, k, mask, scale, form), v, layer.dropout)
        joined = Moments(
            *(v.transpose(1, 2).flatten(2) for v in (together.mean, together.variance))
        )
        out = linear(joined, layer.out_proj.weight, layer.out_proj.bias, gains_of(layer.out_proj))
        result = Moments(out.mean, out.variance)
        if alone:
            result = Moments(out.mean[0], out.variance[0])
        elif not layer.batch_first:
            result = Moments(out.mean.transpose(0, 1), out.variance.transpose(0, 1))
        if not need_weights:
            return result, None
        count = layer.num_heads if average_attn_weights else 1
        mean, variance = weights.mean, weights.variance
        if average_attn_weights:
            mean, variance = mean.mean(1), variance.mean(1) / count
        return result, Moments(mean[0], variance[0]) if alone else Moments(mean, variance)


_layer_rule("jacobian")
_layer_rule("moment")


def _projections(layer: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor | None]]:
    if layer.in_proj_weight is not None:
        weights = list(layer.in_proj_weight.chunk(3))
    else:
        weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    biases = [None] * 3 if layer.in_proj_bias is None else list(layer.in_proj_bias.chunk(3))
    return list(zip(weights, biases, strict=True))


def _heads(x: Moments, count: int) -> Moments:
    """(batch, tokens, width) as (batch, heads, tokens, width / heads)."""
    return Moments(
        *(torch.unflatten(v, -1, (count, -1)).transpose(1, 2) for v in (x.mean, x.variance))
    )


def _additive_mask(
    layer: nn.MultiheadAttention, like: Tensor, attn_mask: Tensor | None, padding: Tensor | None
) -> Tensor | None:
    """Both masks as one that is added to the scores; True is where attention is not allowed."""

    def added(mask: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            return mask
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)

    total = None
    if attn_mask is not None:
        total = added(attn_mask)
        if total.dim() == 3:
            total = torch.unflatten(total, 0, (-1, layer.num_heads))
    if padding is not None:
        over_keys = added(padding if padding.dim() == 2 else padding[None])[:, None, None, :]
        total = over_keys if total is None else total + over_keys
    return total

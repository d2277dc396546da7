"""Weights that sum to one, as attention has them, and weighted means of values.

Scores s_k are Gaussian with means μ_k and variances V_k, taken as independent. First order fails
where scores vary by more than about one: weights that are sharp at the mean scores are not on
average. Three approximations hold from no noise to weights that jump from key to key:

- the mean weights p̄: each score's distance to the largest, divided by √(1 + π (V_k + V_top)/8)
  (MacKay 1992, the logistic function of a Gaussian), then softmax;
- the variance of a weight by its own score, p̄² V (1 + V (1 - p̄)²/2), the log-normal p̄² (e^V - 1) of
  a small weight to second order; all of it would exceed what a sum of one leaves room for;
- the variance of a weighted mean, F B/(F + B): see `weighted_mean`.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from penumbra.propagation.moments import Moments, SimplexMoments

# The variance of scores from which correlated scores were found to err by more than 1.5.
_STRONG = 9.0


def mean_weights(scores: Tensor, variance: Tensor) -> Tensor:
    """E[softmax] over the last dimension, approximately; masked scores are -inf."""
    top, place = scores.max(-1, keepdim=True)
    together = variance + variance.gather(-1, place)
    return torch.softmax((scores - top) / (1 + math.pi / 8 * together).sqrt(), -1)


def own_variance(weights: Tensor, variance: Tensor) -> Tensor:
    """The variance that each weight has by its own score."""
    return weights.square() * variance * (1 + 0.5 * variance * (1 - weights).square())


def of_scores(scores: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """The mean weights, and the variance of each by its own score."""
    if not torch.compiler.is_exporting() and float(variance.mean()) > _STRONG:
        warnings.warn(
            f"attention whose scores vary by σ = {float(variance.mean()) ** 0.5:.1f}: its weights "
            "jump from key to key, and the standard deviation behind it is right to a factor of "
            "two; compare(model, x) measures it",
            stacklevel=2,
        )
    weights = mean_weights(scores, variance)
    return weights, own_variance(weights, variance)


def weighted_mean(weights: SimplexMoments, values: Tensor | Moments) -> Moments:
    """Σ_k p_k v_k with weights that sum to one, o = Σ_k p̄_k v_k:

        Var = F B / (F + B) + Σ_k E[p_k²] V[v_k],
        F = Σ_k own_k (v_k - o)²,   B = Σ_k p̄_k (v_k - o)².

    F is first order in the weights. B bounds it: a weighted mean of fixed values varies by at most
    their variance under the mean weights (Jensen). The harmonic form goes from one to the other:
    for 2 to 196 keys of equal or different scores it finds 0.75 to 1.34 of σ for any variance of
    the scores up to 100, and 0.9 to 1.15 up to 1. Both are computed from values that are centred
    over the keys, so that their difference keeps its digits.
    """
    mean = values.mean if isinstance(values, Moments) else values
    likely, own = weights.spread()
    centred = mean - mean.mean(-2, keepdim=True)
    squares = centred.square()
    at = likely @ centred
    first = own @ squares - 2 * at * (own @ centred) + at.square() * own.sum(-1, keepdim=True)
    first = first.clamp(min=0)
    bound = (likely @ squares - at.square()).clamp(min=0)
    variance = first * (bound / (first + bound).clamp(min=torch.finfo(first.dtype).tiny))
    if isinstance(values, Moments):
        second = likely.square() + torch.minimum(own, likely * (1 - likely))
        variance = variance + second @ values.variance
    if weights.dropped is not None:
        spread = values.variance if isinstance(values, Moments) else 0
        variance = variance + weights.dropped @ (mean.square() + spread)
    return Moments(weights.mean @ mean, variance)

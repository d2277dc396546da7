"""Softmax of Gaussian scores with known covariance, each class against all others.

p_k = sigmoid(t_k) with the log-odds t_k = z_k - log Σ_{j≠k} exp z_j, which are taken as Gaussian.
With s = softmax(μ), the others' shares q_j = s_j / (1 - s_k) and D_ij = Var[z_i - z_j],

    ρ_k = Σ_{i<j≠k} q_i q_j D_ij        the variance among the others
    v_k = Σ_{j≠k} q_j D_kj - ρ_k        Var[t_k], first order
    E[t_k] = logit s_k - ρ_k/2          second order (log Σ exp is convex).

v/(1 + 0.02 v) and ρ/(1 + 0.1 ρ) bound both series, which overshoot under strong noise. The moments
of sigmoid(t_k) are integrated with five Gauss-Hermite nodes. For a pair of nodes ±a with weight w,
u = p (1-p), e = exp(a √v) and q = u (e - 1)² / (e + u (e - 1)²)

    (p₊ + p₋)/2 - p = (1 - 2p)/2 · q,   ((p₊ - p₋)/2)² = u q (1 - q) + q²/4,

so that with m = Σ w q and n = Σ w q²

    E[p_k] = p + (1 - 2p)/2 · m,   Var[p_k] = u m + (1 - 2p)²/4 · (2 n - m²),

where nothing cancels even for tiny p, since m² ≤ n.

If the covariance is that of few sources ξ, z = μ + Σ_r f_r √b_r ξ_r with loadings F, then with
M = Σ_j s_j F_j and d_k = Σ_r b_r (F_kr - M_r)²

    v_k = d_k / (1 - s_k)²,     ρ_k = Σ_j s_j d_j / (1 - s_k) - s_k v_k,

the same v and ρ for less than a third of the work at 11 classes. For the most probable class, whose
1 - s_k may be tiny, d_k and 1 - s_k are sums over the other classes.

This rule has no source in the literature; docs/rules.md has its derivation's alternatives, the
choice of the two constants and its accuracy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# The positive nodes of the Gauss-Hermite rule of five, and the weight of the pair ±a.
_PAIRS = ((2.8569700138728056, 0.022514822655441), (1.355626179974266, 0.444151844011225))
_BOUND_VARIANCE = 0.02
_BOUND_SHIFT = 0.1


class LogOdds(NamedTuple):
    """Each class against all others at the mean scores, along the class dimension.

    Attributes:
        share: s_k, up to a factor that is the same for all classes.
        rest: the sum of all other shares, with the same factor.
        variance: v_k.
        among_rest: ρ_k.
    """

    share: Tensor
    rest: Tensor
    variance: Tensor
    among_rest: Tensor


def contrasts(classes: int, like: Tensor) -> Tensor:
    """The matrix of all differences z_i - z_j, i < j, of the scores."""
    first, second = torch.triu_indices(classes, classes, 1)
    unit = torch.eye(classes, dtype=like.dtype, device=like.device)
    return unit[first] - unit[second]


def log_odds(mean: Tensor, differences: Tensor) -> LogOdds:
    """Log-odds of mean scores (N, classes, P) with the variances of `contrasts` (N, pairs, P)."""
    classes = mean.shape[1]
    pair = contrasts(classes, mean).abs()  # one at the two classes of each pair
    others = 1 - torch.eye(classes, dtype=mean.dtype, device=mean.device)
    # Floored, so that the product of any two shares is neither zero nor denormal.
    floor = 0.49 * math.log(torch.finfo(mean.dtype).tiny)
    scores = (mean - mean.amax(1, keepdim=True)).clamp(min=floor)
    share = scores.exp()
    rest = others @ share  # not sum - share, which cancels for a confident class
    weighted = (pair @ scores).exp() * differences  # s_i s_j D_ij
    with_class, without = pair.mT @ weighted, (1 - pair.mT) @ weighted
    among = without / rest.square()
    return LogOdds(share, rest, (with_class / (share * rest) - among).clamp(min=0), among)


def log_odds_of_factors(loadings: Tensor, mean: Tensor, sources: Tensor) -> LogOdds:
    """Log-odds by loadings (classes, R), mean scores (N, classes, P) and sources (N, R, P)."""
    share = (mean - mean.amax(1, keepdim=True)).exp()
    share = share / share.sum(1, keepdim=True)
    numbers = torch.arange(mean.shape[1], dtype=mean.dtype, device=mean.device)[:, None]
    first = _first_largest(mean, numbers)
    doubt = torch.where(first, 0.0, share).sum(1, keepdim=True)  # 1 - s_k of the most probable
    rest = torch.where(first, doubt, 1 - share).clamp(min=torch.finfo(mean.dtype).tiny ** 0.4)
    middle = loadings.mT @ share  # M
    away = loadings.mT @ torch.where(first, -doubt, share)  # M - F_k of the most probable
    pulled = loadings @ (sources * middle)  # Σ_r F_kr b_r M_r
    # Their mean over the classes is Σ_r b_r M_r², with fewer terms than there are sources.
    distance = loadings.square() @ sources - 2 * pulled + (share * pulled).sum(1, keepdim=True)
    from_first = (sources * away.square()).sum(1, keepdim=True)
    distance = torch.where(first, from_first, distance.clamp(min=0))  # Σ_r b_r (F_kr - M_r)²
    total = (share * distance).sum(1, keepdim=True)
    inverse = 1 / rest  # one division for three
    drift = distance * inverse
    return LogOdds(share, rest, drift * inverse, ((total - share * drift) * inverse).clamp(min=0))


def _first_largest(mean: Tensor, numbers: Tensor) -> Tensor:
    """Whether a class is the most probable one; of several, the first."""
    if torch.compiler.is_exporting():
        return mean.argmax(1, keepdim=True).to(mean.dtype) == numbers
    # Eager PyTorch's argmax over few classes takes 25 times as long as a maximum.
    among = mean == mean.amax(1, keepdim=True)
    return torch.where(among, numbers, len(numbers)).amin(1, keepdim=True) == numbers


def probabilities(odds: LogOdds) -> tuple[Tensor, Tensor]:
    """Mean and variance of every class's probability; the means are normalised to sum to one."""
    shift = odds.among_rest / (2 + 2 * _BOUND_SHIFT * odds.among_rest)
    std = (odds.variance / (1 + _BOUND_VARIANCE * odds.variance)).sqrt()  # at most √50
    share = odds.share * torch.exp(-shift)
    scale = 1 / (share + odds.rest)
    p, others = share * scale, odds.rest * scale
    u = p * others
    (m1, n1), (m2, n2) = (_pair_of_nodes(node, weight, std, u) for node, weight in _PAIRS)
    moved, square = m1 + m2, n1 + n2
    half = 0.5 * (others - p)
    mean = p + half * moved
    variance = u * moved + half.square() * (2 * square - moved.square())
    return mean * (1 / mean.sum(1, keepdim=True)), variance


def _pair_of_nodes(node: float, weight: float, std: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """w q and w q² of the nodes ±a."""
    up = torch.exp(node * std)
    bent = u * (up - 1).square()
    q = bent / (up + bent)
    weighted = weight * q
    return weighted, weighted * q

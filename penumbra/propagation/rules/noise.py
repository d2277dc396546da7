"""Noise sources.

The element-wise product of independent X and Z has (Goodman 1960; the paper's Eq. for V[X^i])

    V[ZX] = E[X]² V[Z] + E[Z]² V[X] + V[X] V[Z].

The paper prints `p(1-p)a²` for dropout: that is dropout of rate p without rescaling. PyTorch's
dropout divides by 1-p, so E[Z] = 1 and V[Z] = p/(1-p).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.layers import (
    AdditiveGaussianNoise,
    MonteCarloBatchNorm,
    MultiplicativeGaussianNoise,
)
from penumbra.propagation.moments import (
    ChannelMoments,
    Moments,
    SimplexMoments,
    own_and_shared,
)
from penumbra.propagation.registry import layer, noise

# SELU's value at -∞: the value of dropped elements in alpha dropout.
_ALPHA = -1.7580993408473766


def dropout_variance(rate: float) -> float:
    """V[Z] = p/(1-p) of PyTorch's (inverted) dropout."""
    if not 0 <= rate < 1:
        raise PropagationError(
            f"a dropout rate of {rate} drops everything: it must be at least 0 and below 1"
        )
    return rate / (1 - rate)


def _multiplied(x: Tensor | Moments, noise_variance: float) -> Tensor | Moments:
    """X times independent noise of mean one and the given variance per element."""
    if noise_variance == 0:
        return x
    if not isinstance(x, Moments):
        return Moments(x, x.square().mul_(noise_variance))
    if isinstance(x, SimplexMoments) and x.dropped is None:
        dropped = (x.mean.square() + x.variance) * noise_variance
        return SimplexMoments(x.mean, x.variance + dropped, x.spread, dropped)
    return _with_noise(x, (x.mean.square() + x.variance) * noise_variance)


def _with_noise(x: Moments, variance: Tensor | float) -> Moments:
    """Add independent variance to each element; noise shared by a channel stays shared."""
    if not isinstance(x, ChannelMoments):
        return Moments(x.mean, x.variance + variance)
    independent = torch.zeros_like(x.mean) if x.independent is None else x.independent
    return ChannelMoments(x.mean, independent + variance, x.factors, x.channels)


@noise(F.dropout, torch.dropout)
def dropout(
    x: Tensor | Moments, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor | Moments:
    """Each element dropped independently: V = a² p/(1-p) + V p/(1-p) + V.

    `training` is ignored: `F.dropout(x, p, self.training)` is a noise source in eval mode, too.
    """
    return _multiplied(x, dropout_variance(p))


layer(nn.Dropout, F.dropout, "p")


def channel_dropout(x: Tensor | Moments, p: float) -> Tensor | Moments:
    """Whole channels dropped: x_i = z_c a_i for every position i of channel c.

        Cov(i, j) = p/(1-p) a_i a_j + δ_ij V_i (1 + p/(1-p)),

    noise shared by the channel, plus the independent part. A factor that was shared before stays
    shared, and its variance grows by (1 + p/(1-p)).
    """
    variance = dropout_variance(p)
    if variance == 0:
        return x
    if not isinstance(x, Moments):
        return ChannelMoments(x, None, (x * variance**0.5,))
    shared = (x.mean * variance**0.5,)
    if isinstance(x, ChannelMoments):
        independent = None if x.independent is None else x.independent * (1 + variance)
        grown = tuple(factor * (1 + variance) ** 0.5 for factor in x.factors)
        return ChannelMoments(x.mean, independent, grown + shared, x.channels)
    return ChannelMoments(x.mean, x.variance * (1 + variance), shared)


def _channel_dropout_rule(
    function: Callable[..., Tensor], module_type: type[nn.Module], dimensions: tuple[int, ...]
) -> None:
    @noise(function)
    def channel_dropout_checked(
        x: Tensor | Moments, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor | Moments:
        """`channel_dropout` of an input that torch takes as (batch, channel, ...)."""
        shape = (x.mean if isinstance(x, Moments) else x).shape
        if len(shape) not in dimensions:
            raise PropagationError(
                f"{function.__name__} needs an input of {dimensions[-1]} dimensions, with the "
                f"batch first, not one of shape {tuple(shape)}"
            )
        return channel_dropout(x, p)

    layer(module_type, function, "p")


_channel_dropout_rule(F.dropout1d, nn.Dropout1d, (3,))
_channel_dropout_rule(F.dropout2d, nn.Dropout2d, (3, 4))  # 3: torch takes it as (N, C, L)
_channel_dropout_rule(F.dropout3d, nn.Dropout3d, (5,))


@noise(F.alpha_dropout)
def alpha_dropout(
    x: Tensor | Moments, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor | Moments:
    """y = a (α' + z (x - α')) + b, z ~ Bernoulli(q = 1-p), a = (q + α'² q p)^-½, b = -a α' p.

    With w = x - α': E[y] = a (α' + q w) + b and V[y] = a² (q V[x] + q p E[w]²). Unlike that of
    other dropout, its mean under noise, a q x, is not the plain forward pass.
    """
    dropout_variance(p)
    if p == 0:
        return x
    keep = 1 - p
    scale = (keep + _ALPHA**2 * keep * p) ** -0.5
    mean = x.mean if isinstance(x, Moments) else x
    variance = keep * p * (mean - _ALPHA).square()
    if isinstance(x, Moments):
        variance = variance + keep * x.variance
    return Moments(scale * keep * mean, scale**2 * variance)


layer(nn.AlphaDropout, F.alpha_dropout, "p")


@noise(nn.FeatureAlphaDropout, F.feature_alpha_dropout)
def feature_alpha_dropout(*arguments: object, **named_arguments: object) -> Moments:
    """Not supported."""
    raise PropagationError(
        "feature alpha dropout is not supported: use AlphaDropout (independent elements) or "
        "Dropout2d (whole channels)"
    )


@noise(AdditiveGaussianNoise)
def additive_noise(layer: AdditiveGaussianNoise, x: Tensor | Moments) -> Tensor | Moments:
    """V[X + Z] = V[X] + V[Z] (the paper's equation for added noise)."""
    if layer.std == 0:
        return x
    if not isinstance(x, Moments):
        return Moments(x, torch.full_like(x, layer.std**2))
    return _with_noise(x, layer.std**2)


@noise(MultiplicativeGaussianNoise)
def multiplicative_noise(
    layer: MultiplicativeGaussianNoise, x: Tensor | Moments
) -> Tensor | Moments:
    """X times N(1, std²)."""
    return _multiplied(x, layer.std**2)


@noise(MonteCarloBatchNorm)
def monte_carlo_batch_norm(layer: MonteCarloBatchNorm, x: Tensor | Moments) -> Moments:
    """y = γ (x - μ) s + β, where (μ, s = 1/σ) of a training batch are Gaussian per channel.

    All positions of a channel share the noise. With d = x - E[μ], s̄ = E[s] and the covariance
    (V_μ, V_s, C) of the two, an exact x has (third moments of a Gaussian vanish)

        E[y]      = γ (s̄ d - C) + β
        Cov(i, j) = γ² (V_s d_i d_j - s̄ C (d_i + d_j) + s̄² V_μ + V_μ V_s + C²),

    a quadratic form in (d, 1), whose Cholesky factor gives two shared factors. The covariance Σ of
    an uncertain x adds γ² E[s²] Σ, where E[s²] = s̄² + V_s.
    """
    mean = x.mean if isinstance(x, Moments) else x
    scale, shift, v_mean, v_scale, covariance, gamma, beta = layer.parameters_for(mean)
    d = mean - shift
    slope = v_scale.sqrt()
    # Cholesky of [[V_s, -s̄ C], [-s̄ C, s̄² V_μ + V_μ V_s + C²]]; a channel without noise has 0/0.
    offset = torch.where(slope > 0, -scale * covariance / slope.clamp(min=1e-30), 0.0)
    rest = scale.square() * v_mean + v_mean * v_scale + covariance.square() - offset.square()
    mean = gamma * (scale * d - covariance) + beta
    factors = (gamma * (slope * d + offset), (gamma * rest.clamp(min=0).sqrt()).expand_as(d))
    if not isinstance(x, Moments):
        return ChannelMoments(mean, None, factors)
    gain = gamma * (scale.square() + v_scale).sqrt()
    own, shared = own_and_shared(x)
    independent = None if own is None else gain.square() * own
    return ChannelMoments(mean, independent, factors + tuple(gain * factor for factor in shared))

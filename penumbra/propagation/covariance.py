"""The walk with the full covariance matrix, for small dense networks.

This is the paper's general form, of which `propagate` keeps the diagonal. Affine networks with
noise anywhere are exact; memory grows with the square of a layer's width.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.gaussian import rectified, standardized, upper_tail
from penumbra.propagation.layers import AdditiveGaussianNoise, MultiplicativeGaussianNoise
from penumbra.propagation.moments import CovarianceMoments, ExactMoments, Moments
from penumbra.propagation.propagate import Propagated
from penumbra.propagation.registry import full
from penumbra.propagation.rules.noise import dropout_variance

# Gauss-Legendre nodes for the covariance of rectified Gaussians: right to 1e-7 σ_i σ_j for all
# correlations and means (tests/propagation/test_covariance.py measures it).
_NODES = 16


def propagate_covariance(model: nn.Module, *, relu: str = "moment") -> Propagated:
    """A module that computes the mean and full covariance matrix of a dense network's output.

    Called like `model`, with tensors of shape (…, features), or with `Moments` (independent
    sensor noise) or `CovarianceMoments`; returns `CovarianceMoments` with `mean` (…, N) and
    `covariance` (…, N, N).

    Args:
        model: Linear layers, dropout and Gaussian noise, ReLU, sigmoid, tanh, softmax, in eval
            mode.
        relu: "moment" has the analytic mean and covariance of rectified Gaussians; "jacobian" is
            the paper's first order.
    """
    return _PropagatedCovariance(model, full, {"relu": relu})


class _PropagatedCovariance(Propagated):
    """The walk, with uncertain inputs as covariance matrices."""

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        return super().forward(
            *(_with_covariance(value) for value in inputs),
            **{name: _with_covariance(value) for name, value in named_inputs.items()},
        )


def _with_covariance(value: Any) -> Any:
    """Independent Moments as a diagonal covariance matrix."""
    if not isinstance(value, Moments) or isinstance(value, (CovarianceMoments, ExactMoments)):
        return value
    return _lifted(value.mean, value.variance)


def _lifted(mean: Tensor, variance: Tensor) -> CovarianceMoments:
    return CovarianceMoments(mean, torch.diag_embed(variance))


# ---- noise ---------------------------------------------------------------------------------------


def _multiplied(x: Tensor | CovarianceMoments, noise_variance: float) -> Any:
    """The paper's Hadamard formula, Σ_Z∘Σ + E[Z]E[Z]ᵀ∘Σ + E[X]E[X]ᵀ∘Σ_Z, with E[Z] = 1.

    The noise is independent per element, so Σ_Z = v·1 only adds to the diagonal.
    """
    if noise_variance == 0:
        return x
    if not isinstance(x, CovarianceMoments):
        return _lifted(x, x.square() * noise_variance)
    added = (x.variance + x.mean.square()) * noise_variance
    return CovarianceMoments(x.mean, x.covariance + torch.diag_embed(added))


@full.noise(F.dropout, torch.dropout)
def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Independent noise of variance p/(1-p) on every element."""
    return _multiplied(x, dropout_variance(p))


@full.noise(MultiplicativeGaussianNoise)
def multiplicative_noise(layer: MultiplicativeGaussianNoise, x: Any) -> Any:
    """X times N(1, std²)."""
    return _multiplied(x, layer.std**2)


@full.noise(AdditiveGaussianNoise)
def additive_noise(layer: AdditiveGaussianNoise, x: Any) -> Any:
    """Σ + std² 1."""
    if layer.std == 0:
        return x
    if not isinstance(x, CovarianceMoments):
        return _lifted(x, torch.full_like(x, layer.std**2))
    added = torch.full_like(x.mean, layer.std**2)
    return CovarianceMoments(x.mean, x.covariance + torch.diag_embed(added))


# ---- affine --------------------------------------------------------------------------------------


@full.rule(F.linear)
def linear(x: CovarianceMoments, weight: Tensor, bias: Tensor | None = None) -> CovarianceMoments:
    """W Σ Wᵀ: exact."""
    return CovarianceMoments(F.linear(x.mean, weight, bias), weight @ x.covariance @ weight.mT)


@full.rule(F.batch_norm)
def batch_norm(
    x: CovarianceMoments, running_mean: Tensor, running_var: Tensor, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> CovarianceMoments:  # fmt: skip
    """Scaled feature by feature: exact."""
    scale = (running_var + eps).rsqrt() * (1 if weight is None else weight)
    mean = F.batch_norm(x.mean, running_mean, running_var, weight, bias, False, 0.0, eps)
    return _linearized(x, mean, scale)


@full.rule(operator.add, torch.add, "add")
def add(x: Any, y: Any) -> CovarianceMoments:
    """Plus a constant, or plus itself."""
    if x is y:
        return multiply(x, 2)
    return _shifted(x, y)


@full.rule(operator.sub, torch.sub, "sub")
def subtract(x: Any, y: Any) -> CovarianceMoments:
    """Minus a constant, from a constant, or minus itself."""
    if x is y:
        return multiply(x, 0)
    return _shifted(x, -y if not isinstance(y, Moments) else multiply(y, -1))


@full.rule(operator.mul, torch.mul, "mul")
def multiply(x: Any, y: Any) -> CovarianceMoments:
    """By an exact factor."""
    x, y = (x, y) if isinstance(x, Moments) else (y, x)
    if isinstance(y, Moments):
        raise PropagationError("the product of two uncertain values has no covariance rule")
    return _linearized(x, x.mean * y, torch.as_tensor(y, dtype=x.mean.dtype).expand_as(x.mean))


def _shifted(x: Any, y: Any) -> CovarianceMoments:
    x, y = (x, y) if isinstance(x, Moments) else (y, x)
    if isinstance(y, Moments):
        raise PropagationError(
            "the joint covariance of two different uncertain values is not kept: full covariance "
            "is for plain chains of layers; use propagate for skip connections"
        )
    return CovarianceMoments(x.mean + y, x.covariance)


def _linearized(x: CovarianceMoments, mean: Tensor, slope: Tensor) -> CovarianceMoments:
    """J Σ Jᵀ for the diagonal Jacobian of an element-wise function."""
    return CovarianceMoments(mean, slope.unsqueeze(-1) * x.covariance * slope.unsqueeze(-2))


# ---- activations ---------------------------------------------------------------------------------

_RELU = (F.relu, torch.relu, torch.relu_, "relu", "relu_")


@full.rule(*_RELU, relu="jacobian")
def relu_jacobian(x: CovarianceMoments, inplace: bool = False) -> CovarianceMoments:
    """J Σ Jᵀ, J = 1 where the mean is positive."""
    return _linearized(x, x.mean.clamp(min=0), (x.mean > 0).to(x.mean))


@full.rule(*_RELU, relu="moment")
def relu_moment(x: CovarianceMoments, inplace: bool = False) -> CovarianceMoments:
    """Mean and covariance of rectified Gaussians.

    By Price's theorem ∂E[X⁺Y⁺]/∂Cov(X,Y) = P(X > 0, Y > 0), whose own derivative by the correlation
    is the bivariate density φ₂. Integrated twice from correlation zero, with t = sin θ,

        Cov(X⁺, Y⁺) = σ_x σ_y (ρ Φ(z_x) Φ(z_y) + ∫₀^asin ρ (ρ - sin θ) e(θ) dθ / 2π)
        e(θ) = exp(-(z_x² - 2 z_x z_y sin θ + z_y²) / (2 cos² θ)),

    one smooth integral in place of Owen's T (the same quantity as Wright et al. 2024).
    """
    diagonal = rectified(x.mean, x.variance)
    std = x.variance.sqrt()
    z = standardized(x.mean, std)
    scale = std.unsqueeze(-1) * std.unsqueeze(-2)
    rho = (x.covariance / scale.clamp(min=torch.finfo(scale.dtype).tiny)).clamp(-1, 1)
    positive = 1 - upper_tail(z)
    covariance = rho * positive.unsqueeze(-1) * positive.unsqueeze(-2)
    half = torch.asin(rho) / 2
    row, column = z.unsqueeze(-1), z.unsqueeze(-2)
    for node, weight in zip(*np.polynomial.legendre.leggauss(_NODES), strict=True):
        angle = half * (1 + float(node))
        sine, cosine = torch.sin(angle), torch.cos(angle)
        exponent = ((row - sine * column) / cosine).square() + column.square()
        share = half * (rho - sine) * torch.exp(-0.5 * exponent)
        covariance = covariance + float(weight) / (2 * math.pi) * share
    covariance = scale * (covariance + covariance.mT) / 2  # symmetric despite rounding
    # The diagonal has a closed form.
    unit = torch.eye(z.shape[-1], dtype=torch.bool, device=z.device)
    covariance = torch.where(unit, torch.diag_embed(diagonal.variance), covariance)
    return CovarianceMoments(diagonal.mean, covariance)


def _smooth_rule(
    function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], *targets: Any
) -> None:
    @full.rule(function, *targets)
    def first_order(x: CovarianceMoments) -> CovarianceMoments:
        """J Σ Jᵀ with J = f'(μ) (the supplement)."""
        mean = function(x.mean)
        return _linearized(x, mean, slope(mean))


_smooth_rule(torch.sigmoid, lambda s: s * (1 - s), F.sigmoid, torch.sigmoid_, "sigmoid")
_smooth_rule(torch.tanh, lambda t: 1 - t.square(), F.tanh, torch.tanh_, "tanh")


@full.rule(F.softmax, torch.softmax, "softmax")
def softmax(
    x: CovarianceMoments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> CovarianceMoments:
    """J Σ Jᵀ with J = diag(s) - s sᵀ (the supplement)."""
    if dim not in (None, -1, x.mean.dim() - 1):
        raise PropagationError("softmax must go over the last dimension, where the covariance is")
    s = torch.softmax(x.mean, -1, dtype=dtype)
    jacobian = torch.diag_embed(s) - s.unsqueeze(-1) * s.unsqueeze(-2)
    return CovarianceMoments(s, jacobian @ x.covariance @ jacobian.mT)


@full.rule(nn.Identity)
def identity(layer: nn.Identity, x: CovarianceMoments) -> CovarianceMoments:
    """The value itself."""
    return x


full.layer(nn.Dropout, F.dropout, "p")
full.layer(nn.Linear, F.linear, "weight", "bias")
full.layer(nn.BatchNorm1d, F.batch_norm, "running_mean", "running_var", "weight", "bias", "eps")
full.layer(nn.ReLU, F.relu)
full.layer(nn.Sigmoid, torch.sigmoid)
full.layer(nn.Tanh, torch.tanh)
full.layer(nn.Softmax, F.softmax, "dim")

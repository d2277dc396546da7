"""ELU, SELU and CELU against the closed form in many digits, and against integration."""

import mpmath
import pytest
import torch
import torch.nn.functional as F
from function_models import Call
from torch import nn

from penumbra.propagation import Moments, propagate
from penumbra.propagation.rules.elu import _erfcx

LAYERS = {
    "ELU": (nn.ELU(), {}),
    "ELU 0.4": (nn.ELU(0.4), {"alpha": 0.4}),
    "SELU": (nn.SELU(), {"alpha": 1.6732632423543772, "scale": 1.0507009873554805}),
    "CELU": (nn.CELU(1.7), {"alpha": 1.7, "rate": 1 / 1.7}),
}


def exact(mean, variance, alpha=1.0, scale=1.0, rate=1.0):
    """E and Var by the textbook moments E[f²] - E[f]², in 80 digits."""
    with mpmath.workdps(80):
        mean, variance, alpha, scale, rate = map(mpmath.mpf, (mean, variance, alpha, scale, rate))
        std = mpmath.sqrt(variance)
        z = mean / std
        above, below, pdf = mpmath.ncdf(z), mpmath.ncdf(-z), mpmath.npdf(z)

        def exponential(k):
            k = k * rate
            tail = mpmath.ncdf(-(mean + k * variance) / std)
            return mpmath.exp(k * mean + k**2 * variance / 2) * tail

        first = mean * above + std * pdf + alpha * (exponential(1) - below)
        squared = (variance + mean**2) * above + mean * std * pdf
        squared += alpha**2 * (exponential(2) - 2 * exponential(1) + below)
        return float(scale * first), float(scale**2 * (squared - first**2))


def errors(model, settings, std, dtype, z=(-7.5, -3, -1, -0.25, 0, 0.5, 2, 5)):
    """Largest error over means near zero and up to ±40, in units of max(1, σ, |μ|) and σ²."""
    means = [*(std * value for value in z), -40.0, -10.0, -2.5, -0.3, 0.3, 2.5, 40.0]
    mean = torch.tensor(means, dtype=dtype)
    variance = torch.full_like(mean, std**2)
    out = propagate(model)(Moments(mean, variance))
    assert torch.isfinite(out.mean).all()
    assert (out.variance >= 0).all()
    worst = [0.0, 0.0]
    rows = zip(*(t.tolist() for t in (mean, variance, out.mean, out.variance)), strict=True)
    for m, v, got_mean, got_variance in rows:
        expected = exact(m, v, **settings)
        worst[0] = max(worst[0], abs(got_mean - expected[0]) / max(1.0, std, abs(m)))
        worst[1] = max(worst[1], abs(got_variance - expected[1]) / v)
    return worst


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("std", [1e-8, 1e-5, 1e-4, 1.3e-4, 1e-3, 0.1, 1.0, 10.0, 1e4, 1e6])
def test_double_precision(name, std):
    mean_error, variance_error = errors(*LAYERS[name], std, torch.float64)
    assert mean_error <= 1e-12
    # ε/σ² of a difference from above, (rate σ)² of second order from below: 1.2e-4 is where they
    # meet, at 1.5e-8 times some alpha²; measured 1.8e-7 there (SELU)
    assert variance_error <= 1e-6


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("std", [1e-15, 1e-8, 1e-4, 0.01, 1.0, 30.0, 1e6])
def test_single_precision(name, std):
    mean_error, variance_error = errors(*LAYERS[name], std, torch.float32)
    # computed in double precision, rounded once: 6e-8 of the result, which is scale² σ² at most
    assert mean_error <= 1.5e-7
    assert variance_error <= 5e-7


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("std", "bound"),
    # All in single precision: second order below rate σ = 0.019, a difference of rounded values
    # above it. Measured: 9.4e-4 (SELU) where they meet.
    [(1e-8, 1e-6), (1e-4, 1e-6), (1e-3, 1e-5), (0.015, 2e-3), (0.02, 2e-3), (0.03, 2e-3),
     (0.1, 1e-4), (1.0, 4e-6), (30.0, 2e-6), (1e6, 2e-6)],
)  # fmt: skip
def test_exported_form_in_single_precision(name, std, bound, exporting):
    mean_error, variance_error = errors(*LAYERS[name], std, torch.float32)
    assert mean_error <= 2e-6  # alpha times what the fit of erfcx and rounding leave
    assert variance_error <= bound


def test_exported_erfcx(exporting):
    x = torch.cat([torch.linspace(0, 8, 161), torch.logspace(1, 6, 21)])
    reference = torch.special.erfcx(x.double())
    # the published fit is good to 1.2e-7, and its exponent's rounding adds a few units
    assert ((_erfcx(x).double() / reference - 1).abs() <= 8e-7).all()
    assert ((_erfcx(x.double()) / reference - 1).abs() <= 1.2e-7).all()


@pytest.mark.parametrize("name", LAYERS)
def test_moments_are_those_of_integration(name, gaussian_moments):
    """Against the layer itself, so that alpha, scale and rate are torch's."""
    model, _ = LAYERS[name]
    for m, s in ((-3.0, 0.5), (-0.2, 1.0), (0.0, 0.3), (0.4, 2.0), (2.0, 1.0)):
        mean, variance = (torch.tensor([v], dtype=torch.float64) for v in (m, s**2))
        out = propagate(model)(Moments(mean, variance))
        expected = gaussian_moments(model, m, s, [0.0])
        assert out.mean.item() == pytest.approx(expected[0], rel=1e-12)
        assert out.variance.item() == pytest.approx(expected[1], rel=1e-12)


FUNCTIONS = {
    "F.elu": (lambda x: F.elu(x, 0.4), "ELU 0.4"),
    "F.selu": (F.selu, "SELU"),
    "torch.selu": (torch.selu, "SELU"),
    "F.celu": (lambda x: F.celu(x, alpha=1.7), "CELU"),
}


@pytest.mark.parametrize("smooth", ["moment", "jacobian"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_like_their_layers(name, smooth):
    function, layer = FUNCTIONS[name]
    x = Moments(torch.linspace(-2, 2, 9), torch.full((9,), 0.7))
    ours, theirs = (propagate(m, smooth=smooth)(x) for m in (Call(function), LAYERS[layer][0]))
    assert torch.equal(ours.mean, theirs.mean)
    assert torch.equal(ours.variance, theirs.variance)


@pytest.mark.parametrize("name", LAYERS)
def test_jacobian_is_the_derivative_squared(name):
    model, _ = LAYERS[name]
    mean = torch.linspace(-5, 5, 30, dtype=torch.float64)
    out = propagate(model, smooth="jacobian")(Moments(mean, torch.full_like(mean, 0.3)))
    leaf = mean.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(leaf).sum(), leaf)
    torch.testing.assert_close(out.mean, model(mean), rtol=1e-13, atol=0)
    # torch's derivative of CELU has the 1/alpha of single precision in its exponent
    rtol = 5 * 6e-8 if name == "CELU" else 1e-13
    torch.testing.assert_close(out.variance, 0.3 * slope.square(), rtol=rtol, atol=0)

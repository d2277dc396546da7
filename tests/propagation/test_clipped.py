"""Activations with two corners against integration, and in their first-order form."""

import math

import pytest
import torch
import torch.nn.functional as F
from function_models import Call
from torch import nn

from penumbra.propagation import Moments, PropagationError, propagate

MODELS = {
    "ReLU6": (nn.ReLU6(), [0, 6]),
    "Hardtanh": (nn.Hardtanh(-0.5, 2.0), [-0.5, 2]),
    "Hardsigmoid": (nn.Hardsigmoid(), [-3, 3]),
    "F.relu6": (Call(F.relu6), [0, 6]),
    "F.hardtanh": (Call(F.hardtanh), [-1, 1]),
    "torch.clamp": (Call(lambda x: torch.clamp(x, -1, 3)), [-1, 3]),
    ".clamp()": (Call(lambda x: x.clamp(min=-0.2, max=0.1)), [-0.2, 0.1]),
    "dyadic bounds": (Call(lambda x: x.clamp(-0.25, 0.125)), [-0.25, 0.125]),
    "clamp from below": (Call(lambda x: x.clamp(min=0.5)), [0.5]),
    "clamp from above": (Call(lambda x: torch.clamp(x, max=-0.5)), [-0.5]),
}


@pytest.mark.parametrize("name", MODELS)
def test_moments_are_those_of_integration(name, gaussian_moments):
    model, corners = MODELS[name]
    for m in (-40.0, -3.0, -0.5, 0.0, 0.3, 2.0, 3.0, 6.5, 40.0):
        for s in (1e-3, 0.2, 1.0, 5.0, 100.0):
            mean, variance = (torch.tensor([v], dtype=torch.float64) for v in (m, s**2))
            out = propagate(model)(Moments(mean, variance))
            expected = gaussian_moments(model, m, s, corners)
            # a closed form whose terms are of the size of σ and σ²
            assert out.mean.item() == pytest.approx(expected[0], rel=1e-12, abs=1e-14 * s)
            assert out.variance.item() == pytest.approx(expected[1], rel=1e-11, abs=1e-14 * s**2)


@pytest.mark.parametrize("name", MODELS)
def test_jacobian_is_the_derivative_squared(name):
    model, _ = MODELS[name]
    mean = torch.linspace(-7.01, 7.03, 40, dtype=torch.float64)
    out = propagate(model, relu="jacobian")(Moments(mean, torch.full_like(mean, 0.3)))
    leaf = mean.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(leaf).sum(), leaf)
    torch.testing.assert_close(out.mean, model(mean), rtol=1e-15, atol=1e-15)
    # torch's derivative of hardsigmoid is the 1/6 of single precision
    rtol = 1.2e-7 if name == "Hardsigmoid" else 1e-14
    torch.testing.assert_close(out.variance, 0.3 * slope.square(), rtol=rtol, atol=0)


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize("name", ["ReLU6", "F.hardtanh", "clamp from above"])
def test_single_precision_is_right_to_a_millionth_of_sigma(name, exported, monkeypatch):
    model, _ = MODELS[name]
    z = torch.linspace(-12, 12, 481)
    for std in (1e-4, 0.1, 1.0, 10.0, 1e4):
        x = Moments(z * std, torch.full_like(z, std**2))
        double = propagate(model)(Moments(x.mean.double(), x.variance.double()))
        with monkeypatch.context() as patch:
            patch.setattr(torch.compiler, "is_exporting", lambda: exported)
            single = propagate(model)(x)
        # measured: 3.4e-7 σ, and half a unit in the last place of bounds up to 6; 1.1e-7 σ²,
        # exported 5.5e-7 σ²
        assert ((single.mean - double.mean).abs() <= 1e-6 * std + 4e-7).all()
        assert ((single.variance - double.variance).abs() <= 1e-6 * std**2).all()
        assert (single.variance >= 0).all()


@pytest.mark.parametrize("exported", [False, True])
def test_limits(exported, monkeypatch):
    """Without variance the plain function; with unbounded variance a coin between the bounds."""
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: exported)
    x = torch.tensor([-2.0, 0.0, 3.0, 6.0, 9.0])
    still = propagate(nn.ReLU6())(Moments(x, torch.zeros(5)))
    assert torch.equal(still.mean, F.relu6(x))
    assert torch.equal(still.variance, torch.zeros(5))
    for std in (3e4, 1e6, 1e10):
        wide = propagate(nn.ReLU6())(Moments(x, torch.full((5,), std**2)))
        # The mean moves by 6 φ(0) (μ - 3)/σ, the variance falls by 2 · 6³ φ(0) / (6 σ) at most.
        assert wide.mean.tolist() == pytest.approx([3.0] * 5, abs=15 / std + 1e-6)
        assert wide.variance.tolist() == pytest.approx([9.0] * 5, abs=30 / std + 1e-5)


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize("name", ["ReLU6", "F.hardtanh", "Hardsigmoid", "dyadic bounds"])
def test_single_precision_over_twelve_decades_of_sigma(
    name, exported, gaussian_moments, monkeypatch
):
    """Errors in units of the smaller of σ and the interval's width, and of the square of it.

    The mean is rounded to half a unit of a bound several times. Bounds must be exact in float32.
    """
    model, corners = MODELS[name]
    low, high = corners
    scale = 6 if name == "Hardsigmoid" else 1
    for std in [10.0**k for k in range(-6, 7)]:
        z = torch.tensor([-1e3, -5.0, -2.0, -0.4, 0.0, 0.7, 3.0, 40.0], dtype=torch.float64)
        mean = torch.cat([c + z * std for c in (low, (low + high) / 2, high)]).float()
        x = Moments(mean, torch.full_like(mean, std**2))
        with monkeypatch.context() as patch:
            patch.setattr(torch.compiler, "is_exporting", lambda: exported)
            out = propagate(model)(x)
        unit = min(x.variance[0].item() ** 0.5, high - low) / scale
        value = 1 if name == "Hardsigmoid" else max(abs(low), abs(high))
        for m, v, got_mean, got in zip(
            *(c.tolist() for c in (mean, x.variance, out.mean, out.variance)), strict=True
        ):
            expected_mean, expected = gaussian_moments(model, m, v**0.5, corners)
            # Integration itself rounds its nodes to half a unit of the mean.
            rounding = 4e-16 * abs(m) / v**0.5
            assert abs(got_mean - expected_mean) <= 4e-7 * unit + 1.2e-7 * value
            assert abs(got - expected) <= (1e-6 + rounding) * unit**2
            assert 0 <= got <= ((high - low) / (2 * scale)) ** 2 * (1 + 1e-7)


def test_the_gradient_is_finite_at_any_width():
    variance = torch.logspace(-12, 12, 25).requires_grad_()
    mean = torch.linspace(-8, 14, 25).requires_grad_()
    out = propagate(nn.ReLU6())(Moments(mean, variance))
    (out.mean + out.variance).sum().backward()
    assert mean.grad.isfinite().all()
    assert variance.grad.isfinite().all()


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, math.inf), (-math.inf, 1.0), (-math.inf, math.inf), (2.0, 2.0)]
)
def test_infinite_and_equal_bounds(low, high, gaussian_moments):
    model = Call(lambda x: x.clamp(low, high))
    out = propagate(model)(Moments(torch.tensor([0.3]), torch.tensor([1.0])))
    corners = [bound for bound in (low, high) if math.isfinite(bound)]
    expected = gaussian_moments(model, 0.3, 1.0, corners)
    assert out.mean.item() == pytest.approx(expected[0], abs=1e-6)
    assert out.variance.item() == pytest.approx(expected[1], abs=1e-6)


@pytest.mark.parametrize("bounds", [(None, None), (2.0, 1.0), (torch.tensor(0.0), None)])
def test_bounds_that_make_no_sense_are_refused(bounds):
    x = Moments(torch.zeros(2), torch.ones(2))
    with pytest.raises(PropagationError, match="clamp"):
        propagate(Call(lambda v: torch.clamp(v, *bounds)))(x)


@pytest.mark.parametrize("relu", ["moment", "jacobian"])
def test_relu6_survives_the_export(relu, through_onnx):
    model = propagate(nn.Sequential(nn.Dropout(0.3), nn.Hardtanh(0, 6)).eval(), relu=relu)
    x = torch.linspace(-3, 12, 31).reshape(1, 31)
    out = model(x)
    mean, variance = (torch.from_numpy(value) for value in through_onnx(model, x))
    # erf instead of erfc: 1e-6 of σ² (σ is 0.65 |x| here)
    torch.testing.assert_close(mean, out.mean, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(variance, out.variance, rtol=1e-5, atol=1e-4)

"""Sigmoid, tanh, softplus, GELU, SiLU and others against integration and autograd."""

import pytest
import torch
import torch.nn.functional as F
from function_models import Call
from torch import nn

from penumbra.propagation import Moments, propagate

MODELS = {
    "Sigmoid": nn.Sigmoid(),
    "Tanh": nn.Tanh(),
    "Softplus": nn.Softplus(),
    "Softplus of rate 3": nn.Softplus(beta=3, threshold=30),
    "GELU": nn.GELU(),
    "GELU by tanh": nn.GELU("tanh"),
    "SiLU": nn.SiLU(),
    "F.sigmoid": Call(torch.sigmoid),
    ".tanh()": Call(lambda x: x.tanh()),
    "F.softplus": Call(lambda x: F.softplus(x, 0.5)),
    "F.gelu": Call(F.gelu),
    "F.silu": Call(F.silu),
}
MEANS = [-1000.0, -20.0, -7.5, -3.0, -1.1, -0.4, 0.0, 0.2, 0.9, 2.0, 4.0, 9.0, 20.0, 1000.0]
# Widths next to the two switches (0.625 for reach 8, 1.25 for reach 16, and a third and twice of
# the latter for softplus of other rates), where the error is largest, and far from them.
STDS = [
    1e-3, 0.05, 0.3, 0.41, 0.42, 0.62, 0.63, 0.9, 1.24, 1.26, 2.0, 2.49, 2.51, 3.0, 10.0, 100.0, 1e4
]  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_moments_are_right_to_the_stated_bound(name, gaussian_moments):
    """The bound that rules/smooth.py states for every mean and width."""
    model = MODELS[name]
    grid = [(m, s) for m in MEANS for s in STDS]
    mean, std = torch.tensor(grid, dtype=torch.float64).unbind(1)
    out = propagate(model)(Moments(mean, std.square()))
    expected = torch.tensor(
        [gaussian_moments(model, m, s) for m, s in grid], dtype=torch.float64
    )  # fmt: skip
    # Softplus of rate β is that of rate one divided by β; rounding adds 1e-12 of large values.
    size = 2.0 if name == "F.softplus" else 1.0
    error = (torch.stack([out.mean, out.variance], 1) - expected).abs()
    rounding = 1e-12 * (expected.abs() + std[:, None] ** torch.tensor([1, 2]))
    assert (error[:, 0] <= size * 3e-6 + rounding[:, 0]).all()
    assert (error[:, 1] <= size**2 * 6e-6 + rounding[:, 1]).all()
    assert (out.variance >= 0).all()


@pytest.mark.parametrize("name", MODELS)
def test_jacobian_is_the_derivative_squared(name):
    model = MODELS[name]
    mean = torch.linspace(-40, 40, 161, dtype=torch.float64)
    out = propagate(model, smooth="jacobian")(Moments(mean, torch.full_like(mean, 0.3)))
    leaf = mean.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(leaf).sum(), leaf)
    torch.testing.assert_close(out.mean, model(mean), rtol=1e-14, atol=0)
    # autograd's own derivatives of tanh and GELU cancel in the tails: 1 - tanh², Φ from 1 + erf
    torch.testing.assert_close(out.variance, 0.3 * slope.square(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", MODELS)
def test_small_variance_is_first_order_in_single_precision(name):
    """Differences of float32 values would be 10 % off at σ = 1e-6, and vanish at 1e-8."""
    model = MODELS[name]
    mean = torch.linspace(-3, 3, 13)
    for std in (1e-12, 1e-8, 1e-6, 1e-4, 1e-3):
        out = propagate(model)(Moments(mean, torch.full_like(mean, std**2)))
        leaf = mean.double().requires_grad_()
        (slope,) = torch.autograd.grad(model(leaf).sum(), leaf)
        relative = (out.variance.double() / std**2 - slope.square()).abs()
        # the next order adds (f''²/2 + f' f''') σ²: tanh has the most, -2σ² at zero; slopes are
        # rounded to a few 1e-7
        assert (relative <= 2 * std**2 + 1e-6).all()


@pytest.mark.parametrize("name", MODELS)
def test_single_precision_agrees_with_double(name):
    model = MODELS[name]
    for std in (0.01, 0.1, 0.6, 1.2, 1.3, 3.0, 30.0, 1e4):
        mean = torch.linspace(-20, 20, 161)
        x = Moments(mean, torch.full_like(mean, std**2))
        single = propagate(model)(x)
        double = propagate(model)(Moments(x.mean.double(), x.variance.double()))
        size = 1.0 if "igmoid" in name or "anh" in name[:5] else 20 + 6 * std
        # A sum over nodes of rounded values: some 1e-7 of the largest of them, 6 σ from the mean.
        assert ((single.mean - double.mean).abs() <= 1e-6 * size).all()
        # Differences within 6 σ are squared; each is known to 1e-7 of the value.
        width = min(1.0, 6 * std) if size == 1.0 else 6 * std
        assert ((single.variance - double.variance).abs() <= 1e-6 * size * width).all()


@pytest.mark.parametrize("name", MODELS)
def test_exact_input_gives_the_plain_output(name):
    x = torch.linspace(-30, 30, 121)
    out = propagate(MODELS[name])(Moments(x, torch.zeros_like(x)))
    torch.testing.assert_close(out.mean, MODELS[name](x), rtol=1e-6, atol=0)
    assert torch.equal(out.variance, torch.zeros_like(x))


@pytest.mark.parametrize(
    ("model", "corners", "bound"),
    # Hardswish's slope jumps by a half at its corners, next to which Gauss-Hermite errs.
    [
        (nn.LogSigmoid(), (), 2e-6),
        (nn.Mish(), (), 6e-5),
        (nn.Hardswish(), (-3.0, 3.0), 6e-3),
    ],
    ids=["logsigmoid", "mish", "hardswish"],
)
def test_other_activations_are_right_to_a_share_of_the_noise(
    model, corners, bound, gaussian_moments
):
    grid = [(m, s) for m in MEANS for s in STDS]
    mean, std = torch.tensor(grid, dtype=torch.float64).unbind(1)
    out = propagate(model)(Moments(mean, std.square()))
    expected = torch.tensor(
        [gaussian_moments(model, m, s, corners) for m, s in grid], dtype=torch.float64
    )
    assert ((out.mean - expected[:, 0]).abs() <= bound * std + 1e-9).all()
    assert ((out.variance - expected[:, 1]).abs() <= bound * std.square() + 1e-9).all()
    leaf = torch.linspace(-4, 4, 50, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(model(leaf).sum(), leaf)
    first = propagate(model, smooth="jacobian")(Moments(leaf.detach(), 0 * slope + 1))
    torch.testing.assert_close(first.variance, slope.square())

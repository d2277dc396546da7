"""Activations with one corner against integration, and in their first-order form."""

import pytest
import torch
import torch.nn.functional as F
from function_models import Call, Net
from torch import nn

from penumbra.propagation import Moments, propagate

MEANS = [-30.0, -5.0, -1.0, -0.1, 0.0, 0.02, 0.7, 3.0, 20.0]
STDS = [1e-3, 0.1, 1.0, 4.0, 100.0]
PRELU = nn.PReLU(1, init=-0.4).double().requires_grad_(False)

LAYERS = {
    "ReLU": nn.ReLU(),
    "ReLU inplace": nn.ReLU(inplace=True),
    "LeakyReLU": nn.LeakyReLU(),
    "LeakyReLU steep": nn.LeakyReLU(1.7),
    "PReLU": PRELU,
}


FUNCTIONS = {
    "F.relu": F.relu,
    "torch.relu": torch.relu,
    ".relu()": lambda x: x.relu(),
    "F.leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "torch.abs": torch.abs,
    ".abs()": lambda x: x.abs(),
    "abs": abs,
}
MODELS = {
    **LAYERS,
    **{name: Call(function) for name, function in FUNCTIONS.items()},
    "F.prelu": Net(lambda net, x: F.prelu(x, net.prelu.weight), prelu=PRELU),
}


def grid():
    mean, std = (t.flatten() for t in torch.meshgrid(
        torch.tensor(MEANS, dtype=torch.float64), torch.tensor(STDS, dtype=torch.float64),
        indexing="ij",
    ))  # fmt: skip
    return mean, std


@pytest.mark.parametrize("name", MODELS)
def test_moments_are_those_of_integration(name, gaussian_moments):
    model = MODELS[name]
    mean, std = grid()
    out = propagate(model)(Moments(mean.clone(), std.square()))
    for m, s, got_mean, got_variance in zip(mean, std, out.mean, out.variance, strict=True):
        with torch.no_grad():
            expected = gaussian_moments(lambda v: model(v.clone()), m.item(), s.item(), [0.0])
        # a closed form: rounding of both sides, in units of the terms that are added
        assert got_mean.item() == pytest.approx(expected[0], rel=1e-12, abs=1e-13 * s.item())
        assert got_variance.item() == pytest.approx(
            expected[1], rel=1e-11, abs=1e-13 * s.item() ** 2
        )


@pytest.mark.parametrize("name", MODELS)
def test_jacobian_is_the_derivative_squared(name):
    model = MODELS[name]
    mean = torch.linspace(-3, 3, 12, dtype=torch.float64)  # zero itself has no derivative
    out = propagate(model, relu="jacobian")(Moments(mean.clone(), torch.full_like(mean, 0.3)))
    leaf = mean.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(leaf * 1).sum(), leaf)
    torch.testing.assert_close(out.mean, model(mean.clone()), rtol=1e-15, atol=0)
    torch.testing.assert_close(out.variance, 0.3 * slope.square(), rtol=1e-15, atol=0)


@pytest.mark.parametrize("relu", ["moment", "jacobian"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_dtype_stays(name, relu, dtype):
    x = Moments(torch.linspace(-2, 2, 5, dtype=dtype), torch.full((5,), 0.25, dtype=dtype))
    if name in ("PReLU", "F.prelu") and dtype != torch.float64:
        pytest.skip("the layer's weight is in double precision")
    out = propagate(MODELS[name], relu=relu)(x)
    assert out.mean.dtype == dtype
    assert out.variance.dtype == dtype


def test_prelu_has_a_slope_for_each_channel(gaussian_moments):
    layer = nn.PReLU(3).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.1, 2.0, -1.0]))
    mean = torch.full((2, 3, 2, 2), -0.4, dtype=torch.float64)
    out = propagate(layer)(Moments(mean, torch.full_like(mean, 0.5)))
    for channel, slope in enumerate((0.1, 2.0, -1.0)):
        expected = gaussian_moments(
            lambda v, slope=slope: torch.where(v > 0, v, slope * v), -0.4, 0.5**0.5, [0.0]
        )
        assert out.mean[:, channel].flatten().tolist() == pytest.approx([expected[0]] * 8)
        assert out.variance[:, channel].flatten().tolist() == pytest.approx([expected[1]] * 8)


@pytest.mark.parametrize("name", ["LeakyReLU", "torch.abs"])
def test_single_precision_at_the_extremes(name):
    """Like ReLU (test_gaussian.py), of which these are made: 1e-6 σ and σ², here against float64.

    The mean is f(μ) itself far from the corner, rounded in proportion to |μ|.
    """
    z = torch.linspace(-40, 40, 641)
    for variance in (1e-12, 1.0, 1e12):
        std = variance**0.5
        x = Moments(z * std, torch.full_like(z, variance))
        single = propagate(MODELS[name])(x)
        double = propagate(MODELS[name])(Moments(x.mean.double(), x.variance.double()))
        error = (single.mean - double.mean).abs() / std
        assert (error <= 1e-6 + 1.2e-7 * z.abs()).all()
        assert ((single.variance - double.variance).abs() <= 1e-6 * variance).all()
        assert (single.variance >= 0).all()

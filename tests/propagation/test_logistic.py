"""The closed form of sigmoid and tanh against integration, and in an exported graph's form."""

import pytest
import torch
from torch import nn

from penumbra.propagation import Moments, propagate

MEANS = [-12.0, -6.0, -4.0, -2.5, -1.0, -0.3, 0.0, 0.6, 2.0, 5.0, 30.0]
STDS = [0.01, 0.1, 0.35, 0.7, 1.0, 1.09, 1.11, 2.0, 7.0, 60.0, 1e4]
GRID = [(mean, std) for mean in MEANS for std in STDS]


def moments_of(model, gaussian_moments):
    mean, std = torch.tensor(GRID, dtype=torch.float64).unbind(1)
    out = propagate(model)(Moments(mean, std.square()))
    expected = torch.tensor([gaussian_moments(model, m, s) for m, s in GRID], dtype=torch.float64)
    return out, expected


@pytest.mark.parametrize(("model", "size"), [(nn.Sigmoid(), 1.0), (nn.Tanh(), 2.0)])
def test_moments_for_every_width(model, size, gaussian_moments):
    """The bounds of rules/logistic.py; tanh is twice as high, and twice as steep."""
    out, expected = moments_of(model, gaussian_moments)
    assert ((out.mean - expected[:, 0]).abs() <= size * 6e-8 + 1e-12).all()
    assert ((out.variance - expected[:, 1]).abs() <= size**2 * 3e-7 + 1e-12).all()
    assert (out.variance >= 0).all()


def test_a_small_variance_keeps_its_digits_where_the_sigmoid_is_flat(gaussian_moments):
    """Far objects have disparities of a percent: nodes, not the difference of the mixture."""
    mean, std = torch.tensor([[-4.5, -3.0], [0.3, 0.3]], dtype=torch.float64)
    out = propagate(nn.Sigmoid())(Moments(mean, std.square()))
    for number, m in enumerate(mean.tolist()):
        expected = gaussian_moments(torch.sigmoid, m, 0.3)[1]
        assert out.variance[number].item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("form", ["eager", "exporting"])
def test_single_precision(form, request):
    if form == "exporting":
        request.getfixturevalue("exporting")
    mean, std = torch.tensor(GRID).unbind(1)
    exact = propagate(nn.Sigmoid())(Moments(mean.double(), std.double().square()))
    out = propagate(nn.Sigmoid())(Moments(mean, std.square()))
    # ten rounded terms, and 1 - erf where there is no erfc: a few units of 6e-8
    assert ((out.mean - exact.mean).abs() <= 5e-7).all()
    assert ((out.variance - exact.variance).abs() <= 5e-7).all()
    assert torch.isfinite(out.variance).all()


FAR = [(m, s) for m in (-14.0, -10.0, -8.6, -6.0, -4.3, 8.0) for s in (0.71, 1.0, 1.11, 1.5)]


@pytest.mark.parametrize("form", ["double", "eager", "exporting"])
def test_the_tail_keeps_its_digits_at_any_width(form, gaussian_moments, request):
    """The disparity of the sky is 1e-4 of the largest. Its relative error is no larger for that."""
    if form == "exporting":
        request.getfixturevalue("exporting")
    mean, std = torch.tensor(FAR, dtype=torch.float64 if form == "double" else None).unbind(1)
    out = propagate(nn.Sigmoid())(Moments(mean, std.square()))
    for number, (m, s) in enumerate(FAR):
        expected, variance = gaussian_moments(torch.sigmoid, -abs(m), s)
        # 3e-5 where the mixture begins: its 5e-8 of a variance of 1e-3
        assert out.std[number].item() == pytest.approx(variance**0.5, rel=4e-5)
        if m < 0:
            assert out.mean[number].item() == pytest.approx(expected, rel=4e-5)


def test_gradients_are_finite_everywhere():
    mean = torch.linspace(-30, 30, 121).repeat_interleave(4).requires_grad_()
    variance = torch.tensor([0.0, 0.3, 4.0, 1e6]).repeat(121).requires_grad_()
    out = propagate(nn.Sigmoid())(Moments(mean, variance))
    (out.mean.sum() + out.variance.sum()).backward()
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(variance.grad[variance > 0]).all()

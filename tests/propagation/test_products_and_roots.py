"""einsum, addcmul, GLU, norms by length, logarithm, roots, variance over a dimension."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from penumbra.propagation import Moments, PropagationError, UnsupportedLayerError, propagate

RANDOM = torch.Generator().manual_seed(0)
SAMPLES = 20_000


def moments(*shape, shift=0.0, std=0.3):
    return Moments(torch.randn(*shape, generator=RANDOM) + shift, torch.full(shape, std**2))


X, Y = moments(3, 4, 6), moments(3, 6, 5)
EXACT = torch.randn(3, 6, 5, generator=RANDOM)
POSITIVE = Moments(torch.rand(3, 4, 6, generator=RANDOM) + 1, torch.full((3, 4, 6), 0.04))

# Products of independent values are exact.
PRODUCTS = {
    "einsum, one": (lambda x: torch.einsum("bij,bjk->bik", x, EXACT), (X,)),
    "einsum, two": (lambda x, y: torch.einsum("bij,bjk->bki", x, y), (X, Y)),
    "einsum, ellipsis": (lambda x: torch.einsum("...j,...jk->...k", x, EXACT[:, None]), (X,)),
    "addcmul": (lambda x, y: torch.addcmul(x, y, y * 0 + 2, value=0.5), (X, moments(3, 4, 6))),
    "addmm": (lambda x, y: torch.addmm(x, y, EXACT[0, :, :4]), (moments(4, 4), moments(4, 6))),
    "baddbmm": (lambda x, y: torch.baddbmm(torch.ones(3, 4, 5), x, y, alpha=2), (X, Y)),
    "var": (lambda x: x.var(2), (X,)),
    "var, biased": (lambda x: torch.var(x, (1, 2), correction=0, keepdim=True), (X,)),
    "var, unbiased=False": (lambda x: x.var(-1, False), (X,)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_independent_values_are_exact(name, against_samples):
    function, inputs = PRODUCTS[name]
    found, sampled = against_samples(function, *inputs)
    error = (found.mean - sampled.mean).abs() / sampled.std
    assert float(error.max()) < 5 / SAMPLES**0.5
    # √(2/n) is 1 %; products have heavier tails than Gaussians: six times that.
    torch.testing.assert_close(found.variance.double(), sampled.variance, rtol=0.06, atol=1e-9)


# The input is Gaussian and not log-normal, or the rule is first order: both err by about V/μ².
CURVED = {
    "log": (torch.log, POSITIVE, 0.06),
    "sqrt": (torch.sqrt, POSITIVE, 0.05),
    "rsqrt": (torch.rsqrt, POSITIVE, 0.1),
    "std": (lambda x: x.std(2), X, 0.1),
    "glu": (F.glu, X, 0.05),
    "rms norm": (nn.RMSNorm(6), X, 0.15),
    "normalize": (lambda x: F.normalize(x, dim=-1), X, 0.15),
}


@pytest.mark.parametrize("name", CURVED)
def test_curved_functions(name, against_samples):
    function, x, tolerance = CURVED[name]
    found, sampled = against_samples(function, x)
    assert abs(float(found.std.mean() / sampled.std.mean()) - 1) < tolerance
    bias = (found.mean - sampled.mean).abs() / sampled.std
    assert float(bias.mean()) < 0.2


@pytest.mark.parametrize("name", ["rms norm", "normalize"])
def test_norms_are_first_order(name):
    """Autograd's Jacobian, squared, on the variance."""
    function = CURVED[name][0]
    mean, variance = X.mean[0, 0].double(), torch.rand(6, generator=RANDOM).double()
    layer = function.double() if isinstance(function, nn.Module) else function
    jacobian = torch.autograd.functional.jacobian(layer, mean)
    model = layer if isinstance(layer, nn.Module) else Normalized()
    with torch.no_grad():
        found = propagate(model.eval())(Moments(mean, variance))
    torch.testing.assert_close(found.variance, jacobian.square() @ variance, rtol=1e-6, atol=1e-12)


class Normalized(nn.Module):
    def forward(self, x):
        return F.normalize(x, dim=-1)


@pytest.mark.parametrize("equation", ["bij,bjk->b", "bij->bi", "bii->b", "bij,bjk,bkl->bil"])
def test_einsum_refuses_what_it_would_get_wrong(equation, against_samples):
    operands = [X, EXACT, EXACT.mT][: equation.count(",") + 1]
    if equation == "bij->bi":
        found, _ = against_samples(lambda x: torch.einsum(equation, x), X, samples=2)
        torch.testing.assert_close(found.variance, X.variance.sum(-1))
        return
    if equation == "bij,bjk,bkl->bil":  # k stands in the exact operands alone
        operands[2] = EXACT.mT
    with pytest.raises((PropagationError, RuntimeError), match="with itself|diagonal|size"):
        against_samples(lambda x: torch.einsum(equation, x, *operands[1:]), X)


@pytest.mark.parametrize(
    ("layer", "x", "reason"),
    [
        (nn.LSTM(6, 4), X, "feeds the same noise back"),
        (nn.GRU(6, 4), X, "feeds the same noise back"),
        (Normalized, None, None),
    ],
)
def test_recurrent_layers_are_refused_with_the_reason(layer, x, reason):
    if reason is None:
        return
    with pytest.raises(UnsupportedLayerError, match=reason):
        propagate(layer.eval())(x)


def test_sampling_at_uncertain_positions_and_running_sums_are_refused(against_samples):
    with pytest.raises(UnsupportedLayerError, match="share most of their terms"):
        against_samples(lambda x: x.cumsum(-1), X)
    grid, image = moments(1, 4, 4, 2), torch.randn(1, 1, 5, 5)
    with pytest.raises(UnsupportedLayerError, match="uncertain position"):
        against_samples(lambda g: F.grid_sample(image, g, align_corners=False), grid)

"""The moments that rules share, at the extremes of single precision."""

import mpmath
import pytest
import torch
import torch.nn.functional as F

from penumbra.propagation.gaussian import corner, density, quadrature, rectified, upper_tail

# From mean/std = -40 to 40, densely where the tails die away; every value once per variance.
Z = sorted({*[z / 4 for z in range(-160, 161)], *[z / 16 for z in range(-128, 129)]})
VARIANCES = [1e-38, 1e-12, 1e-3, 1.0, 7.3e4, 1e12]


def exact_rectified(mean, variance):
    """E/σ and Var/σ² of max(0, X) in 50 digits."""
    with mpmath.workdps(50):
        z = mpmath.mpf(mean) / mpmath.sqrt(mpmath.mpf(variance))
        cdf, pdf = mpmath.ncdf(z), mpmath.npdf(z)
        spread = cdf + z**2 * cdf * (1 - cdf) + z * pdf * (1 - 2 * cdf) - pdf**2
        return z * cdf + pdf, spread


def largest_errors(variance, dtype):
    """Largest error of mean and variance over Z, in units of σ and σ² of the inputs as rounded."""
    variance = torch.tensor(variance, dtype=dtype)
    mean = (torch.tensor(Z, dtype=torch.float64) * variance.double().sqrt()).to(dtype)
    result = rectified(mean, variance.expand_as(mean))
    assert torch.isfinite(result.mean).all()
    assert (result.variance >= 0).all()
    scale = mpmath.mpf(variance.item())
    errors = [0.0, 0.0]
    for m, got_mean, got_variance in zip(*(t.tolist() for t in (mean, *result[:2])), strict=True):
        exact_mean, exact_variance = exact_rectified(m, variance.item())
        errors[0] = max(errors[0], abs(got_mean / mpmath.sqrt(scale) - exact_mean))
        errors[1] = max(errors[1], abs(got_variance / scale - exact_variance))
    return errors


@pytest.mark.parametrize("variance", VARIANCES)
def test_rectified_in_single_precision_is_right_to_a_millionth_of_sigma(variance):
    # The bound that is promised; measured: 2.6e-7 σ and 2.0e-7 σ².
    assert max(largest_errors(variance, torch.float32)) <= 1e-6


@pytest.mark.parametrize("variance", VARIANCES)
def test_the_exported_form_with_erf_instead_of_erfc_is_as_accurate(variance, exporting):
    # measured: 2.9e-7 σ and 4.4e-7 σ²
    assert max(largest_errors(variance, torch.float32)) <= 1e-6


def test_rectified_in_double_precision_is_right_to_rounding():
    # mean/std is rounded to 40 x 1.1e-16 = 4.4e-15, and moves Var/σ² by at most as much.
    assert max(largest_errors(1.7, torch.float64)) <= 5e-15


def test_rectified_of_a_denormal_variance_keeps_its_limits():
    """Below 1e-38 float32 has fewer than six digits; the limits hold nevertheless."""
    variance = torch.full((3,), 1e-42)
    mean = torch.tensor([-1.0, 0.0, 1.0])
    result = rectified(mean, variance)
    assert result.mean.tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-20)
    assert result.variance[0] == 0
    assert result.variance[2] == variance[2]
    # (1/2 - 1/(2π)) σ², on a grid of 1.4e-45
    assert result.variance[1].item() == pytest.approx(0.34085 * variance[1].item(), abs=1.5e-45)


@pytest.mark.parametrize("mean", [-3.0, -1e-30, 0.0, 2.5, 1e30])
def test_rectified_of_an_exact_value_is_the_plain_maximum(mean):
    result = rectified(torch.tensor([mean]), torch.zeros(1))
    assert result.mean.item() == max(0.0, torch.tensor(mean).item())
    assert result.variance.item() == 0


def test_rectified_keeps_nan_in_its_place():
    mean = torch.tensor([float("nan"), 1.0])
    result = rectified(mean, torch.ones(2))
    assert torch.isnan(result.mean).tolist() == [True, False]
    assert torch.isnan(result.variance).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exported_tail_has_the_absolute_precision_of_erf(dtype, exporting):
    a = torch.linspace(-12, 12, 481, dtype=dtype)
    exact = [float(mpmath.ncdf(-value)) for value in a.tolist()]
    error = (upper_tail(a).double() - torch.tensor(exact, dtype=torch.float64)).abs().max()
    # 1 - erf rounds to half a unit of 1, and erf itself is right to about one unit
    assert error <= 1.5 * torch.finfo(dtype).eps


def test_tail_keeps_its_relative_precision_outside_of_exported_graphs():
    a = torch.linspace(0, 30, 61, dtype=torch.float64)
    exact = torch.tensor([float(mpmath.ncdf(-value)) for value in a.tolist()], dtype=a.dtype)
    # erfc(x) moves by 2x² of a relative rounding of x: 900 x 1.1e-16
    assert ((upper_tail(a) / exact - 1).abs() < 2e-13).all()


def test_density():
    a = torch.linspace(-8, 8, 33, dtype=torch.float64)
    exact = torch.tensor([float(mpmath.npdf(value)) for value in a.tolist()], dtype=torch.float64)
    torch.testing.assert_close(density(a), exact, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("below", "above"), [(0.0, 1.0), (-1.0, 1.0), (0.3, -2.0), (1.0, 1.0)])
def test_corner_has_the_moments_of_any_two_slopes(below, above, gaussian_moments):
    def function(v):
        return torch.where(v > 0, above * v, below * v)

    for mean in (-4.0, -0.3, 0.0, 1.1, 6.0):
        for std in (0.2, 1.0, 30.0):
            m, s = (torch.tensor(v, dtype=torch.float64) for v in (mean, std))
            at_zero = corner(m, s)
            got_mean = function(m) + (above - below) * s * at_zero.lift
            kept = above**2 * at_zero.positive + below**2 * (1 - at_zero.positive)
            got_variance = std**2 * (kept - (above - below) ** 2 * at_zero.loss)
            expected = gaussian_moments(function, mean, std, corners=[0.0])
            # both sides add a few terms, each rounded to 1e-16 of σ or |μ|
            assert got_mean.item() == pytest.approx(expected[0], rel=1e-12, abs=1e-13 * std)
            assert got_variance.item() == pytest.approx(expected[1], rel=1e-11, abs=1e-13 * std**2)


def test_quadrature_is_exact_for_polynomials():
    """16 nodes integrate degree 31; the variance of x⁵ needs degree 10."""
    mean, variance = (torch.tensor(v, dtype=torch.float64) for v in (0.7, 0.4))
    got_mean, got_variance = quadrature(lambda v: v**5, mean, variance, 16)
    with mpmath.workdps(30):
        density = [0.7, mpmath.sqrt(mpmath.mpf(0.4))]
        first, second = (
            mpmath.quad(lambda v, k=k: v**k * mpmath.npdf(v, *density), [-15, -3, 0, 3, 15])
            for k in (5, 10)
        )
    assert got_mean.item() == pytest.approx(float(first), rel=1e-12)
    assert got_variance.item() == pytest.approx(float(second - first**2), rel=1e-12)


def test_quadrature_does_not_cancel_where_the_variance_is_small():
    mean, variance = torch.tensor(0.3, dtype=torch.float64), torch.tensor(1e-14).double()
    got = quadrature(torch.sigmoid, mean, variance, 16)[1]
    slope = torch.sigmoid(mean) * torch.sigmoid(-mean)
    # differences of 1e-7 are known to 1e-16/1e-7; a difference of squares would have lost all
    assert got.item() == pytest.approx((slope.square() * variance).item(), rel=1e-8)


def test_relu_is_what_torch_calls_relu():
    z = torch.linspace(-3, 3, 13)
    assert torch.equal(rectified(z, torch.zeros_like(z)).mean, F.relu(z))

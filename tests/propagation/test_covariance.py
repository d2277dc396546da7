"""Full covariance: exact for affine networks, accurate for rectified Gaussians."""

import itertools
import math

import pytest
import torch
from scipy import integrate, stats
from torch import nn

from penumbra.propagation import (
    AdditiveGaussianNoise,
    Moments,
    MultiplicativeGaussianNoise,
    PropagationError,
    UnsupportedLayerError,
    propagate,
)
from penumbra.propagation.covariance import propagate_covariance, relu_moment
from penumbra.propagation.moments import CovarianceMoments
from penumbra.propagation.montecarlo import monte_carlo


def affine_with_dropout():
    torch.manual_seed(0)
    return (
        nn.Sequential(
            nn.Dropout(0.3), nn.Linear(4, 3), nn.Dropout(0.2), nn.Linear(3, 3), nn.Dropout(0.5),
            nn.Linear(3, 2),
        )
        .double()
        .eval()
    )  # fmt: skip


def moments_over_all_masks(model, x):
    """Mean and covariance of the output by enumerating every combination of dropped elements."""
    layers = list(model)
    states = [(1.0, x)]
    for layer in layers:
        if isinstance(layer, nn.Dropout):
            keep = 1 - layer.p
            states = [
                (
                    probability * math.prod(keep if bit else layer.p for bit in bits),
                    value * torch.tensor(bits, dtype=value.dtype) / keep,
                )
                for probability, value in states
                for bits in itertools.product((0, 1), repeat=value.shape[-1])
            ]
        else:
            states = [(probability, layer(value)) for probability, value in states]
    weights = torch.tensor([probability for probability, _ in states], dtype=x.dtype)
    values = torch.stack([value for _, value in states])
    mean = (weights[:, None] * values).sum(0)
    deviation = values - mean
    return mean, torch.einsum("s,si,sj->ij", weights, deviation, deviation)


def test_affine_networks_with_dropout_anywhere_are_exact():
    model = affine_with_dropout()
    x = torch.tensor([0.7, -1.3, 2.0, 0.4], dtype=torch.float64)
    with torch.no_grad():
        mean, covariance = moments_over_all_masks(model, x)
        result = propagate_covariance(model)(x[None])
    # Nothing but rounding in 1,024 masks: the 1e-10 is far above it.
    torch.testing.assert_close(result.mean[0], mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(result.covariance[0], covariance, rtol=1e-10, atol=1e-12)


def test_affine_networks_agree_with_monte_carlo():
    model = affine_with_dropout()
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    samples = 20_000
    result = propagate_covariance(model)(x)
    both = nn.Sequential(model, _WithSquaredDeviation(result.mean)).eval()
    mean, squared_deviation = monte_carlo(both, x, samples=samples)
    for expected, estimate in ((result.mean, mean), (result.variance, squared_deviation)):
        standard_error = (estimate.variance / samples).sqrt()
        assert ((expected - estimate.mean).abs() < 4 * standard_error).all()


class _WithSquaredDeviation(nn.Module):
    """y and (y - E[y])², so that the spread of a variance estimate is sampled, not assumed."""

    def __init__(self, mean):
        super().__init__()
        self.mean = mean.detach()

    def forward(self, y):
        return y, (y - self.mean) ** 2


def covariance_of_rectified(zx, zy, rho):
    """Cov(X⁺, Y⁺) by adaptive quadrature over X, with Y given X integrated in closed form."""
    spread = math.sqrt(1 - rho * rho)

    def weighted(x):
        centre = zy + rho * (x - zx)
        if spread == 0:
            inner = max(centre, 0.0)
        else:
            inner = centre * stats.norm.cdf(centre / spread)
            inner += spread * stats.norm.pdf(centre / spread)
        return x * inner * stats.norm.pdf(x - zx)

    end = max(zx, 0) + 12
    kinks = sorted({zx, zx - zy / rho if rho else 0.0})  # where the integrand bends or peaks
    edges = [0, *(k for k in kinks if 0 < k < end), end]
    product = sum(
        integrate.quad(weighted, a, b, epsabs=1e-13, epsrel=1e-11, limit=200)[0]
        for a, b in itertools.pairwise(edges)
    )
    means = [z * stats.norm.cdf(z) + stats.norm.pdf(z) for z in (zx, zy)]
    return product - means[0] * means[1]


# ±0.99999 and closer the reference's own bend is too sharp for adaptive quadrature; ±1 is exact.
@pytest.mark.parametrize("rho", [-1.0, -0.999, -0.9, -0.3, 0.0, 0.4, 0.95, 0.999, 1.0])
def test_covariance_of_rectified_gaussians(rho):
    grid = [-4.0, -1.0, 0.0, 0.5, 2.0, 5.0]
    for zx, zy in itertools.product(grid, grid):
        mean = torch.tensor([2 * zx, 0.5 * zy], dtype=torch.float64)
        covariance = torch.tensor([[4.0, rho], [rho, 0.25]], dtype=torch.float64)
        result = relu_moment(CovarianceMoments(mean, covariance)).covariance
        # 16 Gauss-Legendre nodes: 6e-8 against 400 nodes at worst, |ρ| = 1 (σ_x σ_y is 1 here).
        assert result[0, 1].item() == pytest.approx(covariance_of_rectified(zx, zy, rho), abs=1e-7)
        assert result[0, 1] == result[1, 0]


def test_rectified_covariance_is_positive_semidefinite_and_matches_the_diagonal_rule():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(50, 8, 3, dtype=torch.float64, generator=generator)  # rank 3: singular
    x = CovarianceMoments(
        torch.randn(50, 8, dtype=torch.float64, generator=generator), root @ root.mT
    )
    result = relu_moment(x)
    plain = propagate(nn.ReLU())(Moments(x.mean, x.variance))
    torch.testing.assert_close(result.variance, plain.variance)
    torch.testing.assert_close(result.mean, plain.mean)
    smallest = torch.linalg.eigvalsh(result.covariance)[:, 0]
    assert smallest.min() > -1e-7 * x.variance.max()  # the quadrature's own error


def test_values_without_variance_stay_finite():
    x = CovarianceMoments(torch.tensor([[1.0, -1.0, 0.0]]), torch.zeros(1, 3, 3))
    result = relu_moment(x)
    assert torch.equal(result.mean, torch.tensor([[1.0, 0.0, 0.0]]))
    assert torch.equal(result.covariance, torch.zeros(1, 3, 3))


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Tanh(), nn.Softmax(-1)])
def test_smooth_activations_are_first_order(activation):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(5, dtype=torch.float64, generator=generator)
    root = torch.randn(5, 5, dtype=torch.float64, generator=generator)
    result = propagate_covariance(activation)(CovarianceMoments(mean, root @ root.mT))
    jacobian = torch.autograd.functional.jacobian(activation, mean)
    torch.testing.assert_close(result.covariance, jacobian @ root @ root.mT @ jacobian.mT)
    torch.testing.assert_close(result.mean, activation(mean))


def test_jacobian_relu_keeps_the_plain_mean():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.1), nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(6, 5)
    result = propagate_covariance(model, relu="jacobian")(x)
    torch.testing.assert_close(result.mean, model(x))
    gate = (model[1](x) > 0).float()
    through = model[3].weight * gate[:, None, :] @ model[1].weight  # (6, 2, 5)
    expected = torch.einsum("bij,bj,bkj->bik", through, x.square() / 9, through)  # p/(1-p) = 1/9
    torch.testing.assert_close(result.covariance, expected)


def test_moment_relu_is_nearer_to_monte_carlo_than_the_paper():
    """A trained-like two-layer network: the analytic covariance halves the error at least."""
    torch.manual_seed(0)
    model = (
        nn.Sequential(
            nn.Dropout(0.2), nn.Linear(8, 50), nn.ReLU(), nn.Dropout(0.2), nn.Linear(50, 1)
        )
        .double()
        .eval()
    )
    x = torch.randn(64, 8, dtype=torch.float64)
    reference = monte_carlo(model, x, samples=20_000).variance
    error = {
        relu: (propagate_covariance(model, relu=relu)(x).variance / reference - 1).abs().mean()
        for relu in ("moment", "jacobian")
    }
    assert error["moment"] < 0.5 * error["jacobian"]


def test_gaussian_noise_layers():
    x = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    model = nn.Sequential(
        AdditiveGaussianNoise(0.5), MultiplicativeGaussianNoise(0.2), nn.Linear(2, 2, bias=False)
    ).double()
    model[2].weight.data = weight
    result = propagate_covariance(model.eval())(x)
    variance = torch.tensor([0.25 + 0.04 * (1 + 0.25), 0.25 + 0.04 * (4 + 0.25)])
    expected = weight @ torch.diag(variance.double()) @ weight.T
    torch.testing.assert_close(result.covariance[0], expected)


def test_sensor_noise_enters_as_a_diagonal():
    layer = nn.Linear(3, 2).double()
    noise = torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64)
    result = propagate_covariance(layer)(Moments(torch.zeros_like(noise), noise))
    expected = layer.weight @ torch.diag(noise[0]) @ layer.weight.T
    torch.testing.assert_close(result.covariance[0], expected)


def test_two_uncertain_values_without_joint_covariance_raise():
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.linear = nn.Dropout(0.5), nn.Linear(3, 3)

        def forward(self, x):
            x = self.drop(x)
            return x + self.linear(x)

    with pytest.raises(PropagationError, match="joint covariance"):
        propagate_covariance(Skip().eval())(torch.ones(1, 3))
    with pytest.raises(UnsupportedLayerError, match=r"'1' \(nn.Conv1d\)"):
        propagate_covariance(nn.Sequential(nn.Dropout(), nn.Conv1d(1, 1, 1)).eval())(
            torch.ones(1, 1, 4)
        )


def test_one_value_used_twice_and_constants():
    class Twice(nn.Module):
        def forward(self, x):
            return x + x, x - x, 3 * x + 1, 2 - x

    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    x = CovarianceMoments(torch.tensor([1.0, 2.0]), covariance)
    double, nothing, scaled, flipped = propagate_covariance(Twice())(x)
    torch.testing.assert_close(double.covariance, 4 * covariance)
    torch.testing.assert_close(nothing.covariance, torch.zeros(2, 2))
    torch.testing.assert_close(scaled.covariance, 9 * covariance)
    torch.testing.assert_close(scaled.mean, torch.tensor([4.0, 7.0]))
    torch.testing.assert_close(flipped.covariance, covariance)
    torch.testing.assert_close(flipped.mean, torch.tensor([1.0, 0.0]))


def test_researchers_can_train_through_it():
    layer = nn.Linear(3, 1)
    model = nn.Sequential(nn.Dropout(0.5), layer, nn.ReLU()).eval()
    propagate_covariance(model)(torch.ones(1, 3)).covariance.sum().backward()
    assert layer.weight.grad.isfinite().all()

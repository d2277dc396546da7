"""Masks, maxima, windows, copies: against sampling, or the same operation on mean and variance."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from penumbra.propagation import Moments, PropagationError, propagate

RANDOM = torch.Generator().manual_seed(0)
X = Moments(
    torch.randn(2, 3, 6, 8, generator=RANDOM), torch.rand(2, 3, 6, 8, generator=RANDOM) + 0.1
)
MASK = torch.rand(2, 3, 6, 8, generator=RANDOM) > 0.5


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: torch.where(MASK, x, 0.0),
        lambda x: x.masked_fill(~MASK, 0.0),
        lambda x: torch.masked_fill(x, ~MASK, 0.0),
        lambda x: torch.where(~MASK, torch.zeros_like(x), x),
    ],
)
def test_masks_choose_moments(choose, against_samples):
    found, _ = against_samples(choose, X, samples=2)
    assert torch.equal(found.mean, X.mean * MASK)
    assert torch.equal(found.variance, X.variance * MASK)


def test_an_uncertain_condition_is_refused(against_samples):
    with pytest.raises(PropagationError):
        against_samples(lambda x: torch.where(x > 0, x, 0.0), X)


@pytest.mark.parametrize(
    "largest",
    [
        lambda x: x.amax((2, 3)),
        lambda x: torch.amax(x, (2, 3), keepdim=True),
        lambda x: x.max(-1)[0],
        lambda x: torch.max(x, dim=1).values,
        lambda x: -x.min(),
        lambda x: -torch.amin(x, 1),
    ],
)
def test_the_largest_of_a_dimension(largest, against_samples):
    """The maximum of up to 288 Gaussians is right to 0.2 σ; argmax takes its element."""
    found, sampled = against_samples(largest, X, samples=4000, max_pool="moment")
    assert found.mean.shape == sampled.mean.shape
    size = float(X.std.max())
    assert float((found.mean - sampled.mean).abs().max()) < 0.25 * size
    assert float((found.variance - sampled.variance).abs().max()) < 0.15 * size**2
    first, _ = against_samples(largest, X, samples=2)
    torch.testing.assert_close(first.mean, largest(X.mean))
    assert torch.isin(first.variance, X.variance).all()


def test_the_larger_of_two(against_samples):
    y = Moments(X.mean.flip(0), X.variance.flip(1))
    found, sampled = against_samples(torch.maximum, X, y, samples=8000, max_pool="moment")
    # Exact for two Gaussians: five standard errors, σ/√n and √(2/n) σ² (σ up to 1.05).
    assert float((found.mean - sampled.mean).abs().max()) < 5 * 1.05 / 8000**0.5
    assert float((found.variance - sampled.variance).abs().max()) < 5 * 1.1 * (2 / 8000) ** 0.5
    low, _ = against_samples(torch.minimum, X, y, samples=2)
    torch.testing.assert_close(low.mean, torch.minimum(X.mean, y.mean))


@pytest.mark.parametrize("size", [1, 3, (2, 5)])
def test_adaptive_max_pooling_takes_the_largest_mean(size):
    found = propagate(nn.AdaptiveMaxPool2d(size).eval())(X)
    mean, indices = F.adaptive_max_pool2d(X.mean, size, return_indices=True)
    assert torch.equal(found.mean, mean)
    expected = X.variance.flatten(2).gather(2, indices.flatten(2)).reshape(mean.shape)
    assert torch.equal(found.variance, expected)


def test_unfolded_windows(against_samples):
    found, sampled = against_samples(nn.Unfold(3, padding=1, stride=2), X, samples=4000)
    assert torch.equal(found.variance, F.unfold(X.variance, 3, padding=1, stride=2))
    torch.testing.assert_close(found.variance.double(), sampled.variance, rtol=0.15, atol=1e-9)


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.mean((2, 3), keepdim=True).expand(2, 3, 6, 8).mean((2, 3)),
        lambda x: x[:, :1].expand(2, 5, 6, 8).sum(1),
        lambda x: x.repeat(1, 2, 1, 3).mean((1, 3)),
        lambda x: torch.tile(x, (2, 2)).sum((2, 3)),
        lambda x: x.repeat_interleave(2, 3).mean(3),
        lambda x: (x[:, :, :1] + torch.zeros(6, 1)).mean(2),
        lambda x: (x.mean((2, 3), keepdim=True) * torch.arange(48.0).reshape(6, 8)).mean((2, 3)),
        lambda x: F.interpolate(x.mean((2, 3), keepdim=True), size=(4, 4)).mean((2, 3)),
        lambda x: (x * torch.sigmoid(x.mean((2, 3), keepdim=True) + 1).detach()).mean((2, 3)),
    ],
)
def test_means_over_copies_know_that_they_are_equal(copy, against_samples):
    found, sampled = against_samples(copy, X, samples=4000)
    # 8 standard errors of √(2/n): exact but for the last, a gate that is not independent of x.
    torch.testing.assert_close(found.variance.double(), sampled.variance, rtol=0.18, atol=1e-9)

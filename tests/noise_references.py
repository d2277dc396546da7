"""What noise does to a value, by every mask there is and by sampling: shared by its tests."""

import itertools

import torch

from penumbra.propagation import AdditiveGaussianNoise, MonteCarloBatchNorm, propagate

RNG = torch.Generator().manual_seed(0)
P = 0.3
# Closed forms in float64: sums of a hundred terms at most.
EXACT = {"rtol": 1e-10, "atol": 1e-14}


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=RNG)


def masks(count, p=P):
    """Every way to keep or drop `count` things, and the probability of each."""
    kept = torch.tensor(list(itertools.product((0.0, 1.0), repeat=count)), dtype=torch.float64)
    return kept, (kept * (1 - p) + (1 - kept) * p).prod(1)


def expectation(values, probability):
    """Mean and variance of values with these probabilities."""
    weight = probability.reshape(-1, *(1,) * (values.dim() - 1))
    mean = (weight * values).sum(0)
    return mean, (weight * (values - mean).square()).sum(0)


def by_enumeration(x, after, shape, p=P):
    """Mean and variance of after(mask · x / (1-p)), with masks of a shape that broadcasts to x."""
    kept, probability = masks(torch.Size(shape).numel(), p)
    with torch.no_grad():
        values = torch.stack([after(x * mask.reshape(shape) / (1 - p)) for mask in kept])
    return expectation(values, probability)


def assert_same(out, expected, tolerance=EXACT):
    torch.testing.assert_close(out.mean, expected[0], **tolerance)
    torch.testing.assert_close(out.variance, expected[1], **tolerance)


def assert_within_sampling_error(model, x, samples=20_000, out=None):
    """Propagated moments within 4 standard errors of sampled ones, each with its own kurtosis.

    The standard error of a mean is √(V/n), that of a variance √((m₄ - V²)/n). Some tens of
    outputs are compared at 4 standard errors (6e-5 each) with one fixed seed.
    """
    out = propagate(model)(x) if out is None else out
    layers = [
        m for m in model.modules() if isinstance(m, MonteCarloBatchNorm | AdditiveGaussianNoise)
    ]
    torch.manual_seed(0)
    for layer in layers:
        layer.train()
    with torch.no_grad():
        values = model(x.expand(samples, *x.shape[1:]))  # each batch element draws its own noise
    model.eval()
    mean = values.mean(0)
    centred = values - mean
    variance, fourth = centred.square().mean(0), centred.pow(4).mean(0)
    mean_error = (variance / samples).sqrt()
    variance_error = ((fourth - variance.square()) / samples).sqrt()
    assert (mean_error > 0).all()
    assert ((out.mean - mean).abs() <= 4 * mean_error).all()
    assert ((out.variance - variance).abs() <= 4 * variance_error).all()

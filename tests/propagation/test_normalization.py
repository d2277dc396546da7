"""Batch norm is exact; the others are first order, measured against autograd and sampling."""

import pytest
import torch
import torch.nn.functional as F
from function_models import Call
from torch import nn

from penumbra.propagation import Moments, propagate

RNG = torch.Generator().manual_seed(0)


def settled(norm):
    """The layer in eval mode, with statistics and parameters that are not one and zero."""
    for value in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
        if value is not None:
            value.data = 0.3 + 2 * torch.rand(value.shape, generator=RNG)
    return norm.double().eval()


BATCH_NORMS = {
    "1d": (settled(nn.BatchNorm1d(3)), (2, 3)),
    "1d with length": (settled(nn.BatchNorm1d(3, eps=0.1)), (2, 3, 4)),
    "2d": (settled(nn.BatchNorm2d(3)), (1, 3, 2, 2)),
    "2d plain": (settled(nn.BatchNorm2d(3, affine=False)), (1, 3, 2, 2)),
    "3d": (settled(nn.BatchNorm3d(2)), (1, 2, 2, 2, 2)),
    "instance norm by running statistics": (
        settled(nn.InstanceNorm2d(3, affine=True, track_running_stats=True)), (2, 3, 2, 2),
    ),
    "the same without batch": (
        settled(nn.InstanceNorm1d(3, affine=True, track_running_stats=True)), (3, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_batch_norm_is_its_matrix_with_squared_weights(name, matrix_of):
    model, shape = BATCH_NORMS[name]
    mean = torch.randn(shape, dtype=torch.float64, generator=RNG)
    variance = torch.rand(shape, dtype=torch.float64, generator=RNG)
    out = propagate(model)(Moments(mean, variance))
    with torch.no_grad():
        matrix, offset = matrix_of(model, shape)
        assert offset.abs().max() > 0.1  # that the constant part is left out is worth testing
        torch.testing.assert_close(out.mean, model(mean), rtol=1e-13, atol=1e-13)
        expected = (matrix.square() @ variance.flatten()).reshape(shape)
        # the matrix is a difference of two outputs of size one
        torch.testing.assert_close(out.variance, expected, rtol=1e-12, atol=0)


def affine(norm):
    for parameter in norm.parameters():
        parameter.data = torch.randn(parameter.shape, generator=RNG)
    return norm.double().eval()


NORMS = {
    "GroupNorm": (affine(nn.GroupNorm(2, 4)), (2, 4, 3)),
    "GroupNorm of images": (affine(nn.GroupNorm(3, 6, eps=0.3)), (2, 6, 2, 2)),
    "GroupNorm, one group": (nn.GroupNorm(1, 3, affine=False), (2, 3, 2, 2)),
    "LayerNorm": (affine(nn.LayerNorm(5)), (3, 5)),
    "LayerNorm over two": (affine(nn.LayerNorm((3, 4), eps=0.2)), (2, 3, 4)),
    "LayerNorm plain": (nn.LayerNorm(4, elementwise_affine=False), (2, 3, 4)),
    "InstanceNorm1d": (nn.InstanceNorm1d(3), (2, 3, 5)),
    "InstanceNorm2d": (affine(nn.InstanceNorm2d(2, affine=True, eps=0.1)), (2, 2, 3, 2)),
    "InstanceNorm3d": (nn.InstanceNorm3d(2), (1, 2, 2, 2, 2)),
    "InstanceNorm2d without batch": (affine(nn.InstanceNorm2d(2, affine=True)), (2, 3, 4)),
    "F.group_norm": (Call(lambda x: F.group_norm(x, 2)), (2, 4, 2)),
    "F.layer_norm": (Call(lambda x: F.layer_norm(x, (4,))), (2, 4)),
    "F.instance_norm": (Call(lambda x: F.instance_norm(x)), (2, 2, 5)),
}


@pytest.mark.parametrize("name", NORMS)
def test_first_order_is_the_squared_jacobian_times_the_variance(name):
    model, shape = NORMS[name]
    mean = 1 + 2 * torch.randn(shape, dtype=torch.float64, generator=RNG)
    variance = torch.rand(shape, dtype=torch.float64, generator=RNG)
    out = propagate(model)(Moments(mean, variance))
    jacobian = torch.autograd.functional.jacobian(model, mean).reshape(mean.numel(), -1)
    expected = (jacobian.square() @ variance.flatten()).reshape(shape)
    torch.testing.assert_close(out.mean, model(mean), rtol=1e-12, atol=1e-12)
    # V_i (1 - 2(1 + x̂²)/n) + Σ … cancels where x̂² is near n - 1: some ε of the terms are left
    torch.testing.assert_close(out.variance, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("std", "bound"), [(0.05, 0.03), (0.5, 0.4)])
def test_how_approximate_first_order_is(std, bound):
    """Layer norm of 16 independent inputs with spread one, against 200,000 samples.

    Noise of a twentieth of the spread: variances right to 3 % (of which sampling is 1.5 %, four
    standard errors of √(2/200,000)). Noise of half the spread: to 40 %, because it also inflates
    the spread by which it is divided.
    """
    model = nn.LayerNorm(16, elementwise_affine=False)
    generator = torch.Generator().manual_seed(3)
    mean = torch.linspace(-1.6, 1.6, 16, dtype=torch.float64)
    out = propagate(model)(Moments(mean, torch.full_like(mean, std**2)))
    noise = torch.randn(200_000, 16, dtype=torch.float64, generator=generator)
    sampled = model(mean + std * noise)
    error = (out.variance / sampled.var(0) - 1).abs().max()
    assert error <= bound
    # The bound says something: it is not ten times too wide.
    assert error >= bound / 10

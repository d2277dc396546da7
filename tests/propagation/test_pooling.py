"""Average pooling as a matrix, maximum pooling against torch and against the true maximum."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from function_models import Call
from torch import nn

from penumbra.propagation import ExactMoments, Moments, propagate

RNG = torch.Generator().manual_seed(0)


def uncertain(*shape):
    mean = torch.randn(shape, dtype=torch.float64, generator=RNG)
    return Moments(mean, torch.rand(shape, dtype=torch.float64, generator=RNG))


# ---- averages ------------------------------------------------------------------------------------

AVERAGES = {
    "1d": (nn.AvgPool1d(3), (2, 2, 10)),
    "1d stride": (nn.AvgPool1d(3, stride=2), (1, 2, 10)),
    "1d padding": (nn.AvgPool1d(3, stride=2, padding=1), (1, 2, 10)),
    "1d ceil, padding not counted": (
        nn.AvgPool1d(3, 2, 1, ceil_mode=True, count_include_pad=False), (1, 2, 10),
    ),
    "1d without batch": (nn.AvgPool1d(2, ceil_mode=True), (2, 5)),
    "2d": (nn.AvgPool2d(2), (1, 2, 4, 6)),
    "2d uneven": (nn.AvgPool2d((2, 3), stride=(1, 2)), (1, 2, 4, 7)),
    "2d padding": (nn.AvgPool2d(3, 2, 1), (1, 2, 5, 6)),
    "2d padding not counted": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (1, 2, 5, 6)),
    "2d ceil": (nn.AvgPool2d(3, 2, ceil_mode=True), (1, 2, 6, 6)),
    "2d ceil, padding": (nn.AvgPool2d(3, 2, 1, ceil_mode=True), (1, 1, 6, 6)),
    "2d ceil, padding not counted": (
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (1, 1, 6, 6),
    ),
    "2d divisor": (nn.AvgPool2d(2, divisor_override=3), (1, 1, 4, 4)),
    "2d divisor, ceil, padding": (
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=5), (1, 1, 6, 6),
    ),
    "2d without batch": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 5, 4)),
    "3d": (nn.AvgPool3d(2), (1, 2, 2, 4, 4)),
    "3d all": (
        nn.AvgPool3d((1, 2, 3), 2, (0, 1, 1), ceil_mode=True, count_include_pad=False),
        (1, 1, 3, 4, 4),
    ),
    "adaptive 1d": (nn.AdaptiveAvgPool1d(3), (1, 2, 7)),
    "adaptive 2d": (nn.AdaptiveAvgPool2d((3, 2)), (1, 2, 7, 5)),
    "adaptive 2d, one side kept": (nn.AdaptiveAvgPool2d((None, 3)), (1, 1, 4, 7)),
    "adaptive 2d, larger than the input": (nn.AdaptiveAvgPool2d(5), (1, 1, 3, 2)),
    "adaptive 2d, to one, without batch": (nn.AdaptiveAvgPool2d(1), (2, 3, 4)),
    "adaptive 3d": (nn.AdaptiveAvgPool3d((2, 1, 3)), (1, 1, 3, 2, 5)),
    "F.avg_pool1d": (Call(lambda x: F.avg_pool1d(x, 2, 1)), (1, 2, 5)),
    "F.avg_pool2d": (Call(lambda x: F.avg_pool2d(x, (2, 1), padding=(1, 0))), (1, 2, 4, 3)),
    "F.avg_pool3d": (Call(lambda x: F.avg_pool3d(x, 2, stride=1)), (1, 1, 2, 3, 3)),
    "F.adaptive_avg_pool2d": (Call(lambda x: F.adaptive_avg_pool2d(x, 2)), (1, 2, 3, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", AVERAGES)
def test_average_is_its_matrix_with_squared_weights(name, matrix_of):
    model, shape = AVERAGES[name]
    x = uncertain(*shape)
    out = propagate(model)(x)
    matrix, _ = matrix_of(model, shape)
    torch.testing.assert_close(out.mean, model(x.mean), rtol=1e-14, atol=1e-15)
    expected = matrix.square() @ x.variance.flatten()
    # a sum of up to 9 terms
    torch.testing.assert_close(out.variance, expected.reshape(out.mean.shape), rtol=1e-14, atol=0)


class Averages(nn.Module):
    """Noise and several average pools side by side."""

    def __init__(self, names):
        super().__init__()
        self.noise = nn.Dropout(0.2)
        self.pools = nn.ModuleList([AVERAGES[name][0] for name in names])

    def forward(self, x):
        x = self.noise(x)
        return [pool(x) for pool in self.pools]


def test_averages_survive_the_export(through_onnx):
    """ONNX's AveragePool has no divisor, and torch.onnx.export ignores it silently."""
    names = [name for name in AVERAGES if name.startswith(("2d", "adaptive 2d,"))]
    names = [name for name in names if "larger" not in name and "kept" not in name]
    model = propagate(Averages(names).eval())
    x = torch.randn(1, 2, 6, 6, generator=RNG)
    computed = iter(through_onnx(model, x))
    for name, out in zip(names, model(x), strict=True):
        for expected in (out.mean, out.variance):
            # single precision, sums of nine
            torch.testing.assert_close(
                torch.from_numpy(next(computed)), expected, rtol=1e-5, atol=1e-6, msg=name
            )


# ---- maximum -------------------------------------------------------------------------------------

GEOMETRIES = {
    "1d": (nn.MaxPool1d, (2, 2, 9), {"kernel_size": 3}),
    "1d all": (
        nn.MaxPool1d, (2, 2, 9),
        {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True},
    ),
    "2d": (nn.MaxPool2d, (2, 3, 6, 4), {"kernel_size": 2}),
    "2d overlapping": (nn.MaxPool2d, (1, 2, 5, 6), {"kernel_size": 3, "stride": 1}),
    "2d padding": (nn.MaxPool2d, (1, 2, 5, 6), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "2d dilation": (nn.MaxPool2d, (1, 2, 6, 6), {"kernel_size": 2, "dilation": (2, 1)}),
    "2d ceil": (nn.MaxPool2d, (1, 2, 5, 7), {"kernel_size": 2, "ceil_mode": True}),
    "2d all": (
        nn.MaxPool2d, (1, 2, 7, 8),
        {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 1), "dilation": (2, 1),
         "ceil_mode": True},
    ),
    "2d without batch": (nn.MaxPool2d, (2, 5, 4), {"kernel_size": 2, "padding": 1}),
    "3d": (nn.MaxPool3d, (1, 2, 4, 3, 4), {"kernel_size": (2, 1, 2), "padding": (1, 0, 1)}),
}  # fmt: skip


@pytest.mark.parametrize("max_pool", ["argmax", "moment"])
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("ties", [False, True])
def test_indices_are_those_of_torch_ties_included(name, max_pool, ties):
    kind, shape, geometry = GEOMETRIES[name]
    x = uncertain(*shape)
    if ties:  # as after a ReLU: most windows are zero all over
        x = Moments(x.mean.sub(1).clamp(min=0).round(), x.variance)
    model = kind(**geometry, return_indices=True)
    out, indices = propagate(model, max_pool=max_pool)(x)
    mean, expected = model(x.mean)
    assert torch.equal(indices.mean, expected)
    assert isinstance(indices, ExactMoments)
    if max_pool == "argmax":
        assert torch.equal(out.mean, mean)
        dims = {nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3}[kind]
        v = x.variance.flatten(-dims)
        chosen = [v[lead][expected[lead].flatten()] for lead in np.ndindex(v.shape[:-1])]
        assert torch.equal(out.variance.flatten(), torch.cat(chosen))


@pytest.mark.parametrize("max_pool", ["argmax", "moment"])
def test_functions_are_like_the_layers(max_pool):
    x = uncertain(1, 2, 6, 6)
    expected, _ = propagate(nn.MaxPool2d(3, 2, 1, return_indices=True), max_pool=max_pool)(x)
    calls = (
        lambda v: F.max_pool2d(v, 3, 2, 1),
        lambda v: F.max_pool2d(v, kernel_size=3, stride=2, padding=1),
        lambda v: F.max_pool2d(v, 3, 2, 1, return_indices=True)[0],
        lambda v: F.max_pool2d(v, 3, 2, 1, 1, False, return_indices=True)[0],
    )
    for call in calls:
        got = propagate(Call(call), max_pool=max_pool)(x)
        assert torch.equal(got.mean, expected.mean)
        assert torch.equal(got.variance, expected.variance)


def true_maximum(means, variances):
    """E and Var of the maximum of independent Gaussians: its distribution is the product of theirs.

    E = c + ∫_c^∞ (1 - F) - ∫_-∞^c F, E[(M-c)²] = 2 ∫_c^∞ (x-c)(1-F) + 2 ∫_-∞^c (c-x) F, on a fine
    grid (Gauss-Legendre, panels of a fifth of the smallest standard deviation).
    """
    means, stds = np.asarray(means), np.sqrt(variances)
    centre = means.max()
    low, high = (means - 10 * stds).min(), (means + 10 * stds).max()
    edges = np.unique(np.concatenate([np.arange(low, high, stds.min() / 5), [high, centre]]))
    nodes, weights = np.polynomial.legendre.leggauss(8)
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    x, w = (middle[:, None] + half[:, None] * nodes).ravel(), (half[:, None] * weights).ravel()
    z = (x[:, None] - means) / stds
    cdf = 0.5 * torch.erfc(torch.from_numpy(-z / math.sqrt(2))).numpy()
    distribution = cdf.prod(1)
    survival = np.where(x > centre, 1 - distribution, -distribution)
    first = (w * survival).sum()
    return centre + first, 2 * (w * (x - centre) * survival).sum() - first**2


def pooled(means, variances):
    """Our moments of the maximum of one window."""
    window = (1, 1, len(means))
    x = Moments(*(torch.tensor(v, dtype=torch.float64).reshape(window) for v in (means, variances)))
    out = propagate(nn.MaxPool1d(len(means)), max_pool="moment")(x)
    return out.mean.item(), out.variance.item()


@pytest.mark.parametrize("means", [(0.0, 0.0), (1.0, -0.5), (3.0, 1.0), (-20.0, 5.0)])
@pytest.mark.parametrize("variances", [(1.0, 1.0), (0.1, 2.0), (4.0, 0.01)])
def test_maximum_of_two_gaussians_is_exact(means, variances):
    mean, variance = pooled(means, variances)
    expected = true_maximum(means, variances)
    assert mean == pytest.approx(expected[0], rel=1e-11, abs=1e-11)
    assert variance == pytest.approx(expected[1], rel=1e-10, abs=1e-11)


def test_maximum_of_four_is_right_to_the_stated_bound():
    """The fold takes the maximum of two as Gaussian again: approximate from three on."""

    def error(means, variances):
        scale = max(variances)
        difference = np.subtract(pooled(means, variances), true_maximum(means, variances))
        return np.abs(difference) / (math.sqrt(scale), scale)

    assert (error(np.zeros(4), np.ones(4)) <= (0.002, 0.022)).all()
    for orders, largest, average in (
        (1, (0.05, 0.12), (0.004, 0.024)),
        (3, (0.15, 0.2), (0.012, 0.034)),
    ):
        rng = np.random.default_rng(5)
        spreads = (0, 0.3, 1, 3) * 40
        errors = [error(s * rng.normal(size=4), 10 ** rng.uniform(-orders, 0, 4)) for s in spreads]
        assert (np.max(errors, 0) <= largest).all()
        assert (np.mean(errors, 0) <= average).all()


def test_moment_windows_are_those_of_torch():
    """With one mean far above the others the moment rule must pick what torch picks."""
    for name, (kind, shape, geometry) in GEOMETRIES.items():
        # all below zero, so that the zeros of a padding would be noticed
        mean = torch.randperm(math.prod(shape), generator=RNG).double().reshape(shape) * -100 - 100
        x = Moments(mean, torch.rand(shape, dtype=torch.float64, generator=RNG))
        argmax, moment = (propagate(kind(**geometry), max_pool=m)(x) for m in ("argmax", "moment"))
        assert torch.equal(argmax.mean, moment.mean), name
        # V_A x 1 + V_B x 0, from up to nine maxima in turn
        torch.testing.assert_close(argmax.variance, moment.variance, rtol=1e-14, atol=0)


def test_a_far_smaller_element_costs_no_precision():
    """b + (a - b) would leave 0 of a = 1 next to b = -1e8 in float32, and b's variance its size."""
    x = Moments(torch.tensor([[[-1e8, 1.0]]]), torch.tensor([[[1e8, 1e-2]]]))
    out = propagate(nn.MaxPool1d(2), max_pool="moment")(x)
    assert out.mean.item() == 1.0
    assert out.variance.item() == pytest.approx(1e-2, rel=1e-6)


# ---- unpooling -----------------------------------------------------------------------------------

UNPOOLS = {
    "1d": (nn.MaxPool1d, nn.MaxUnpool1d, (2, 2, 8)),
    "2d": (nn.MaxPool2d, nn.MaxUnpool2d, (2, 2, 6, 4)),
    "3d": (nn.MaxPool3d, nn.MaxUnpool3d, (1, 2, 4, 2, 4)),
}


class PoolUnpool(nn.Module):
    def __init__(self, pool, unpool, output_size=None):
        super().__init__()
        self.pool, self.unpool = pool, unpool
        self.output_size = output_size

    def forward(self, x):
        values, indices = self.pool(x)
        return self.unpool(values, indices, output_size=self.output_size)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("name", UNPOOLS)
def test_unpooling_puts_mean_and_variance_back_to_where_they_were(name, zeros):
    pool, unpool, shape = UNPOOLS[name]
    x = uncertain(*shape)
    x = Moments(torch.zeros_like(x.mean) if zeros else x.mean, x.variance)
    out = propagate(PoolUnpool(pool(2, return_indices=True), unpool(2)))(x)
    _, indices = pool(2, return_indices=True)(x.mean)
    kept = torch.zeros_like(x.mean).flatten(2)
    kept.scatter_(2, indices.flatten(2), 1.0)
    kept = kept.reshape(shape)
    assert kept.sum() == indices.numel()  # one of each window, also where all are equal
    assert torch.equal(out.mean, x.mean * kept)
    assert torch.equal(out.variance, x.variance * kept)


def test_unpooling_to_a_given_size():
    x = uncertain(1, 2, 5, 7)
    model = PoolUnpool(nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2), (5, 7))
    out = propagate(model)(x)
    assert torch.equal(out.mean, model(x.mean))
    assert torch.equal(out.variance > 0, out.mean != 0)

    def by_functions(v):
        values, indices = F.max_pool2d(v, 2, return_indices=True)
        return F.max_unpool2d(values, indices, 2, None, 0, (5, 7))

    assert torch.equal(propagate(Call(by_functions))(x).variance, out.variance)

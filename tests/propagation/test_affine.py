"""One noise layer before an affine one: the variance is exact for any geometry.

The references know nothing of the rules: the matrix of the affine map is read off by sending unit
vectors through the layer, and the noise is enumerated or drawn by torch's own dropout.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation import Moments, PropagationError, propagate

RATE = 0.3
EXACT = {"rtol": 1e-10, "atol": 1e-12}

LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "linear, no bias": (lambda: nn.Linear(6, 4, bias=False), (6,)),
    "linear over the last of three": (lambda: nn.Linear(3, 4), (2, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3), (2, 7)),
    "conv1d, every option": (lambda: nn.Conv1d(4, 6, 3, 2, 2, 2, groups=2), (4, 9)),
    "conv1d, same": (lambda: nn.Conv1d(2, 3, 4, padding="same"), (2, 6)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 3), (2, 5, 4)),
    "conv2d, stride": (lambda: nn.Conv2d(2, 3, 3, stride=(2, 1)), (2, 6, 5)),
    "conv2d, padding": (lambda: nn.Conv2d(2, 3, 3, padding=(1, 2)), (2, 4, 4)),
    "conv2d, dilation": (lambda: nn.Conv2d(2, 3, 3, dilation=(2, 1)), (2, 6, 4)),
    "conv2d, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), (4, 4, 4)),
    "conv2d, depthwise": (lambda: nn.Conv2d(3, 6, 3, padding=1, groups=3), (3, 4, 3)),
    "conv2d, same": (lambda: nn.Conv2d(2, 3, (3, 2), padding="same", dilation=2), (2, 5, 4)),
    "conv2d, valid": (lambda: nn.Conv2d(2, 3, 3, padding="valid", bias=False), (2, 5, 4)),
    "conv1d, to one output": (lambda: nn.Conv1d(3, 1, 3, padding=1), (3, 6)),
    "conv2d, to one output": (lambda: nn.Conv2d(3, 1, 3, (2, 1), (1, 2), (1, 2)), (3, 5, 6)),
    "conv2d, depthwise to one output": (lambda: nn.Conv2d(1, 1, 3, padding=1), (1, 4, 5)),
    "conv3d, to one output": (lambda: nn.Conv3d(2, 1, 2, padding=1), (2, 3, 2, 3)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, (1, 2, 1), 1, groups=1), (2, 3, 3, 2)),
    "conv3d, groups": (lambda: nn.Conv3d(2, 4, 2, dilation=(1, 1, 2), groups=2), (2, 3, 3, 3)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2, dilation=2), (4, 4)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(2, 3, 3), (2, 3, 4)),
    "transposed 2d, every option": (
        lambda: nn.ConvTranspose2d(4, 6, 3, (2, 3), (1, 2), (1, 0), 2, dilation=(2, 1)),
        (4, 3, 3),
    ),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 4, 2, (2, 1, 2), 1, groups=2), (2, 2, 3, 2)),
}


def matrix(affine: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """(inputs, outputs): the affine map without its constant, by unit vectors."""
    count = torch.Size(shape).numel()
    unit = torch.eye(count, dtype=torch.float64).reshape(count, *shape)
    with torch.no_grad():
        return (affine(unit) - affine(torch.zeros_like(unit))).flatten(1)


def drawn(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def build(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    make, shape = LAYERS[name]
    torch.manual_seed(len(name))
    return make().double().eval(), shape


@torch.no_grad()
def propagated(noise: nn.Module, layer: nn.Module, x: Tensor | Moments) -> Moments:
    return propagate(nn.Sequential(noise, layer).eval())(x)


@pytest.mark.parametrize("name", LAYERS)
def test_independent_dropout_has_the_variance_of_the_dense_matrix(name):
    """Var = p/(1-p) Σ_j W_ij² a_j²."""
    layer, shape = build(name)
    x = drawn(1, 2, *shape)
    out = propagated(nn.Dropout(RATE), layer, x)
    expected = RATE / (1 - RATE) * x.flatten(1).square() @ matrix(layer, shape).square()
    torch.testing.assert_close(out.mean, layer(x), **EXACT)
    torch.testing.assert_close(out.variance.flatten(1), expected, **EXACT)


@pytest.mark.parametrize("name", [name for name in LAYERS if "linear" not in name])
def test_channel_dropout_has_the_variance_of_the_dense_matrix(name):
    """Var = p/(1-p) Σ_c (Σ_{j in c} W_ij a_j)²: whole channels at once."""
    layer, shape = build(name)
    x = drawn(2, 2, *shape)
    noise = {2: nn.Dropout1d, 3: nn.Dropout2d, 4: nn.Dropout3d}[len(shape)](RATE)
    out = propagated(noise, layer, x)
    channels = shape[0]
    terms = x.flatten(1).unsqueeze(2) * matrix(layer, shape)  # (batch, inputs, outputs)
    by_channel = terms.unflatten(1, (channels, -1)).sum(2)
    expected = RATE / (1 - RATE) * by_channel.square().sum(1)
    torch.testing.assert_close(out.mean, layer(x), **EXACT)
    torch.testing.assert_close(out.variance.flatten(1), expected, **EXACT)


@pytest.mark.parametrize("name", ["conv2d, groups", "transposed 2d, every option"])
def test_channel_dropout_of_an_uncertain_value_keeps_both_kinds_of_noise(name):
    """Sensor noise V first: V (1 + v) W² on top of v Σ_c (W_c a_c)², v = p/(1-p)."""
    layer, shape = build(name)
    x, variance = drawn(3, 2, *shape), drawn(4, 2, *shape).square()
    out = propagated(nn.Dropout2d(RATE), layer, Moments(x, variance))
    v, weights = RATE / (1 - RATE), matrix(layer, shape)
    by_channel = (x.flatten(1).unsqueeze(2) * weights).unflatten(1, (shape[0], -1)).sum(2)
    expected = v * by_channel.square().sum(1)
    expected = expected + (1 + v) * variance.flatten(1) @ weights.square()
    torch.testing.assert_close(out.variance.flatten(1), expected, **EXACT)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_with_copies_is_exact_for_noise_that_a_channel_shares(mode):
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode).double()
    x = drawn(5, 1, 2, 4, 3)
    out = propagated(nn.Dropout2d(RATE), layer, x)
    terms = x.flatten(1).unsqueeze(2) * matrix(layer, (2, 4, 3))
    expected = RATE / (1 - RATE) * terms.unflatten(1, (2, -1)).sum(2).square().sum(1)
    torch.testing.assert_close(out.variance.flatten(1), expected, **EXACT)


def test_padding_with_copies_is_exact_inside_and_approximate_at_the_border():
    torch.manual_seed(0)
    layer = nn.Conv2d(1, 1, 3, padding=1, padding_mode="replicate").double()
    x = drawn(6, 1, 1, 5, 5)
    out = propagated(nn.Dropout(RATE), layer, x).variance
    expected = RATE / (1 - RATE) * x.flatten(1).square() @ matrix(layer, (1, 5, 5)).square()
    expected = expected.reshape(out.shape)
    inside = (..., slice(1, -1), slice(1, -1))
    torch.testing.assert_close(out[inside], expected[inside], **EXACT)
    assert not torch.allclose(out, expected)  # the stated limit; exact, the docstring is outdated


def test_dropout_masks_enumerated():
    """Without a formula: every mask, its probability and its result."""
    torch.manual_seed(0)
    layer = nn.Conv1d(2, 2, 3, padding=1).double()
    x = drawn(7, 1, 2, 5)
    keep = torch.tensor(list(itertools.product([0.0, 1.0], repeat=10)), dtype=torch.float64)
    weight = ((1 - RATE) ** keep * RATE ** (1 - keep)).prod(1).reshape(-1, 1, 1)
    with torch.no_grad():
        results = layer(x * keep.reshape(-1, 2, 5) / (1 - RATE))
    mean = (weight * results).sum(0, keepdim=True)
    variance = (weight * (results - mean).square()).sum(0, keepdim=True)
    out = propagated(nn.Dropout(RATE), layer, x)
    torch.testing.assert_close(out.mean, mean, **EXACT)
    torch.testing.assert_close(out.variance, variance, **EXACT)


@pytest.mark.parametrize(
    ("noise", "name"),
    [
        (nn.Dropout, "linear"),
        (nn.Dropout, "conv1d, every option"),
        (nn.Dropout2d, "conv2d, groups"),
        (nn.Dropout2d, "transposed 2d"),
        (nn.Dropout3d, "conv3d"),
    ],
)
def test_within_four_standard_errors_of_twenty_thousand_samples(noise, name):
    """torch's own dropout in training mode, one batch element per sample.

    The standard error of a sample variance is sqrt((m4 - var²)/n). At most 144 outputs are
    compared, so by chance alone one in 58 seeds would fail; the seed is fixed.
    """
    samples = 20_000
    layer, shape = build(name)
    x = drawn(8, 1, *shape)
    out = propagated(noise(RATE), layer, x)
    torch.manual_seed(1)
    with torch.no_grad():
        drops = noise(RATE).train()
        results = torch.cat([layer(drops(x.expand(2000, *shape))) for _ in range(samples // 2000)])
    mean, variance = results.mean(0), results.var(0)
    fourth = (results - mean).pow(4).mean(0)
    assert ((out.mean[0] - mean).abs() <= 4 * (variance / samples).sqrt()).all()
    standard_error = ((fourth - variance.square()) / samples).sqrt()
    assert ((out.variance[0] - variance).abs() <= 4 * standard_error).all()


FUNCTIONS = {
    "F.linear": (lambda x, w, b: F.linear(x, w, b), (3, 6), (6,)),
    "F.linear by name": (lambda x, w, b: F.linear(input=x, weight=w, bias=b), (3, 6), (6,)),
    "F.conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 1), (3, 2, 3), (2, 6)),
    "F.conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding="valid", dilation=1),
        (3, 2, 3, 3),
        (2, 5, 5),
    ),
    "torch.conv3d": (lambda x, w, b: torch.conv3d(x, w, b), (3, 2, 2, 2, 2), (2, 3, 3, 2)),
    "F.conv_transpose1d": (
        lambda x, w, b: F.conv_transpose1d(x, w, b[:2], 2, 1, 1),
        (3, 2, 3),
        (3, 4),
    ),
    "F.conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, None, groups=3, dilation=2),
        (3, 2, 2, 2),
        (3, 3, 3),
    ),
    "x @ w": (lambda x, w, b: x @ w, (6, 4), (6,)),
    "torch.matmul": (lambda x, w, b: torch.matmul(x, w) + b, (6, 3), (6,)),
    "x.matmul": (lambda x, w, b: x.matmul(w), (5, 6, 2), (5, 2, 6)),
    "w @ x": (lambda x, w, b: w @ x, (4, 3), (3, 2)),
    "torch.bmm": (lambda x, w, b: torch.bmm(x, w.expand(2, 3, 4)), (3, 4), (2, 3)),
}


class Functional(nn.Module):
    def __init__(self, function, weight: tuple[int, ...], noise: nn.Module | None = None):
        super().__init__()
        self.function, self.noise = function, noise or nn.Identity()
        self.weight = nn.Parameter(drawn(9, *weight))
        self.bias = nn.Parameter(drawn(10, 3))

    def forward(self, x):
        return self.function(self.noise(x), self.weight, self.bias)


@pytest.mark.parametrize("name", FUNCTIONS)
@torch.no_grad()
def test_functions_and_operators(name):
    function, weight, shape = FUNCTIONS[name]
    x = drawn(11, 2, *shape)
    out = propagate(Functional(function, weight, nn.Dropout(RATE)).eval())(x)
    plain = Functional(function, weight).eval()
    count = x.numel()  # the batch is part of the map: bmm and matmul may tie it to the weight
    unit = torch.eye(count, dtype=torch.float64).reshape(count, *x.shape)
    rows = torch.stack([plain(row) - plain(torch.zeros_like(x)) for row in unit]).flatten(1)
    expected = RATE / (1 - RATE) * x.flatten().square() @ rows.square()
    torch.testing.assert_close(out.mean, plain(x), **EXACT)
    torch.testing.assert_close(out.variance.flatten(), expected, **EXACT)


@torch.no_grad()
def test_matrix_product_of_two_independent_values():
    """Every pair of masks, enumerated."""

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Dropout(0.3), nn.Dropout(0.4)

        def forward(self, x, y):
            return self.first(x) @ self.second(y)

    x, y = drawn(12, 2, 2), drawn(13, 2, 2)
    out = propagate(Product().eval())(x, y)
    keep = torch.tensor(list(itertools.product([0.0, 1.0], repeat=8)), dtype=torch.float64)
    rate = torch.tensor([0.3] * 4 + [0.4] * 4, dtype=torch.float64)
    weight = torch.where(keep > 0, 1 - rate, rate).prod(1).reshape(-1, 1, 1)
    scaled = (keep / (1 - rate)).reshape(-1, 2, 2, 2)
    results = (x * scaled[:, 0]) @ (y * scaled[:, 1])
    mean = (weight * results).sum(0)
    torch.testing.assert_close(out.mean, mean, **EXACT)
    variance = (weight * (results - mean).square()).sum(0)
    torch.testing.assert_close(out.variance, variance, **EXACT)


def test_channels_are_convolved_in_chunks_with_the_same_result(monkeypatch):
    from penumbra.propagation.rules import affine

    layer, shape = build("conv2d, groups")
    x = drawn(14, 2, *shape)
    whole = propagated(nn.Dropout2d(RATE), layer, x)
    monkeypatch.setattr(affine, "_CHUNK_ELEMENTS", 1)
    chunked = propagated(nn.Dropout2d(RATE), layer, x)
    torch.testing.assert_close(chunked.variance, whole.variance, **EXACT)


def test_flattened_channels_reach_a_linear_layer_as_blocks():
    torch.manual_seed(0)
    head = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).double()
    x = drawn(15, 2, 3, 2, 2)
    out = propagated(nn.Dropout2d(RATE), head, x)
    terms = x.flatten(1).unsqueeze(2) * matrix(head, (3, 2, 2))
    expected = RATE / (1 - RATE) * terms.unflatten(1, (3, -1)).sum(2).square().sum(1)
    torch.testing.assert_close(out.variance, expected, **EXACT)


def test_parametrised_and_inherited_layers_have_the_rule_of_their_base():
    class Mine(nn.Conv2d):
        """Inherits forward."""

    torch.manual_seed(0)
    x = drawn(16, 1, 2, 4, 4)
    normed = torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 3).double())
    for layer in (Mine(2, 3, 3).double(), normed):
        out = propagated(nn.Dropout(RATE), layer, x)
        expected = RATE / (1 - RATE) * x.flatten(1).square() @ matrix(layer, (2, 4, 4)).square()
        torch.testing.assert_close(out.variance.flatten(1), expected, **EXACT)


def test_transposed_convolution_with_an_output_size():
    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.noise, self.up = nn.Dropout(RATE), nn.ConvTranspose2d(2, 3, 3, 2, 1)

        def forward(self, x):
            return self.up(self.noise(x), output_size=[6, 6])

    torch.manual_seed(0)
    model = Up().double().eval()
    x = drawn(17, 1, 2, 3, 3)
    out = propagate(model)(x)
    expected = RATE / (1 - RATE) * x.flatten(1).square() @ matrix(model, (2, 3, 3)).square()
    assert out.mean.shape[-2:] == (6, 6)
    torch.testing.assert_close(out.variance.flatten(1), expected, **EXACT)


def test_an_uncertain_weight_is_refused_with_the_place():
    class Hyper(nn.Module):
        def __init__(self):
            super().__init__()
            self.noise = nn.Dropout(RATE)
            self.weight = nn.Parameter(torch.ones(2, 3))

        def forward(self, x):
            return F.linear(x, self.noise(self.weight))

    with pytest.raises(PropagationError, match=r"F.linear \(.*test_affine.py:\d+\): only the in"):
        propagate(Hyper().eval())(torch.ones(1, 3))

"""Properties of random networks of layers with rules.

Networks are drawn as a list of steps, each a layer that keeps (batch, channels, height, width);
derandomised, so that every run sees the same ones.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from penumbra.propagation import ExactMoments, Moments, propagate

profile = settings(
    derandomize=True,
    deadline=None,
    max_examples=40,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

CHANNELS = 4
FIRST_ORDER = {"relu": "jacobian", "smooth": "jacobian", "max_pool": "argmax"}


class Step(nn.Module):
    """A layer, or several with a skip connection, that keeps the number of channels."""

    def __init__(self, kind: str, rate: float):
        super().__init__()
        c, half = CHANNELS, CHANNELS // 2
        self.kind = kind
        make = {
            "conv": lambda: nn.Conv2d(c, c, 3, padding=1),
            "strided": lambda: nn.Conv2d(c, c, 3, stride=2, padding=1),
            "grouped": lambda: nn.Conv2d(c, c, 3, padding=2, dilation=2, groups=2),
            "transposed": lambda: nn.ConvTranspose2d(c, c, 2, stride=2),
            "norm": lambda: nn.BatchNorm2d(c),
            "group norm": lambda: nn.GroupNorm(2, c),
            "relu": lambda: nn.ReLU(inplace=True),
            "leaky": lambda: nn.LeakyReLU(0.1),
            "elu": lambda: nn.ELU(),
            "sigmoid": lambda: nn.Sigmoid(),
            "tanh": lambda: nn.Tanh(),
            "softplus": lambda: nn.Softplus(),
            "silu": lambda: nn.SiLU(),
            "softmax": lambda: nn.Softmax(1),
            "average": lambda: nn.AvgPool2d(2, ceil_mode=True),
            "maximum": lambda: nn.MaxPool2d(3, stride=1, padding=1),
            "bilinear": lambda: nn.Upsample(scale_factor=2.0, mode="bilinear"),
            "nearest": lambda: nn.Upsample(scale_factor=2, mode="nearest"),
            "dropout": lambda: nn.Dropout(rate),
            "dropout2d": lambda: nn.Dropout2d(rate),
            "skip": lambda: nn.Conv2d(c, c, 1),
            "concat": lambda: nn.Conv2d(c, half, 1),
            "linear": lambda: nn.Linear(c, c),
        }
        self.layer = make[kind]()

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "skip":
            return x + self.layer(x)
        if self.kind == "concat":
            return torch.cat([self.layer(x), x[:, : CHANNELS // 2]], 1)
        if self.kind == "linear":
            return self.layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.layer(x)


KINDS = (
    "conv", "strided", "grouped", "transposed", "norm", "group norm", "relu", "leaky", "elu",
    "sigmoid", "tanh", "softplus", "silu", "softmax", "average", "maximum", "bilinear", "nearest",
    "dropout", "dropout2d", "skip", "concat", "linear",
)  # fmt: skip
# These treat all channels alike (batch norm, too, if its parameters are permuted).
ALIKE = (
    "relu", "leaky", "elu", "sigmoid", "softplus", "silu", "softmax", "average", "maximum",
    "bilinear", "nearest", "dropout", "dropout2d", "norm",
)  # fmt: skip
kinds = st.lists(st.sampled_from(KINDS), max_size=7)
rates = st.sampled_from([0.1, 0.5, 0.8])
seeds = st.integers(0, 2**31)
shapes = st.tuples(st.integers(1, 3), st.integers(3, 7), st.integers(3, 7))


def network(before: list[str], after: list[str], rate: float, seed: int) -> nn.Sequential:
    """Some layers, a dropout, some more, and a head that mixes channels."""
    torch.manual_seed(seed)
    steps = [Step(kind, rate) for kind in (*before, "dropout", *after)]
    small = nn.AdaptiveAvgPool2d(3)  # keeps upsampling in bounds, and is a rule of its own
    model = nn.Sequential(*steps, small, nn.Conv2d(CHANNELS, 2, 1)).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.double()


def image(shape: tuple[int, int, int], seed: int) -> Tensor:
    batch, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    size = (batch, CHANNELS, height, width)
    return torch.randn(size, generator=generator, dtype=torch.float64)


def same(a: Moments, b: Moments, **tolerance: float) -> None:
    torch.testing.assert_close(a.mean, b.mean, **tolerance)
    torch.testing.assert_close(a.variance, b.variance, **tolerance)


@profile
@given(kinds, kinds, rates, seeds, shapes)
@torch.no_grad()
def test_variance_is_finite_and_never_negative(before, after, rate, seed, shape):
    model, x = network(before[:3], after, rate, seed), image(shape, seed)
    for relu, max_pool in (("moment", "argmax"), ("moment", "moment"), ("jacobian", "argmax")):
        out = propagate(model, relu=relu, smooth=relu, max_pool=max_pool)(x)
        assert out.mean.isfinite().all()
        assert out.variance.isfinite().all()
        assert (out.variance >= 0).all()
        assert out.mean.shape == out.variance.shape == model(x).shape


@profile
@given(kinds, kinds, seeds, shapes)
@torch.no_grad()
def test_without_noise_it_is_the_plain_network(before, after, seed, shape):
    model, x = network(before[:3], after, 0.0, seed), image(shape, seed)
    out = propagate(model, noiseless=True)(x)
    assert isinstance(out, ExactMoments)
    assert torch.equal(out.mean, model(x))


@profile
@given(kinds, kinds, rates, seeds, shapes)
@torch.no_grad()
def test_to_first_order_the_mean_is_the_plain_networks(before, after, rate, seed, shape):
    """Rounding alone: batch norm, pooling and interpolation are torch's own on the mean."""
    model, x = network(before[:3], after, rate, seed), image(shape, seed)
    out = propagate(model, **FIRST_ORDER)(x)
    torch.testing.assert_close(out.mean, model(x), rtol=1e-9, atol=1e-9)


@profile
@given(kinds, kinds, rates, seeds, shapes)
@torch.no_grad()
def test_batch_elements_do_not_mix(before, after, rate, seed, shape):
    """The result is the same with and without other images in the batch, up to rounding."""
    model, x = network(before[:3], after, rate, seed), image(shape, seed)
    walk = propagate(model)
    together, alone = walk(torch.cat([x, 100 * x.flip(0) + 1])), walk(x[:1])
    same(Moments(together.mean[:1], together.variance[:1]), alone, rtol=1e-9, atol=1e-12)


@profile
@given(kinds, kinds, rates, seeds, shapes)
@torch.no_grad()
def test_single_and_double_precision_agree(before, after, rate, seed, shape):
    """Over 300 such networks the difference was 1.1e-5 of the largest value at worst (variances
    behind two softmaxes, which cancel), 2e-7 in the median; ten times the worst is asked.

    Argmax pooling and the Jacobian of ReLU jump where two means tie or one is zero, so the
    continuous forms are compared.
    """
    model, x = network(before[:3], after, rate, seed), image(shape, seed)
    options = {"relu": "moment", "smooth": "moment", "max_pool": "moment"}
    double = propagate(model, **options)(x)
    single = propagate(copy.deepcopy(model).float(), **options)(x.float())
    for small, large in ((single.mean, double.mean), (single.variance, double.variance)):
        assert small.dtype == torch.float32
        assert ((small.double() - large).abs() <= 1e-4 * large.abs().max()).all()


@profile
@given(st.lists(st.sampled_from(ALIKE), max_size=5), rates, seeds, shapes)
@torch.no_grad()
def test_permuting_hidden_channels_changes_nothing(after, rate, seed, shape):
    """Layers that treat channels alike, between two that mix them, with channels renumbered."""
    model, x = network(["conv"], after, rate, seed), image(shape, seed)
    order = torch.randperm(CHANNELS, generator=torch.Generator().manual_seed(seed))
    twin = copy.deepcopy(model)
    first, last = twin[0].layer, twin[-1]
    first.weight.copy_(first.weight[order])
    first.bias.copy_(first.bias[order])
    last.weight.copy_(last.weight[:, order])
    for norm in (m for m in twin.modules() if isinstance(m, nn.BatchNorm2d)):
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(norm, name).copy_(getattr(norm, name)[order])
    same(propagate(twin)(x), propagate(model)(x), rtol=1e-9, atol=1e-12)


@profile
@given(st.lists(st.sampled_from(ALIKE), max_size=5), rates, seeds, shapes)
@torch.no_grad()
def test_permuting_input_channels_permutes_what_stays_in_channels(after, rate, seed, shape):
    torch.manual_seed(seed)
    steps = [Step(kind, rate) for kind in ("dropout2d", *after) if kind != "norm"]
    walk, x = propagate(nn.Sequential(*steps).eval()), image(shape, seed)
    order = torch.randperm(CHANNELS, generator=torch.Generator().manual_seed(seed))
    direct, permuted = walk(x), walk(x[:, order])
    same(permuted, Moments(direct.mean[:, order], direct.variance[:, order]), rtol=1e-9, atol=1e-12)


@profile
@given(rates, seeds, shapes, st.integers(1, 3), st.integers(1, 2), st.integers(0, 2))
@torch.no_grad()
def test_one_dropout_before_a_convolution_is_exact(rate, seed, shape, kernel, stride, padding):
    """p/(1-p) W² ∗ a², with an unfolded convolution as the reference."""
    torch.manual_seed(seed)
    layer = nn.Conv2d(CHANNELS, 3, kernel, stride, padding).double()
    x = image(shape, seed)
    out = propagate(nn.Sequential(nn.Dropout(rate), layer).eval())(x)
    columns = F.unfold(x, kernel, padding=padding, stride=stride)
    expected = rate / (1 - rate) * layer.weight.flatten(1).square() @ columns.square()
    torch.testing.assert_close(out.variance.flatten(2), expected, rtol=1e-10, atol=1e-12)

"""Correlated channels and softmax over them, against integration, samples and autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from function_models import Call
from torch import Tensor, nn

from penumbra.propagation import Moments, PropagationError, propagate
from penumbra.propagation.moments import ChannelMoments, MixedMoments
from penumbra.propagation.montecarlo import monte_carlo
from penumbra.propagation.rules import affine, structural
from penumbra.propagation.rules.one_vs_rest import (
    contrasts,
    log_odds,
    log_odds_of_factors,
    probabilities,
)

CLASSES = 5


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixed(mean: Tensor, covariance: Tensor) -> MixedMoments:
    """Scores (batch, classes) of a known covariance (batch, classes, classes)."""

    def of(rows: Tensor) -> Tensor:
        return torch.einsum("mi,bij,mj->bm", rows, covariance, rows)

    return MixedMoments(mean, covariance.diagonal(dim1=-2, dim2=-1), of, -1)


def scores(
    scale: float, classes: int = 11, count: int = 400, spread: float = 3.0
) -> tuple[Tensor, Tensor]:
    """Random means, and factors whose products are random covariances of about that scale."""
    degrees = 2 * classes
    factors = random(count, classes, degrees, seed=1) * (scale / degrees**0.5)
    return spread * random(count, classes), factors


def softmax_of(x: Moments, dim: int = 1) -> Moments:
    return propagate(nn.Softmax(dim), softmax="moment")(x)


# ---- the covariance of an affine layer's outputs -------------------------------------------------

LAYERS = {
    "1x1": (nn.Conv2d(3, CLASSES, 1), (1, 3, 4, 3)),
    "3x3, padded": (nn.Conv2d(3, CLASSES, 3, padding=1), (1, 3, 4, 3)),
    "strided, dilated": (nn.Conv2d(2, CLASSES, 2, stride=2, dilation=2), (1, 2, 6, 5)),
    "reflected border": (nn.Conv2d(2, CLASSES, (1, 1), padding_mode="reflect"), (1, 2, 3, 3)),
    "one dimension": (nn.Conv1d(3, CLASSES, 3), (1, 3, 6)),
    "no batch": (nn.Conv2d(2, CLASSES, 2), (2, 3, 3)),
    "linear": (nn.Linear(7, CLASSES), (2, 7)),
    "linear, of vectors": (nn.Linear(4, CLASSES), (1, 3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_combinations_of_outputs_have_their_exact_variance(name, matrix_of):
    layer, shape = LAYERS[name]
    layer = layer.double()
    x = Moments(random(*shape), random(*shape, seed=1).square())
    rule = (
        affine.convolution_layer
        if not isinstance(layer, nn.Linear)
        else lambda layer, x: affine.linear(x, layer.weight, layer.bias)
    )
    out = rule(layer, x)
    matrix, _ = matrix_of(layer, shape)
    covariance = matrix @ torch.diag(x.variance.flatten()) @ matrix.mT
    rows = random(4, CLASSES, seed=2)
    # index of every output by (position, channel)
    index = torch.arange(out.mean.numel()).reshape(out.mean.shape).movedim(out.dim, -1)
    index = index.reshape(-1, CLASSES)
    blocks = covariance[index.unsqueeze(-1), index.unsqueeze(-2)]
    expected = torch.einsum("mi,pij,mj->pm", rows, blocks, rows)
    got = out.of(rows).movedim(out.dim, -1).reshape(-1, 4)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)  # float64, sums of dozens


def test_whole_channels_that_are_dropped_are_exact_as_well(matrix_of):
    layer, shape = nn.Conv2d(3, CLASSES, 2).double(), (1, 3, 3, 3)
    x = ChannelMoments(random(*shape), random(*shape, seed=1).square(), (random(*shape, seed=2),))
    out = affine.convolution_layer(layer, x)
    matrix, _ = matrix_of(layer, shape)
    same = torch.arange(27).reshape(3, 9) // 9
    same = same.flatten().unsqueeze(0) == same.flatten().unsqueeze(1)
    factor = x.factors[0].flatten()
    inside = torch.diag(x.independent.flatten()) + same * factor.outer(factor)
    covariance = matrix @ inside @ matrix.mT
    rows = contrasts(CLASSES, x.mean)
    blocks = covariance.reshape(CLASSES, 4, CLASSES, 4).diagonal(dim1=1, dim2=3)
    expected = torch.einsum("mi,ijp,mj->mp", rows, blocks, rows).reshape(out.of(rows).shape)
    torch.testing.assert_close(out.of(rows), expected, rtol=1e-12, atol=1e-12)


def test_grouped_and_transposed_convolutions_hand_on_the_diagonal():
    x = Moments(torch.ones(1, 4, 3, 3), torch.ones(1, 4, 3, 3))
    grouped = affine.convolution_layer(nn.Conv2d(4, 4, 1, groups=2), x)
    transposed = affine.transposed_convolution_layer(nn.ConvTranspose2d(4, 4, 1), x)
    assert type(grouped) is type(transposed) is Moments


HANDED_ON = {
    "crop": lambda z: z[..., :3, 1:],
    "crop, all named": lambda z: z[:, :, 1:, :3],
    "scaled and shifted": lambda z: z / 2 - 3,
    "double": lambda z: z.double(),
    "nearest": lambda z: F.interpolate(z, scale_factor=2.0),
}


@pytest.mark.parametrize("name", HANDED_ON)
def test_the_covariance_goes_through_what_treats_all_channels_alike(name):
    """Moving positions and softmax may change places; a factor is one of the weights."""
    move = HANDED_ON[name]
    layers = nn.Sequential(nn.Dropout(0.3), nn.Conv2d(3, CLASSES, 3)).eval()
    x = random(1, 3, 6, 6).float()
    out = propagate(nn.Sequential(layers, Call(move), nn.Softmax(1)), softmax="moment")(x)
    if name == "scaled and shifted":
        with torch.no_grad():
            layers[1].weight /= 2
            layers[1].bias /= 2
        expected = propagate(nn.Sequential(layers, nn.Softmax(1)), softmax="moment")(x)
    else:
        whole = propagate(nn.Sequential(layers, nn.Softmax(1)), softmax="moment")(x)
        expected = Moments(move(whole.mean), move(whole.variance))
    torch.testing.assert_close(out.mean, expected.mean, rtol=1e-5, atol=1e-7, check_dtype=False)
    torch.testing.assert_close(
        out.variance, expected.variance, rtol=1e-4, atol=1e-9, check_dtype=False
    )


@pytest.mark.parametrize(
    ("index", "kept"),
    [
        ((..., slice(2), slice(None)), True),
        ((slice(None), slice(None), slice(1)), True),
        ((slice(1),), True),
        ((slice(None), ..., slice(1)), True),
        ((slice(None), slice(3)), False),
        ((..., slice(3), slice(None), slice(None)), False),
        ((slice(None), 0), False),
        ((0,), False),
    ],
)
def test_a_part_keeps_the_covariance_if_it_keeps_all_channels(index, kept):
    x = Moments(torch.ones(2, 3, 4, 4), torch.ones(2, 3, 4, 4))
    z = affine.convolution_layer(nn.Conv2d(3, CLASSES, 1), x)
    part = structural.item(z, index)
    assert isinstance(part, MixedMoments) == kept
    assert torch.equal(part.variance, z.variance[index])
    if kept:
        rows = torch.eye(CLASSES)
        torch.testing.assert_close(part.of(rows), part.variance)


# ---- softmax -------------------------------------------------------------------------------------


def test_weak_noise_is_the_jacobian_with_the_whole_covariance():
    mean, factors = scores(1e-3)
    covariance = factors @ factors.mT
    out = softmax_of(mixed(mean, covariance))
    s = mean.softmax(1)
    jacobian = torch.diag_embed(s) - s.unsqueeze(-1) * s.unsqueeze(-2)
    expected = (jacobian @ covariance @ jacobian.mT).diagonal(dim1=1, dim2=2)
    # the error is of the order of the variance, 1e-6
    torch.testing.assert_close(out.variance, expected, rtol=2e-5, atol=0)
    torch.testing.assert_close(out.mean, s, rtol=2e-5, atol=0)


@pytest.mark.parametrize(("gap", "variance"), [(0.0, 0.3), (1.0, 1.0), (-4.0, 1.0), (9.0, 0.5)])
def test_two_classes_are_integrated(gap, variance, gaussian_moments):
    """Their log-odds are Gaussian: only five nodes and the bound on the variance are approximate.

    The bound takes 0.02 v of the variance; five nodes are worth 1e-3 there.
    """
    mean = torch.tensor([[gap, 0.0]], dtype=torch.float64)
    covariance = torch.tensor([[[variance, 0.2], [0.2, 0.4]]], dtype=torch.float64) + 1.0
    difference = variance
    out = softmax_of(mixed(mean, covariance))
    expected, spread = gaussian_moments(torch.sigmoid, gap, difference**0.5)
    # log-odds of -4: the mean grows with exp(v/2), so 0.02 v² changes a share of v² / 100 of it
    assert out.mean[0, 0].item() == pytest.approx(expected, rel=0.012)
    assert out.variance[0].tolist() == pytest.approx([spread, spread], rel=0.06)


@pytest.mark.parametrize(("scale", "allowed"), [(0.5, 0.02), (1.0, 0.04), (2.0, 0.08)])
def test_gaussian_scores_against_sampling(scale, allowed):
    """Sampling noise is 0.7 % of each deviation; the rule's error is 1.3, 2.5 and 6 %."""
    mean, factors = scores(scale)
    generator = torch.Generator().manual_seed(3)
    first = second = torch.zeros_like(mean)
    for _ in range(100):
        noise = torch.randn(100, *factors.shape[::2], generator=generator, dtype=torch.float64)
        p = (mean + torch.einsum("bkd,sbd->sbk", factors, noise)).softmax(-1)
        first, second = first + p.sum(0) / 10_000, second + p.square().sum(0) / 10_000
    expected = (second - first.square()).sqrt().mean(1)
    x = mixed(mean, factors @ factors.mT)
    out = softmax_of(x)
    error = (out.std.mean(1) - expected).abs().mean() / expected.mean()
    plain = propagate(nn.Softmax(1))(x).std.mean(1)
    assert error < allowed
    assert error < ((plain - expected).abs().mean() / expected.mean()) / 3
    # total variation of the mean prediction, in the same measure
    shift = (out.mean - first).abs().sum(1).mean() / 2
    assert shift < (mean.softmax(1) - first).abs().sum(1).mean() / 2 / 3


def test_dropout_before_a_classifier_against_monte_carlo():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.2), nn.Linear(300, 6), nn.Softmax(1)).eval()
    with torch.no_grad():
        model[1].weight *= 3
    x = random(20, 300).float().relu()
    sampled = monte_carlo(model, x, samples=10_000)
    out = propagate(model, softmax="moment")(x)
    # 10,000 samples are good for 0.7 %, the rule for 2.5 %; the independent classes are not
    error = (out.std - sampled.std).abs().mean() / sampled.std.mean()
    without = (propagate(model)(x).std - sampled.std).abs().mean() / sampled.std.mean()
    assert error < 0.04 < without


def test_noise_that_all_classes_share_is_none():
    model = nn.Sequential(nn.Dropout(0.5), nn.Conv2d(4, CLASSES, 3), nn.Softmax(1)).eval()
    with torch.no_grad():
        model[1].weight.copy_(model[1].weight[:1].expand(CLASSES, -1, -1, -1).clone())
    x = random(1, 4, 5, 5).float()
    out = propagate(model, softmax="moment")(x)
    assert not out.variance.any()
    torch.testing.assert_close(out.mean, model(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [0.0, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("variance", [0.0, 1e-30, 1.0, 1e4, 1e20])
def test_extremes_stay_finite_and_sum_to_one(dtype, gap, variance):
    mean = torch.tensor([[gap, 0.0, 0.0, -gap], [gap, gap, -gap, -gap]], dtype=dtype)
    covariance = variance * torch.eye(4, dtype=dtype).expand(2, 4, 4)
    out = softmax_of(mixed(mean, covariance))
    assert torch.isfinite(out.mean).all() and torch.isfinite(out.variance).all()
    assert (out.variance >= 0).all() and (out.variance <= 0.25).all()
    assert (out.mean >= 0).all()
    torch.testing.assert_close(out.mean.sum(1), torch.ones(2, dtype=dtype))
    if variance == 0:
        assert not out.variance.any()
        torch.testing.assert_close(out.mean, mean.softmax(1))


@pytest.mark.parametrize("gap", [5.0, 12.0, 25.0])
def test_a_sure_class_keeps_its_variance_in_single_precision(gap):
    mean = torch.tensor([[gap, 0.5, 0.0, -1.0]], dtype=torch.float64)
    factors = random(1, 4, 8)
    exact = softmax_of(mixed(mean, factors @ factors.mT))
    single = softmax_of(mixed(mean.float(), (factors @ factors.mT).float()))
    # e^-25 is rounded to 25 ε by its exponent, squares and the covariance add a few
    torch.testing.assert_close(single.variance.double(), exact.variance, rtol=3e-5, atol=0)


def test_scores_of_unknown_covariance_count_as_independent():
    mean, variance = random(3, 4), random(3, 4, seed=1).square()
    plain = softmax_of(Moments(mean, variance))
    known = softmax_of(mixed(mean, torch.diag_embed(variance)))
    torch.testing.assert_close(plain.mean, known.mean)
    torch.testing.assert_close(plain.variance, known.variance)


@pytest.mark.parametrize(
    ("shape", "dim"), [((4,), 0), ((3, 4), -1), ((4, 3), 0), ((2, 3, 4, 2), 2), ((2, 4, 3, 2), 1)]
)
@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_every_dimension_is_treated_alike(shape, dim, function):
    mean, variance = random(*shape), random(*shape, seed=1).square()
    walk = propagate(Call(lambda v: function(v, dim)), softmax="moment")
    out = walk(Moments(mean, variance))
    flat = [value.movedim(dim, -1).reshape(-1, 4) for value in (mean, variance)]
    expected = propagate(Call(lambda v: function(v, 1)), softmax="moment")(Moments(*flat))
    for got, wanted in ((out.mean, expected.mean), (out.variance, expected.variance)):
        torch.testing.assert_close(got.movedim(dim, -1).reshape(-1, 4), wanted)


def test_one_class_is_certain():
    for model in (nn.Softmax(1), nn.LogSoftmax(1)):
        out = propagate(model, softmax="moment")(Moments(torch.zeros(2, 1), torch.ones(2, 1)))
        assert not out.variance.any()


def test_softmax2d_and_a_dtype_of_its_own():
    mean, variance = random(2, 3, 2, 2).float(), random(2, 3, 2, 2, seed=1).float().square()
    x = Moments(mean, variance)
    expected = softmax_of(x)
    out = propagate(nn.Softmax2d(), softmax="moment")(x)
    assert torch.equal(out.variance, expected.variance)
    walk = propagate(Call(lambda v: F.softmax(v, 1, dtype=torch.float64)), softmax="moment")
    assert walk(x).mean.dtype == walk(x).variance.dtype == torch.float64


def test_log_softmax_is_first_order_over_the_covariance():
    mean, factors = scores(1.0, classes=4, count=20)
    covariance = factors @ factors.mT
    out = propagate(nn.LogSoftmax(1), softmax="moment")(mixed(mean, covariance))
    jacobian = torch.eye(4, dtype=torch.float64) - mean.softmax(1).unsqueeze(-2)
    expected = (jacobian @ covariance @ jacobian.mT).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(out.variance, expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(out.mean, mean.log_softmax(1))


def test_an_unknown_option_raises():
    with pytest.raises(PropagationError, match="softmax='exact' is not one of"):
        propagate(nn.Softmax(1), softmax="exact")


def test_onnx_runtime_computes_the_same(through_onnx):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Dropout(0.3), nn.Conv2d(4, CLASSES, 3, padding=1), Call(lambda z: z[..., :5, :] * 2),
        nn.Softmax(1),
    ).eval()  # fmt: skip
    walk = propagate(model, softmax="moment")
    x = random(1, 4, 6, 7).float()
    with torch.no_grad():
        expected = walk(x)
    mean, variance = through_onnx(walk, x)
    torch.testing.assert_close(torch.from_numpy(mean), expected.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.from_numpy(variance), expected.variance, rtol=1e-4, atol=1e-7)


# ---- few sources instead of all pairs ------------------------------------------------------------


def factors(classes: int, sources: int, sure: float) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of 60 positions, in the last of which one class is ahead by up to `sure`."""
    mean = random(2, classes, 60, seed=3)
    mean[:, classes // 2] += torch.linspace(0, sure, 60, dtype=torch.float64)
    return mean, random(classes, sources, seed=4), random(2, sources, 60, seed=5).square()


@pytest.mark.parametrize("sure", [0.0, 5.0, 25.0])
@pytest.mark.parametrize(("classes", "sources"), [(2, 1), (3, 5), (11, 16)])
def test_loadings_say_what_all_pairs_say(classes, sources, sure):
    mean, loadings, variances = factors(classes, sources, sure)
    pairs = (contrasts(classes, mean) @ loadings).square() @ variances
    ours, known = log_odds_of_factors(loadings, mean, variances), log_odds(mean, pairs)
    torch.testing.assert_close(ours.variance, known.variance)
    torch.testing.assert_close(ours.among_rest, known.among_rest, rtol=1e-6, atol=1e-9)
    for mine, theirs in zip(probabilities(ours), probabilities(known), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("sure", [0.0, 12.0, 60.0])
def test_loadings_in_single_precision(sure):
    """A confident class would lose its variance if 1 - s were computed as a difference."""
    mean, loadings, variances = factors(11, 16, sure)
    double = probabilities(log_odds_of_factors(loadings, mean, variances))[1].sqrt()
    single = probabilities(log_odds_of_factors(loadings.float(), mean.float(), variances.float()))[
        1
    ].sqrt()
    # The parity that is asked of a runtime: 1e-4 relative, 1e-6 absolute.
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-6)


def test_loadings_of_classes_that_tie():
    mean, loadings, variances = factors(5, 4, 0.0)
    mean[:, 1] = mean[:, 3] = mean.amax(1)
    pairs = (contrasts(5, mean) @ loadings).square() @ variances
    ours, known = log_odds_of_factors(loadings, mean, variances), log_odds(mean, pairs)
    torch.testing.assert_close(ours.variance, known.variance)
    torch.testing.assert_close(ours.among_rest, known.among_rest)

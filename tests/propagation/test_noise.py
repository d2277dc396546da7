"""Noise layers against the enumeration of all masks with their probabilities; no sampling error.

The reference runs the plain layers on all 2ⁿ masked inputs, so it shares nothing with the rules.
"""

import pytest
import torch
import torch.nn.functional as F
from function_models import Call
from noise_references import (
    P,
    assert_same,
    assert_within_sampling_error,
    by_enumeration,
    expectation,
    masks,
    normal,
)
from torch import nn

from penumbra.propagation import (
    AdditiveGaussianNoise,
    ExactMoments,
    Moments,
    MultiplicativeGaussianNoise,
    PropagationError,
    propagate,
)

# ---- independent elements ------------------------------------------------------------------------


@pytest.mark.parametrize("after", [nn.Identity(), nn.Linear(6, 3), nn.Conv1d(2, 3, 2)])
def test_dropout_and_an_affine_layer_are_exact(after):
    after = after.double()
    x = normal(1, 6) if not isinstance(after, nn.Conv1d) else normal(1, 2, 3)
    out = propagate(nn.Sequential(nn.Dropout(P), after))(x)
    assert_same(out, by_enumeration(x, after, x.shape))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("function", [F.dropout, torch.dropout])
def test_functional_dropout_is_noise_in_any_mode(function, training):
    x = normal(1, 5)
    out = propagate(Call(lambda v: function(v, P, training) * 2))(x)
    assert_same(out, by_enumeration(x, lambda v: 2 * v, x.shape))


def test_dropout_of_an_uncertain_value():
    """V = a² p/(1-p) + V/(1-p): from mean and variance given the mask (law of total variance)."""
    mean, variance = normal(4), normal(4).square()
    out = propagate(nn.Dropout(P))(Moments(mean, variance))
    expected_mean, from_mask = by_enumeration(mean, lambda v: v, (4,))
    kept, probability = masks(4)
    within, _ = expectation(kept / (1 - P) ** 2 * variance, probability)
    assert_same(out, (expected_mean, from_mask + within))


def test_two_dropouts_with_a_layer_between_them():
    """Dropout of a dropout: diagonal, hence exact before elements are mixed."""
    x = normal(1, 4)
    out = propagate(nn.Sequential(nn.Dropout(P), nn.Dropout(0.5)))(x)
    first, p_first = masks(4)
    second, p_second = masks(4, 0.5)
    values = (first[:, None] * second / ((1 - P) * 0.5) * x).flatten(0, 1)
    expected = expectation(values, (p_first[:, None] * p_second).flatten())
    assert_same(out, (expected[0][None], expected[1][None]))


def test_a_rate_of_zero_is_no_noise_and_costs_nothing():
    layers = [nn.Dropout(0.0), nn.Dropout2d(0.0), nn.AlphaDropout(0.0), AdditiveGaussianNoise(0.0)]
    for layer in [*layers, MultiplicativeGaussianNoise(0.0)]:
        walk = propagate(layer, noiseless=True)
        assert isinstance(walk(normal(1, 2, 3, 3)), ExactMoments)


@pytest.mark.parametrize("layer", [nn.Dropout(1.0), nn.Dropout2d(1.0), nn.AlphaDropout(1.0)])
def test_a_rate_of_one_is_refused(layer):
    with pytest.raises(PropagationError, match="drops everything"):
        propagate(layer)(normal(1, 2, 3, 3))


# ---- alpha dropout -------------------------------------------------------------------------------


def alpha_dropped(x, mask, p):
    """Klambauer et al. 2017 with the constants of the paper: dropped values go to α' = -λα."""
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    low = -scale * alpha
    a = (1 - p + low**2 * p * (1 - p)) ** -0.5
    return a * (x * mask + low * (1 - mask)) - a * p * low


@pytest.mark.parametrize("model", [nn.AlphaDropout(P), Call(lambda v: F.alpha_dropout(v, P))])
def test_alpha_dropout_and_a_linear_layer(model):
    linear = nn.Linear(5, 2).double()
    x = normal(1, 5)
    out = propagate(nn.Sequential(model, linear))(x)
    kept, probability = masks(5)
    with torch.no_grad():
        values = torch.stack([linear(alpha_dropped(x, mask, P)) for mask in kept])
    # torch rounds α' to 7 digits in its own code, this project does not: no matter here
    assert_same(out, expectation(values, probability))


def test_alpha_dropout_is_torchs():
    """Each element that torch samples is one of the two enumerated values."""
    x = normal(200)
    torch.manual_seed(0)
    sampled = F.alpha_dropout(x, P, training=True)
    kept, dropped = (alpha_dropped(x, torch.full_like(x, m), P) for m in (1.0, 0.0))
    nearest = torch.minimum((sampled - kept).abs(), (sampled - dropped).abs())
    assert nearest.max() < 1e-7  # torch's constant has eight digits
    assert not torch.allclose(sampled, kept)


def test_alpha_dropout_of_an_uncertain_value():
    mean, variance = normal(3), normal(3).square()
    out = propagate(nn.AlphaDropout(P))(Moments(mean, variance))
    kept, probability = masks(3)
    expected_mean, from_mask = expectation(alpha_dropped(mean, kept, P), probability)
    slope = alpha_dropped(torch.ones(3), kept, P) - alpha_dropped(torch.zeros(3), kept, P)
    within, _ = expectation(slope.square() * variance, probability)
    assert_same(out, (expected_mean, from_mask + within))


@pytest.mark.parametrize("model", [
    nn.FeatureAlphaDropout(P), Call(lambda v: F.feature_alpha_dropout(v, P)),
])  # fmt: skip
def test_feature_alpha_dropout_is_refused(model):
    with pytest.raises(PropagationError, match="feature alpha dropout is not supported"):
        propagate(model)(normal(1, 2, 3, 3))


# ---- whole channels ------------------------------------------------------------------------------

FIRST_AFFINE = {
    "nothing": (nn.Dropout2d(P), nn.Identity(), (2, 3, 2, 2)),
    "conv": (nn.Dropout2d(P), nn.Conv2d(4, 3, 3, padding=1), (2, 4, 4, 3)),
    "conv, groups": (nn.Dropout2d(P), nn.Conv2d(4, 6, 2, groups=2), (1, 4, 3, 3)),
    "conv, one group per channel": (nn.Dropout2d(P), nn.Conv2d(4, 8, 2, groups=4), (1, 4, 3, 3)),
    "conv, stride and dilation": (
        nn.Dropout2d(P), nn.Conv2d(3, 2, 3, stride=2, dilation=2, padding=2), (1, 3, 6, 5),
    ),
    "conv, reflected": (
        nn.Dropout2d(P), nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect"), (1, 3, 4, 4),
    ),
    "conv, same": (nn.Dropout2d(P), nn.Conv2d(3, 2, (1, 3), padding="same"), (1, 3, 4, 4)),
    "transposed": (
        nn.Dropout2d(P), nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1),
        (1, 3, 3, 2),
    ),
    "transposed, groups and dilation": (
        nn.Dropout2d(P), nn.ConvTranspose2d(4, 6, 2, groups=2, dilation=2), (1, 4, 3, 3),
    ),
    "1d": (nn.Dropout1d(P), nn.Conv1d(4, 3, 3), (2, 4, 6)),
    "1d transposed": (nn.Dropout1d(P), nn.ConvTranspose1d(4, 3, 3), (1, 4, 3)),
    "3d": (nn.Dropout3d(P), nn.Conv3d(3, 2, 2), (1, 3, 2, 3, 3)),
    "2d of (N, C, L)": (nn.Dropout2d(P), nn.Conv1d(3, 2, 2), (1, 3, 4)),
    "function": (Call(lambda v: F.dropout2d(v, P, False)), nn.Conv2d(3, 2, 2), (1, 3, 3, 3)),
    "flatten, linear": (
        nn.Dropout2d(P), nn.Sequential(nn.Flatten(), nn.Linear(3 * 4, 5)), (2, 3, 2, 2),
    ),
    "average, flatten, linear": (
        nn.Dropout2d(P),
        nn.Sequential(nn.AvgPool2d(2, 1, 1), nn.Flatten(), nn.Linear(27, 4)),
        (1, 3, 2, 2),
    ),
    "global average, flatten, linear": (
        nn.Dropout2d(P), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)),
        (2, 3, 3, 5),
    ),
    "bilinear, conv": (
        nn.Dropout2d(P),
        nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(3, 2, 3)),
        (1, 3, 3, 2),
    ),
    "padding, batch norm, conv": (
        nn.Dropout2d(P),
        nn.Sequential(nn.ConstantPad2d(1, 0.7), nn.BatchNorm2d(3).eval(), nn.Conv2d(3, 2, 2)),
        (1, 3, 3, 3),
    ),
    "linear on the last dimension": (nn.Dropout1d(P), nn.Linear(4, 3), (1, 3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST_AFFINE)
@pytest.mark.filterwarnings("ignore:dropout2d. Received a 3D input")
def test_channel_dropout_is_exact_through_the_first_affine_layer(name):
    noise, after, shape = FIRST_AFFINE[name]
    after = after.double()
    model = nn.Sequential(noise, after).eval()
    x = normal(*shape)
    out = propagate(model)(x)
    for index in range(len(x)):  # each batch element has a mask of its own
        one = x[index : index + 1]
        expected = by_enumeration(one, after, (1, shape[1], *(1,) * (len(shape) - 2)))
        got = Moments(out.mean[index : index + 1], out.variance[index : index + 1])
        assert_same(got, expected)


def test_channel_dropout_of_an_uncertain_value_through_a_convolution():
    """Sensor noise is independent, the mask is shared: law of total variance again."""
    conv = nn.Conv2d(3, 2, 2).double()
    mean, variance = normal(1, 3, 3, 3), normal(1, 3, 3, 3).square()
    out = propagate(nn.Sequential(nn.Dropout2d(P), conv))(Moments(mean, variance))
    expected_mean, from_mask = by_enumeration(mean, conv, (1, 3, 1, 1))
    kept, probability = masks(3)
    with torch.no_grad():
        within = [
            F.conv2d(variance * mask.reshape(1, 3, 1, 1) / (1 - P) ** 2, conv.weight.square())
            for mask in kept
        ]
    assert_same(out, (expected_mean, from_mask + expectation(torch.stack(within), probability)[0]))


@pytest.mark.parametrize("second", [nn.Dropout2d(0.5), nn.Dropout(0.5)])
def test_noise_upon_channel_dropout_keeps_what_the_channel_shares(second):
    """Two noise layers in a row and a convolution: every pair of masks."""
    conv = nn.Conv2d(2, 2, (1, 2)).double()
    x = normal(1, 2, 1, 3)
    out = propagate(nn.Sequential(nn.Dropout2d(P), second, conv))(x)
    shape = (1, 2, 1, 1) if isinstance(second, nn.Dropout2d) else (1, 2, 1, 3)
    first, p_first = masks(2)
    other, p_other = masks(torch.Size(shape).numel(), 0.5)
    with torch.no_grad():
        values = torch.stack([
            conv(x * a.reshape(1, 2, 1, 1) * b.reshape(shape) / ((1 - P) * 0.5))
            for a in first for b in other
        ])  # fmt: skip
    assert_same(out, expectation(values, (p_first[:, None] * p_other).flatten()))


def test_added_noise_upon_channel_dropout_keeps_what_the_channel_shares():
    conv = nn.Conv2d(2, 2, 2).double()
    x = normal(1, 2, 3, 3)
    out = propagate(nn.Sequential(nn.Dropout2d(P), AdditiveGaussianNoise(0.4), conv))(x)
    mean, variance = by_enumeration(x, conv, (1, 2, 1, 1))
    added = 0.4**2 * conv.weight.detach().square().sum((1, 2, 3)).reshape(1, 2, 1, 1)
    assert_same(out, (mean, variance + added))


@pytest.mark.parametrize("model", [
    nn.Dropout1d(P), Call(lambda v: F.dropout1d(v, P)), nn.Dropout2d(P), nn.Dropout3d(P),
])  # fmt: skip
def test_channel_dropout_without_a_batch_is_refused(model):
    """torch drops whole rows of (C, L), which the rule would take for a batch of C."""
    with pytest.raises(PropagationError, match="batch first"):
        propagate(model)(normal(3, 4))


class OwnDropout(nn.Dropout2d):
    """A subclass with the same forward has the same rule."""


def test_a_subclass_of_a_noise_layer():
    x = normal(1, 3, 2, 2)
    ours, theirs = (propagate(kind(P))(x) for kind in (OwnDropout, nn.Dropout2d))
    assert torch.equal(ours.variance, theirs.variance)


# ---- Gaussian noise ------------------------------------------------------------------------------


def test_gaussian_noise_layers():
    mean, variance = normal(5), normal(5).square()
    added = propagate(AdditiveGaussianNoise(0.3))(Moments(mean, variance))
    assert_same(added, (mean, variance + 0.09))
    # E[X² Z²] - E[X]² with E[Z²] = 1 + 0.09
    times = propagate(MultiplicativeGaussianNoise(0.3))(Moments(mean, variance))
    assert_same(times, (mean, (mean.square() + variance) * 1.09 - mean.square()))
    assert_same(propagate(AdditiveGaussianNoise(0.3))(mean), (mean, torch.full_like(mean, 0.09)))
    assert_same(propagate(MultiplicativeGaussianNoise(0.3))(mean), (mean, 0.09 * mean.square()))


@pytest.mark.parametrize("kind", [AdditiveGaussianNoise, MultiplicativeGaussianNoise])
def test_gaussian_layers_sample_what_they_say(kind):
    x = torch.tensor([[-2.0, 0.5, 3.0]], dtype=torch.float64)
    layer = kind(0.7)
    assert torch.equal(layer.eval()(x), x)
    assert_within_sampling_error(layer, x)


def test_a_negative_standard_deviation_is_refused():
    with pytest.raises(PropagationError, match="at least 0"):
        AdditiveGaussianNoise(-0.1)

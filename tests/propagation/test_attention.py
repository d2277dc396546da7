"""Attention against sampling: soft and sharp weights, masks, dropout of weights, all its forms."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from penumbra.propagation import Moments, PropagationError, monte_carlo, propagate

RANDOM = torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, generator=RANDOM)


def uncertain(*shape, size=1.0, std=0.1):
    return Moments(size * normal(*shape), torch.full(shape, std**2))


def explicit(q, k, v):
    """As it is written out, with weights as a value of their own."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(4)
    return F.softmax(scores, dim=-1) @ v


@pytest.mark.parametrize("function", [F.scaled_dot_product_attention, explicit])
@pytest.mark.parametrize("std", [0.03, 0.1, 0.3])
def test_soft_weights(function, std, against_samples):
    """Independent inputs and small noise: first order is right to the noise's own square."""
    inputs = [uncertain(2, 3, 6, 4, std=std) for _ in range(3)]
    found, sampled = against_samples(function, *inputs, samples=4000)
    ratio = found.std.mean() / sampled.std.mean()
    # Sampling: √(1/2n) = 1 % for each element, far less for their mean. 8 %: scores of one query
    # vary together by the query, which the sum over keys takes as independent.
    assert abs(ratio - 1) < 0.08


@pytest.mark.filterwarnings("ignore:attention whose scores vary")
@pytest.mark.parametrize("function", [F.scaled_dot_product_attention, explicit])
@pytest.mark.parametrize("size", [3.0, 6.0, 12.0])
def test_sharp_weights_are_bounded(function, size, against_samples):
    """Scores that vary by several units: first order alone is up to 15 times too large."""
    q, k = (uncertain(2, 3, 6, 4, size=size, std=0.5) for _ in range(2))
    v = normal(2, 3, 6, 4)
    found, sampled = against_samples(function, q, k, v, samples=4000)
    ratio = found.std.mean() / sampled.std.mean()
    # Written out, the scores do not know what their keys have in common, and a warning says so.
    limit = 1.5 if function is F.scaled_dot_product_attention else 2.0
    assert 1 / limit < ratio < limit
    # The bound of Jensen's inequality holds for every element: no more than the values' range.
    assert (found.std <= (v.amax(-2, keepdim=True) - v.amin(-2, keepdim=True)) / 2 + 1e-6).all()


def test_what_all_values_share_does_not_vary(against_samples):
    q, k = uncertain(1, 2, 5, 4), uncertain(1, 2, 5, 4)
    v = torch.full((1, 2, 5, 4), 100.0)
    found, _ = against_samples(explicit, q, k, v, samples=2)
    assert (found.std < 1e-4).all()


def test_what_all_keys_share_moves_no_weight(against_samples):
    q, v = uncertain(1, 2, 5, 4, std=0.3), normal(1, 2, 5, 4)
    k = 0.1 * normal(1, 2, 5, 4) + 10
    found, sampled = against_samples(F.scaled_dot_product_attention, q, k, v, samples=4000)
    assert abs(found.std.mean() / sampled.std.mean() - 1) < 0.15


@pytest.mark.parametrize("form", ["boolean", "added", "causal"])
def test_masks(form, against_samples):
    allowed = torch.ones(6, 6, dtype=torch.bool).tril()
    mask = {
        "boolean": {"attn_mask": allowed},
        "added": {"attn_mask": torch.zeros(6, 6).masked_fill(~allowed, -math.inf)},
        "causal": {"is_causal": True},
    }[form]
    q, k, v = (uncertain(1, 2, 6, 4) for _ in range(3))
    found, _ = against_samples(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **mask), q, k, v, samples=2
    )
    # The first query sees the first value alone.
    torch.testing.assert_close(found.mean[..., 0, :], v.mean[..., 0, :])
    torch.testing.assert_close(found.variance[..., 0, :], v.variance[..., 0, :])
    plain = F.scaled_dot_product_attention(q.mean, k.mean, v.mean, is_causal=True)
    torch.testing.assert_close(found.mean, plain)


@pytest.mark.parametrize(
    "attention",
    [
        lambda x: F.scaled_dot_product_attention(x, x, x, None, 0.2),
        lambda x: F.dropout(F.softmax(x @ x.mT / 2, -1), 0.2) @ x,
    ],
    ids=["fused", "explicit"],
)
def test_dropout_of_weights_is_noise(attention, against_samples):
    """Exact scores: E[Z] = 1 and V[Z] = p/(1-p) of each weight, and nothing else varies."""
    x = normal(1, 5, 4)
    found, sampled = against_samples(attention, x)
    weights = torch.softmax(x @ x.mT / 2, -1)
    torch.testing.assert_close(found.variance, weights.square() @ x.square() * 0.25)
    # Two masks of five weights: heavy tails, so five times the Gaussian error √(2/n).
    torch.testing.assert_close(found.variance.double(), sampled.variance, rtol=0.05, atol=1e-4)


class Attending(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.noise = nn.Dropout(0.1)
        self.attention = nn.MultiheadAttention(16, 4, **options)

    def forward(self, x):
        x = self.noise(x)
        return self.attention(x, x, x)[0]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_multihead_attention(batch_first, dropout):
    model = Attending(batch_first=batch_first, dropout=dropout).eval()
    x = normal(5, 7, 16)
    with torch.no_grad():
        found = propagate(model, example=x)(x)
        torch.testing.assert_close(found.mean, model(x), rtol=1e-4, atol=1e-5)
    sampled = monte_carlo(model, x, samples=1500)
    # Query, key and value are of the same tokens, whose noise they share: 15 %.
    assert abs(found.std.mean() / sampled.std.mean() - 1) < 0.15


def test_an_uncertain_mask_and_extra_keys_are_refused():
    with pytest.raises(PropagationError, match="bias_k"):
        model = Attending(add_bias_kv=True).eval()
        propagate(model)(normal(5, 1, 16))


def test_strong_noise_warns(against_samples):
    q, k, v = (uncertain(1, 1, 6, 4, size=20.0, std=1.0) for _ in range(3))
    with pytest.warns(UserWarning, match="right to a factor of two"):
        against_samples(explicit, q, k, v, samples=2)


@pytest.mark.filterwarnings("ignore:attention whose scores vary")
@pytest.mark.parametrize("keys", [2, 6, 20, 196])
@pytest.mark.parametrize("spread", [0.0, 3.0])
@pytest.mark.parametrize("variance", [0.25, 1.0, 4.0, 25.0, 100.0])
def test_weighted_means_of_independent_scores(keys, spread, variance, against_samples):
    """From no noise to weights that jump: 0.75 to 1.34 of σ, as the rule says of itself."""
    random = torch.Generator().manual_seed(keys)
    mean = spread * torch.randn(8, keys, generator=random)
    scores = Moments(mean, variance * (0.5 + torch.rand(8, keys, generator=random)))
    values = torch.randn(keys, 16, generator=random)
    found, sampled = against_samples(lambda s: torch.softmax(s, -1) @ values, scores, samples=1000)
    ratio = float(found.std.mean() / sampled.std.mean())
    low, high = (0.85, 1.2) if variance <= 1 else (0.7, 1.4)  # 8 rows vary by some percent
    assert low < ratio < high

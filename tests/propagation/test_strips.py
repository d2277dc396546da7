"""Results in strips are those in one piece."""

import pytest
import torch
import torch.nn.functional as F

from penumbra.offline.models import pooling
from penumbra.propagation import Moments, gaussian, strips
from penumbra.propagation.rules import one_vs_rest, softmax
from penumbra.propagation.strips import in_strips


@pytest.fixture
def short_strips(monkeypatch):
    monkeypatch.setattr(strips, "_ELEMENTS", 64)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_every_strip_is_seen_once_and_in_order(short_strips):
    seen = []

    def double(a, b):
        seen.append(a.shape[1])
        return 2 * a, a + b

    a, b = drawn(3, 1001), drawn(3, 1001) + 1
    twice, both = in_strips(double, a, b, dim=1)
    assert len(seen) > 2
    assert sum(seen) == 1001
    torch.testing.assert_close((twice, both), (2 * a, a + b), rtol=0, atol=0)


def test_what_is_short_stays_in_one_piece():
    calls = []
    in_strips(lambda a: (calls.append(a) or a,), drawn(3, 100), dim=1)
    assert len(calls) == 1


@pytest.mark.parametrize("shape", [(700,), (37, 29), (2, 5, 33, 17)])
def test_rules_give_what_they_give_in_one_piece(monkeypatch, shape):
    mean, variance = drawn(*shape), drawn(*shape).square()
    scores = mean.reshape(-1, 1, mean.shape[-1]).expand(-1, 4, -1) * torch.arange(4.0)[:, None]
    x = Moments(scores, variance.reshape(-1, 1, mean.shape[-1]).expand(-1, 4, -1))

    def both() -> list[torch.Tensor]:
        probabilities = softmax.softmax_of_gaussian(x, 1)
        return [*gaussian.rectified(mean, variance), probabilities.mean, probabilities.variance]

    whole = both()
    monkeypatch.setattr(strips, "_ELEMENTS", 64)
    # A vectorised exponential may round its last, shorter group otherwise.
    torch.testing.assert_close(both(), whole, rtol=2e-6, atol=1e-7)


def test_gradients_pass(short_strips):
    mean = drawn(40, 30).requires_grad_()
    gaussian.rectified(mean, torch.full_like(mean, 0.3)).mean.sum().backward()
    # d/dμ E[max(0, X)] = P(X > 0)
    expected = 0.5 * torch.erfc(-mean.detach() / (2 * 0.3) ** 0.5)
    torch.testing.assert_close(mean.grad, expected, rtol=1e-5, atol=1e-6)


def test_pooling_chooses_alike(short_strips):
    x = drawn(1, 3, 46, 34).relu()  # with ties
    pooled, selection = pooling.select_max(x)
    torch.testing.assert_close(pooled, F.max_pool2d(x, 2), rtol=0, atol=0)
    taken = x.flatten(2).gather(2, selection.flatten(2)).view_as(pooled)
    assert float((taken - pooled).abs().max()) <= 2 * pooling.MARGIN * (1 + float(x.max()))


def test_the_first_of_the_most_probable():
    mean = torch.tensor([[[1.0, 3.0, 2.0], [1.0, 3.0, 5.0], [0.0, 3.0, 5.0]]])
    numbers = torch.arange(3.0)[:, None]
    found = one_vs_rest._first_largest(mean, numbers)
    assert found.sum(1).tolist() == [[1, 1, 1]]
    torch.testing.assert_close(found, mean.argmax(1, keepdim=True) == numbers)

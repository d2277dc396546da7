"""Detection figures against their definitions: pair by pair, and threshold by threshold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penumbra.errors import PenumbraError
from penumbra.offline.metrics.detection import Detection

# Few distinct values, so that ties within and between the two kinds are the rule.
PIXELS = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40).filter(
    lambda pixels: len({positive for _, positive in pixels}) == 2
)


def at_thresholds(scores, positive):
    """(true, false positives) counted anew for every threshold, from the highest on."""
    return [
        (np.sum(positive & (scores >= t)), np.sum(~positive & (scores >= t)))
        for t in sorted(set(scores), reverse=True)
    ]


@given(PIXELS)
def test_against_the_definitions(pixels):
    scores, positive = (np.array(part) for part in zip(*pixels, strict=True))
    found = Detection.of(scores, positive)
    wins = [(p > n) + (p == n) / 2 for p in scores[positive] for n in scores[~positive]]
    assert found.auroc == pytest.approx(np.mean(wins), abs=1e-12)
    total, others = positive.sum(), (~positive).sum()
    counted = at_thresholds(scores, positive)
    before, precision = 0, 0.0
    for true, false in counted:
        precision += (true - before) / total * true / (true + false)
        before = true
    assert found.average_precision == pytest.approx(precision, abs=1e-12)
    lowest = min(false for true, false in counted if true >= 0.95 * total) / others
    assert found.fpr95 == pytest.approx(lowest, abs=1e-12)


@given(PIXELS)
def test_only_the_order_counts(pixels):
    scores, positive = (np.array(part) for part in zip(*pixels, strict=True))
    a, b = Detection.of(scores, positive), Detection.of(np.exp(scores) - 7, positive)
    assert (a.auroc, a.average_precision, a.fpr95) == (b.auroc, b.average_precision, b.fpr95)
    assert Detection.of(-scores, positive).auroc == pytest.approx(1 - a.auroc, abs=1e-12)


def test_the_ends_of_the_scale():
    positive = np.array([[True, False], [False, True]])
    perfect = Detection.of(positive.astype(float), positive)
    assert (perfect.auroc, perfect.average_precision, perfect.fpr95) == (1, 1, 0)
    blind = Detection.of(np.zeros((2, 2)), positive)
    assert (blind.auroc, blind.average_precision, blind.fpr95) == (0.5, 0.5, 1)
    false, true = blind.roc(3)
    assert (false, true) == ([0, 0.5, 1], [0, 0.5, 1])  # a straight line through the ties


def test_large_maps_do_not_overflow():
    random = np.random.default_rng(0)
    positive = random.random(400_000) < 0.5
    assert Detection.of(positive * 1.0, positive).auroc == 1
    # The pairs are 4e10. The standard error of a blind score's AUROC is 9e-4 here.
    blind = Detection.of(random.random(positive.size), positive)
    assert blind.auroc == pytest.approx(0.5, abs=5e-3)


@pytest.mark.parametrize(
    "scores, positive, message",
    [
        ([1.0, 2.0], [True, True], "2 of 2 pixels are positive"),
        ([1.0, 2.0], [False, False], "0 of 2 pixels are positive"),
        ([1.0, float("nan")], [True, False], "NaN"),
        ([1.0], [True, False], "1 scores for 2 pixels"),
    ],
)
def test_invalid_scores_are_errors(scores, positive, message):
    with pytest.raises(PenumbraError, match=message):
        Detection.of(np.array(scores), np.array(positive))

"""Whether probabilities and standard deviations are calibrated, on data where that is known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from penumbra.bundle import DepthSpec
from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.verification.comparison import Comparison
from penumbra.verification.facts import OURS, SAMPLED
from penumbra.verification.frames import Answer
from penumbra.verification.reference import Reference

SHAPE = 60, 80
SPEC = DepthSpec(baseline_m=0.54, focal_per_width=0.58, max_depth_m=80.0)
PRODUCT = SPEC.baseline_m * SPEC.focal_per_width
CLASSES = 4


@pytest.fixture
def random():
    return np.random.default_rng(11)


def answered(prediction, std, truth, confidence=None, disparity=None):
    image = np.zeros((*SHAPE, 3), np.uint8)
    return Answer(0, image, prediction, std, confidence, disparity, truth, 1.0, 1.0)


def sampled(prediction, std, confidence=None):
    return Reference(prediction, std, confidence, (prediction,) * 2, (std,) * 2, 1.0)


def brute_force_error(frames, bins=15):
    """Expected calibration error pixel by pixel: Σ_b n_b/n |mean confidence - share right|."""
    pixels = [
        (float(p), t == g)
        for truth, guess, sure in frames
        for t, g, p in zip(truth.flat, guess.flat, sure.flat, strict=True)
        if t != IGNORE
    ]
    total = 0.0
    for place in range(bins):
        low, high = place / bins, (place + 1) / bins
        inside = [(p, r) for p, r in pixels if low <= p and (p < high or place == bins - 1)]
        if inside:
            confidence = sum(p for p, _ in inside) / len(inside)
            right = sum(r for _, r in inside) / len(inside)
            total += len(inside) / len(pixels) * abs(confidence - right)
    return total


def test_the_calibration_error_of_both_is_that_of_all_pixels_of_all_frames(random):
    comparison = Comparison(SimpleNamespace(task="segmentation", depth=None, classes=[0] * CLASSES))
    seen = {OURS: [], SAMPLED: []}
    for _ in range(2):
        truth = random.integers(0, CLASSES, SHAPE).astype(np.uint8)
        truth[random.random(SHAPE) < 0.1] = IGNORE
        said = {}
        for method, too_sure in ((OURS, 1.0), (SAMPLED, 0.6)):
            sure = random.uniform(0.25, 1, SHAPE).astype(np.float32)
            right = random.random(SHAPE) < sure * too_sure
            guess = np.where(right, truth, (truth + 1) % CLASSES).astype(np.uint8)
            said[method] = guess, sure
            seen[method].append((truth, guess, sure))
        std = random.random(SHAPE, np.float32)
        (ours, sure), (theirs, sure_too) = said[OURS], said[SAMPLED]
        comparison.add(answered(ours, std, truth, sure), sampled(theirs, std, sure_too))
    found = comparison.truth()
    for method in (OURS, SAMPLED):
        error = found[method]["expected_calibration_error"]
        # float32 confidences at a bin's border may fall to either side
        assert error == pytest.approx(brute_force_error(seen[method]), abs=1e-4)
    # Calibrated but for the noise of 8,600 draws in 12 bins; 0.4 x 0.625 too sure on average.
    assert found[OURS]["expected_calibration_error"] < 0.03
    assert found[SAMPLED]["expected_calibration_error"] == pytest.approx(0.25, abs=0.03)
    assert comparison.coverage() == {}


def test_coverage_of_both_is_that_of_the_errors_of_disparity(random):
    comparison = Comparison(SimpleNamespace(task="depth", depth=SPEC, classes=[]))
    for place in range(2):
        depth = random.uniform(5, 60, SHAPE).astype(np.float32)
        truth = np.where(random.random(SHAPE) < 0.3, np.float32(np.nan), depth)
        exact = np.float32(PRODUCT) / depth
        std = random.uniform(0.0001, 0.0005, SHAPE).astype(np.float32)
        # Ours: half of the errors at 0.5 σ, half at 1.2 σ. Monte Carlo: all at 1.8 σ.
        sigmas = np.where(np.arange(SHAPE[1]) % 2, 0.5, 1.2).astype(np.float32)
        ours, theirs = exact + sigmas * std, exact - np.float32(1.8) * std
        answer = answered(np.float32(PRODUCT) / ours, std, truth, disparity=ours)
        comparison.add(answer, sampled(theirs, std))
        if place == 0:  # a frame without truth changes nothing
            comparison.add(answered(answer.prediction, std, None, disparity=ours),
                           sampled(theirs, std))  # fmt: skip
    found = {
        method: [row["observed"] for row in rows] for method, rows in comparison.coverage().items()
    }
    # About half of the columns are odd; which of their pixels are judged was drawn.
    near = found[OURS][0]
    assert near == pytest.approx(0.5, abs=0.03)
    assert found[OURS] == [near, near, 1, 1]
    assert found[SAMPLED] == [0, 0, 0, 1]
    assert "expected_calibration_error" not in comparison.truth()[OURS]


def test_without_truth_there_is_nothing_to_say(random):
    comparison = Comparison(SimpleNamespace(task="depth", depth=SPEC, classes=[]))
    disparity = random.uniform(0.01, 0.05, SHAPE).astype(np.float32)
    answer = answered(np.float32(PRODUCT) / disparity, disparity / 9, None, disparity=disparity)
    comparison.add(answer, sampled(disparity, disparity / 9))
    assert comparison.coverage() == {} == comparison.truth()

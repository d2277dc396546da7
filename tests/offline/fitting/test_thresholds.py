"""Thresholds and rates of false alarms, against counting and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from penumbra.errors import PenumbraError
from penumbra.offline.fitting.thresholds import (
    alert_rate,
    alerts_in,
    autocorrelation,
    frame_threshold,
    upper_bound,
)
from penumbra.vehicle.monitor import MonitorSettings

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("n, rate", [(1000, 0.01), (300, 0.01), (101, 0.05), (20, 0.05)])
def test_at_most_the_rate_is_over(n, rate):
    scores = RANDOM.random(n)
    found = frame_threshold(scores, rate)
    assert found.over == int((scores > found.value).sum()) == math.floor(rate * n + 1e-9)
    # The smallest such score: with the next one down, one frame more would be over.
    below = scores[scores < found.value].max()
    assert (scores > below).sum() > rate * n


def test_a_rate_below_that_of_the_frames_is_refused():
    assert frame_threshold(RANDOM.random(1000), 0.001).over == 1
    with pytest.raises(PenumbraError, match="999 frames cannot support .* 0.100%: .* 0.10%"):
        frame_threshold(RANDOM.random(999), 0.001)


def test_too_few_or_broken_frames_are_refused():
    with pytest.raises(PenumbraError, match="19 frames are too few.*at least 20.*1,000 frames"):
        frame_threshold(RANDOM.random(19), 0.001)
    with pytest.raises(PenumbraError, match="not finite"):
        frame_threshold([*RANDOM.random(30), math.inf], 0.1)


def test_constant_scores():
    found = frame_threshold(np.full(50, 0.3), 0.02)
    assert found.value == 0.3
    alike = autocorrelation(np.full(50, 0.3))
    assert (alike.correlation, alike.effective_frames) == (1, 1)


def test_autocorrelation_of_a_known_process():
    """x' = 0.8 x + noise has correlation 0.8, and n frames count as n / 9."""
    noise = RANDOM.normal(size=20_000)
    scores = np.array(list(itertools.accumulate(noise, lambda x, e: 0.8 * x + 0.6 * e)))
    found = autocorrelation(scores)
    # The correlation of n frames is known to sqrt((1 - 0.64) / n) = 0.004; four of those.
    assert found.correlation == pytest.approx(0.8, abs=0.017)
    assert found.effective_frames == pytest.approx(20_000 / 9, rel=0.1)
    assert 0.4 < found.persistence < 0.7
    independent = autocorrelation(noise)
    assert abs(independent.correlation) < 4 / math.sqrt(20_000)
    assert independent.persistence == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("over, frames", [(0, 100), (1, 50), (7, 300), (0, 1)])
def test_upper_bound(over, frames):
    """At the bound, so few are seen in one of twenty trials."""
    bound = upper_bound(over, frames)
    chance = sum(
        math.comb(frames, k) * bound**k * (1 - bound) ** (frames - k) for k in range(over + 1)
    )
    assert chance == pytest.approx(0.05, rel=1e-6)
    assert upper_bound(frames, frames) == 1
    assert upper_bound(0, 1000) == pytest.approx(3 / 1000, rel=0.01)


def begins(over, needed, window):
    """Where N of the last M are over and N of the M before were not, by counting."""
    sums = np.convolve(over, np.ones(window, int))[: len(over)]
    return (sums >= needed) & (np.concatenate([[0], sums[:-1]]) < needed)


@pytest.mark.parametrize("raise_frames", [(3, 5), (1, 1), (2, 3), (4, 4)])
@pytest.mark.parametrize("persistence", [0.1, 0.6])
def test_alert_rate_against_simulation(raise_frames, persistence):
    rate, frames = 0.1, 400_000
    fall = rate * (1 - persistence) / (1 - rate)
    chances = RANDOM.random(frames)
    over, state = np.zeros(frames, int), 0
    for number, chance in enumerate(chances):
        state = int(chance < (persistence if state else fall))
        over[number] = state
    seen = begins(over, *raise_frames).mean()
    expected = alert_rate(rate, persistence, raise_frames)
    # A count of c events scatters by sqrt(c), alike ones by a little more: five of those.
    assert seen == pytest.approx(expected, rel=5 / math.sqrt(expected * frames))


def test_alert_rate_of_independent_frames():
    """r C(M-1, N-1) r^(N-1) (1-r)^(M-N+1): the new frame is over, the one that leaves was not."""
    for rate in (0.001, 0.2):
        expected = math.comb(4, 2) * rate**3 * (1 - rate) ** 3
        assert alert_rate(rate, rate, (3, 5)) == pytest.approx(expected, rel=1e-9)
        assert alert_rate(rate, 0.0, (3, 5)) == pytest.approx(expected, rel=1e-9)
    assert alert_rate(0.0, 0.5, (3, 5)) == 0
    with pytest.raises(PenumbraError, match="--raise-frames 3 50"):
        alert_rate(0.1, 0.1, (3, 50))


def test_alerts_are_counted_by_the_monitor():
    settings = MonitorSettings(0.5, 0.5, raise_frames=(2, 3), clear_frames=(2, 2))
    scores = [0.1, 0.9, 0.9, 0.9, 0.1, 0.1, 0.9, 0.1, 0.9, 0.1]
    assert alerts_in(scores, settings) == 2
    assert alerts_in([0.5] * 20, settings) == 0

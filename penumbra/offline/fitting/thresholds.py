"""Thresholds of alerts from the scores of ordinary frames, and the rate of false alarms.

Consecutive frames of a video are correlated, and n frames cannot show a rate below 1/n. Both are
taken into account.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penumbra.errors import PenumbraError
from penumbra.vehicle.monitor import Conditions, Monitor, MonitorSettings

LEAST_FRAMES = 20
LONGEST_RAISE_WINDOW = 16  # `alert_rate` enumerates 2^(M+1) cases
_UPPER_TENTH = 0.9


@dataclass(frozen=True)
class FrameThreshold:
    """A threshold of the frame score, and how many of its frames are above it."""

    value: float
    over: int


@dataclass(frozen=True)
class Autocorrelation:
    """Correlation of consecutive frames."""

    correlation: float  # ρ of a score with the next one
    effective_frames: float  # equivalent number of independent frames: n (1 - ρ) / (1 + ρ)
    persistence: float  # share of the highest tenth that is followed by another of it


def frame_threshold(scores: np.ndarray, rate: float) -> FrameThreshold:
    """The smallest score that at most a share `rate` of the frames exceeds.

    PenumbraError for a rate below 1/n: n frames cannot show it, and a margin would be a guess.
    """
    scores = np.sort(np.asarray(scores, np.float64))
    n = scores.size
    if n < LEAST_FRAMES:
        raise PenumbraError(
            f"{n} frames are too few to set thresholds: give at least {LEAST_FRAMES}, and for a "
            f"false alarm in {1 / rate:,.0f} frames at least as many"
        )
    if not np.isfinite(scores[-1]):
        raise PenumbraError(
            "the uncertainty of some frames is not finite: the bundle is broken, export it again"
        )
    allowed = math.floor(rate * n * (1 + 1e-9))  # 0.01 x 300 is slightly below 3 in floating point
    if allowed < 1:
        raise PenumbraError(
            f"{n} frames cannot support a false-alarm rate of {rate:.3%}: they support {1 / n:.2%}"
        )
    value = float(scores[n - 1 - allowed])
    return FrameThreshold(value, int((scores > value).sum()))


def autocorrelation(scores: np.ndarray) -> Autocorrelation:
    """The correlation of the scores of consecutive frames."""
    scores = np.asarray(scores, np.float64)
    n = scores.size
    centred = scores - scores.mean()
    is_constant = np.ptp(scores) == 0  # such as of a frozen camera
    correlation = 1.0 if is_constant else float(centred[1:] @ centred[:-1] / (centred @ centred))
    high = scores > np.quantile(scores, _UPPER_TENTH)
    followed = high[1:][high[:-1]]
    persistence = float(followed.mean()) if followed.size else 0.0
    held = min(max(correlation, 0.0), 1 - 1 / n)
    return Autocorrelation(correlation, max(1.0, n * (1 - held) / (1 + held)), persistence)


def upper_bound(over: int, frames: float, confidence: float = 0.95) -> float:
    """Upper bound of the rate (Clopper and Pearson 1934) if `over` of `frames` are over.

    With none over it is nearly 3 / frames for a confidence of 0.95.
    """
    n = max(1, math.floor(frames))
    if over >= n:
        return 1.0
    low, high = over / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        chance = sum(_binomial(n, k, middle) for k in range(over + 1))
        low, high = (middle, high) if chance > 1 - confidence else (low, middle)
    return high


def check_raise_frames(raise_frames: tuple[int, int]) -> None:
    """PenumbraError unless `alert_rate` can be computed for N of M frames."""
    needed, window = raise_frames
    if not 1 <= needed <= window <= LONGEST_RAISE_WINDOW:
        raise PenumbraError(
            f"--raise-frames {needed} {window}: give N and M with 1 <= N <= M <= "
            f"{LONGEST_RAISE_WINDOW}"
        )


def alert_rate(rate: float, persistence: float, raise_frames: tuple[int, int]) -> float:
    """Alerts per frame after hysteresis, if a share `rate` of the frames exceeds the threshold.

    Frames form a Markov chain in which a frame over the threshold follows another with probability
    `persistence` (equal to `rate` for independent frames). An alert begins where N of the last M
    frames are over and of the M frames before they were not:

        Σ P(b₀ … b_M)  over all b with  b₁ + … + b_M ≥ N  and  b₀ + … + b_{M-1} < N

    Alerts that merge are counted separately, so this is an upper estimate.
    """
    check_raise_frames(raise_frames)
    needed, window = raise_frames
    if not 0 < rate < 1:
        return rate  # never, or from the first frame on
    stay = min(max(persistence, rate), 1.0)
    rise = rate * (1 - stay) / (1 - rate)  # over after a frame that was not; keeps `rate`
    step = np.array([[1 - rise, rise], [1 - stay, stay]])
    bits = np.arange(2 ** (window + 1))[:, None] >> np.arange(window + 1) & 1
    chance = np.where(bits[:, 0] == 1, rate, 1 - rate)
    for place in range(window):
        chance = chance * step[bits[:, place], bits[:, place + 1]]
    begins = (bits[:, 1:].sum(1) >= needed) & (bits[:, :-1].sum(1) < needed)
    return float(chance[begins].sum())


def alerts_in(scores: Sequence[float] | np.ndarray, settings: MonitorSettings) -> int:
    """The number of alerts that the node's monitor raises on consecutive scores."""
    monitor = Monitor(settings)
    alerts, before = 0, monitor.level
    for score in scores:
        level = monitor.judge(np.full((1, 1), score), 0.0, Conditions.assumed()).level
        alerts += level == level.ALERT and before != level.ALERT
        before = level
    return alerts


def _binomial(n: int, k: int, p: float) -> float:
    if p in (0.0, 1.0):
        return float(k == n * p)
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log + k * math.log(p) + (n - k) * math.log1p(-p))

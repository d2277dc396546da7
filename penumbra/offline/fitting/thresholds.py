"""From the uncertainty of ordinary frames to thresholds, and to what these promise.

A promise is worth as much as the frames behind it: neighbours in a video resemble each other, and
what has never been seen in n frames may still happen once in n. Both are reckoned with here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penumbra.errors import PenumbraError
from penumbra.vehicle.monitor import Monitor, OodSettings

LEAST_FRAMES = 20
LONGEST_RAISE_WINDOW = 16  # `alert_rate` goes through 2^(M+1) cases
_UPPER_TENTH = 0.9


@dataclass(frozen=True)
class FrameThreshold:
    """A threshold for the frame score, and what the frames that it comes from can vouch for."""

    value: float
    asked_rate: float  # of false alarms per frame
    vouched_rate: float  # what that many frames can tell: never under 1 / (n + 1)
    over: int  # of these frames
    extrapolated: bool  # the rate asked for is under what n frames can tell


@dataclass(frozen=True)
class Autocorrelation:
    """How much frames that follow each other resemble each other."""

    correlation: float  # of a score with the next
    effective_frames: float  # independent frames that would tell as much: n (1 - ρ) / (1 + ρ)
    persistence: float  # share of the most uncertain tenth that is followed by another of it


def frame_threshold(scores: np.ndarray, rate: float) -> FrameThreshold:
    """The smallest score that at most a share `rate` of the frames is over.

    With n frames and rate under 1/n there is no such quantile. Then it is the largest score and a
    margin: what an exponential tail would add, β ln(1 / (n rate)), with β the mean excess of the
    most uncertain tenth of the frames. That is an assumption, and marked as one.
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
            "the uncertainty of some frames is not a number: the bundle is broken, export it again"
        )
    allowed = math.floor(rate * n * (1 + 1e-9))  # 0.01 x 300 is a hair under 3 in floating point
    if allowed >= 1:
        value = float(scores[n - 1 - allowed])
        return FrameThreshold(value, rate, rate, int((scores > value).sum()), False)
    begin = np.quantile(scores, _UPPER_TENTH)
    excess = float((scores[scores >= begin] - begin).mean())
    value = float(scores[-1]) + excess * math.log(1 / (n * rate))
    return FrameThreshold(value, rate, 1 / (n + 1), 0, True)


def likeness(scores: np.ndarray) -> Autocorrelation:
    """Of the scores of frames in their order."""
    scores = np.asarray(scores, np.float64)
    n = scores.size
    centred = scores - scores.mean()
    alike = np.ptp(scores) == 0  # one frame over and over, such as a camera that has frozen
    correlation = 1.0 if alike else float(centred[1:] @ centred[:-1] / (centred @ centred))
    high = scores > np.quantile(scores, _UPPER_TENTH)
    followed = high[1:][high[:-1]]
    persistence = float(followed.mean()) if followed.size else 0.0
    held = min(max(correlation, 0.0), 1 - 1 / n)
    return Autocorrelation(correlation, max(1.0, n * (1 - held) / (1 + held)), persistence)


def upper_bound(over: int, frames: float, confidence: float = 0.95) -> float:
    """The largest rate that still gives `over` or fewer of `frames` with 1 - `confidence`.

    Clopper and Pearson's bound; with none over it is nearly 3 / frames.
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
    """That `alert_rate` can be told for N of M frames."""
    needed, window = raise_frames
    if not 1 <= needed <= window <= LONGEST_RAISE_WINDOW:
        raise PenumbraError(
            f"--raise-frames {needed} {window}: give N and M with 1 <= N <= M <= "
            f"{LONGEST_RAISE_WINDOW}"
        )


def alert_rate(rate: float, persistence: float, raise_frames: tuple[int, int]) -> float:
    """Alerts per frame after hysteresis, if a share `rate` of the frames is over the threshold.

    Frames are taken as a chain in which one that is over follows another with probability
    `persistence` (equal to `rate`: frames know nothing of each other). An alert begins where N of
    the last M frames are over and of the M before they were not:

        Σ P(b₀ … b_M)  over all b with  b₁ + … + b_M ≥ N  and  b₀ + … + b_{M-1} < N

    Alerts that run into each other are counted apart, so this errs on the high side.
    """
    check_raise_frames(raise_frames)
    needed, window = raise_frames
    if not 0 < rate < 1:
        return rate  # never, or from the first frame on
    stay = min(max(persistence, rate), 1.0)
    fall = rate * (1 - stay) / (1 - rate)  # to be over after a frame that was not: keeps `rate`
    step = np.array([[1 - fall, fall], [1 - stay, stay]])
    bits = np.arange(2 ** (window + 1))[:, None] >> np.arange(window + 1) & 1
    chance = np.where(bits[:, 0] == 1, rate, 1 - rate)
    for place in range(window):
        chance = chance * step[bits[:, place], bits[:, place + 1]]
    begins = (bits[:, 1:].sum(1) >= needed) & (bits[:, :-1].sum(1) < needed)
    return float(chance[begins].sum())


def alerts_in(scores: Sequence[float], settings: OodSettings) -> int:
    """How many alerts the very monitor of the node raises on these scores, one after the other."""
    monitor = Monitor(settings)
    alerts, before = 0, monitor.level
    for score in scores:
        level = monitor.judge(np.full((1, 1), score), 0.0).level
        alerts += level == level.ALERT and before != level.ALERT
        before = level
    return alerts


def _binomial(n: int, k: int, p: float) -> float:
    if p in (0.0, 1.0):
        return float(k == n * p)
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log + k * math.log(p) + (n - k) * math.log1p(-p))

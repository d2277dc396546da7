"""From an uncertainty map to an alert: the frame's score, hysteresis over frames, regions.

    monitor = Monitor(OodSettings(frame_threshold=0.22, pixel_threshold=0.15))
    monitor.start(time.monotonic())
    judgement = monitor.judge(result.uncertainty, time.monotonic())   # for every frame
    late = monitor.check(time.monotonic())                            # by a timer: STALE, or None

All times are seconds of a steady clock that the caller reads: simulated time stops with its bag.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from threading import Lock

import cv2
import numpy as np

from penumbra.errors import PenumbraError

LONGEST_WINDOW = 1000  # frames of hysteresis
_SAMPLED = 16  # one pixel in so many tells roughly where the highest begin


class Level(IntEnum):
    """The levels of penumbra_msgs/OodAlert."""

    STARTING = 0
    OK = 1
    WARN = 2
    ALERT = 3
    STALE = 4


@dataclass(frozen=True)
class Region:
    """One connected area of uncertain pixels, and the smallest box around it, in pixels."""

    x: int
    y: int
    width: int
    height: int
    area: int
    mean_uncertainty: float
    max_uncertainty: float


@dataclass(frozen=True)
class OodSettings:
    """When a frame and a pixel count as uncertain, and how many such frames make an alert."""

    frame_threshold: float
    pixel_threshold: float
    score_fraction: float = 0.01  # the score is the mean of this share of pixels, the highest
    raise_frames: tuple[int, int] = (3, 5)  # over the threshold in N of the last M: ALERT
    clear_frames: tuple[int, int] = (8, 10)  # under it in N of the last M since: no longer
    min_region_area: int = 64  # pixels; smaller regions are left out
    max_regions: int = 16
    stale_after: float = 1.0  # seconds without a judged frame

    def __post_init__(self) -> None:
        for name in ("frame_threshold", "pixel_threshold"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise PenumbraError(f"{name} is {value:g}: it must be a finite number, 0 or more")
        if not 0 < self.score_fraction <= 1:
            raise PenumbraError(
                f"score_fraction is {self.score_fraction:g}: it must be over 0 and at most 1"
            )
        for name in ("raise_frames", "clear_frames"):
            window = getattr(self, name)
            if len(window) != 2 or not 1 <= window[0] <= window[1] <= LONGEST_WINDOW:
                raise PenumbraError(
                    f"{name} is {tuple(window)}: it must be N, M with 1 <= N <= M <= "
                    f"{LONGEST_WINDOW}, for N of the last M frames"
                )
        for name, least in (("min_region_area", 1), ("max_regions", 0)):
            if getattr(self, name) < least:
                raise PenumbraError(f"{name} is {getattr(self, name)}: it must be {least} or more")
        if not (math.isfinite(self.stale_after) and self.stale_after > 0):
            raise PenumbraError(
                f"stale_after is {self.stale_after:g}: it must be a number of seconds over 0"
            )


@dataclass(frozen=True)
class Judgement:
    """What is thought of a frame, or (STARTING, STALE) that there is none to think of."""

    level: Level
    score: float  # NaN when no frame was judged; infinite when a pixel's uncertainty is no number
    uncertain_fraction: float  # of pixels over pixel_threshold; NaN when no frame was judged
    regions: tuple[Region, ...]  # the largest first
    reason: str  # one line for a person
    frame_threshold: float
    pixel_threshold: float


def frame_score(uncertainty: np.ndarray, fraction: float) -> float:
    """The mean of the most uncertain `fraction` of pixels (at least one).

    A mean over the whole frame never sees a small object. A pixel whose uncertainty is not a
    number is taken as infinitely uncertain, so that it cannot hide.
    """
    return _score(_numbers(uncertainty), fraction)


def uncertain_regions(
    uncertainty: np.ndarray, threshold: float, min_area: int, max_regions: int
) -> tuple[tuple[Region, ...], float]:
    """Connected areas over `threshold`, largest first, and the share of pixels that are over it.

    Pixels that touch at a corner are connected. Areas under `min_area` pixels are left out.
    """
    return _regions(_numbers(uncertainty), threshold, min_area, max_regions)


class Monitor:
    """Judges frame after frame. May be called from several threads.

    OK and WARN follow the single frame; ALERT comes with enough of the last frames over the
    threshold and goes with enough under it. A gap in the frames (STALE) does not end an ALERT:
    what ends it is to be seen.
    """

    def __init__(self, settings: OodSettings) -> None:
        self._lock = Lock()
        self._settings = settings
        # Scores and not verdicts: a new threshold also holds for the frames just seen.
        self._scores: deque[float] = deque(maxlen=LONGEST_WINDOW)
        self._alert = False
        self._frames_in_alert = 0  # judged since it was raised
        self._level = Level.STARTING
        self._heard = math.nan  # when the last frame was judged, or the monitor started

    @property
    def settings(self) -> OodSettings:
        """May be replaced at any time; the frames seen so far are kept."""
        return self._settings

    @settings.setter
    def settings(self, settings: OodSettings) -> None:
        with self._lock:
            self._settings = settings

    @property
    def level(self) -> Level:
        return self._level

    def start(self, now: float, reason: str = "waiting for the first result") -> Judgement:
        """Forget everything; STALE is reckoned from now."""
        with self._lock:
            self._scores.clear()
            self._alert = False
            self._level = Level.STARTING
            self._heard = now
            return self._unseen(reason)

    def judge(self, uncertainty: np.ndarray, now: float) -> Judgement:
        """The level after this frame."""
        settings = self._settings
        values = _numbers(uncertainty)
        score = _score(values, settings.score_fraction)
        regions, fraction = _regions(
            values, settings.pixel_threshold, settings.min_region_area, settings.max_regions
        )
        with self._lock:
            self._heard = now
            self._scores.append(score)
            reason = self._step(score, settings)
            return Judgement(
                level=self._level,
                score=score,
                uncertain_fraction=fraction,
                regions=regions,
                reason=reason,
                frame_threshold=settings.frame_threshold,
                pixel_threshold=settings.pixel_threshold,
            )

    def check(self, now: float, missing: str = "result") -> Judgement | None:
        """STALE, once, when nothing has been judged for too long; otherwise None.

        `missing` is what to call it: "image" if none has come, "result" if none was made of it.
        """
        with self._lock:
            silence = now - self._heard
            limit = self._settings.stale_after
            if not silence > limit:
                return None
            return self._stale(f"no {missing} for {silence:.1f} s (limit {limit:g} s)")

    def fail(self, reason: str) -> Judgement | None:
        """STALE at once, because something is known to be broken; None if it is STALE already."""
        with self._lock:
            return self._stale(reason)

    def _stale(self, reason: str) -> Judgement | None:
        if self._level == Level.STALE:
            return None
        self._level = Level.STALE
        self._scores.clear()  # frames from before a gap are no neighbours of those after it
        self._frames_in_alert = 0
        return self._unseen(reason)

    def _unseen(self, reason: str) -> Judgement:
        settings = self._settings
        return Judgement(
            level=self._level,
            score=math.nan,
            uncertain_fraction=math.nan,
            regions=(),
            reason=reason,
            frame_threshold=settings.frame_threshold,
            pixel_threshold=settings.pixel_threshold,
        )

    def _step(self, score: float, settings: OodSettings) -> str:
        """Set the level after the newest of the scores, and say why."""
        threshold = settings.frame_threshold
        needed, window = settings.raise_frames
        over = self._count_over(window, threshold)
        seen = min(window, len(self._scores))
        tally = f"in {over} of {seen} frame{'s' if seen > 1 else ''}"
        self._frames_in_alert += 1
        if over >= needed:
            if not self._alert:
                self._alert, self._frames_in_alert = True, 0
        elif self._alert:
            clear, clear_window = settings.clear_frames
            since = min(clear_window, self._frames_in_alert, len(self._scores))
            under = since - self._count_over(since, threshold)
            if under >= clear:
                self._alert = False
            else:
                tally = f"in {under} of {clear} frames that end the alert"
        is_over = score > threshold
        said = f"score {score:.3g} {'over' if is_over else 'under'} {threshold:.3g}"
        if self._alert:
            self._level = Level.ALERT
        else:
            self._level = Level.WARN if is_over else Level.OK
        if math.isinf(score):
            said = f"uncertainty is not a number in some pixels; {said}"
        return f"{said} {tally}" if is_over or self._alert else said

    def _count_over(self, frames: int, threshold: float) -> int:
        return sum(score > threshold for score in islice(reversed(self._scores), frames))


def _numbers(uncertainty: np.ndarray) -> np.ndarray:
    """The map with infinity for what is not a number; as it is, and not copied, if all are."""
    values = np.asarray(uncertainty)
    if values.ndim != 2 or not values.size:
        size = " x ".join(map(str, values.shape)) or "one number"
        raise PenumbraError(f"an uncertainty map must be height x width, not {size}")
    if np.isfinite(values.max()):  # a single NaN makes the maximum NaN
        return values
    return np.where(np.isfinite(values), values, np.float32(np.inf))


def _score(numbers: np.ndarray, fraction: float) -> float:
    values = numbers.ravel()
    count = min(values.size, max(1, round(fraction * values.size)))
    # Most pixels are far from the highest. What a sixteenth of them puts well under leaves only a
    # few to sort; should it have left too few, all are. The result is the same, in a third of the
    # time (numpy 1.26).
    sample = values[::_SAMPLED]
    well_under = sample.size - 2 * (count // _SAMPLED + 4)
    if well_under > 0:
        candidates = values[values >= np.partition(sample, well_under)[well_under]]
        values = candidates if candidates.size >= count else values
    return float(np.partition(values, values.size - count)[-count:].mean(dtype=np.float64))


def _regions(
    values: np.ndarray, threshold: float, min_area: int, max_regions: int
) -> tuple[tuple[Region, ...], float]:
    height, width = values.shape
    # A zero before the first pixel and after every row: no run of pixels goes on into the next.
    flat = np.zeros(1 + height * (width + 1), np.uint8)
    over = flat[1:].reshape(height, width + 1)
    np.greater(values, threshold, out=over[:, :width].view(bool))
    count = cv2.countNonZero(flat)
    if not count or not max_regions:
        return (), count / values.size
    # OpenCV's own statistics visit every pixel and take six times as long as its labels (Grana's
    # block scan). The runs of pixels in the rows tell the same, and there are far fewer of them.
    _, labels = cv2.connectedComponentsWithAlgorithm(over, 8, cv2.CV_32S, cv2.CCL_GRANA)
    edges = np.flatnonzero(flat[1:] != flat[:-1])
    begins, ends = edges[::2], edges[1::2]
    owners = labels.ravel()[begins]
    areas = np.bincount(owners, weights=ends - begins)  # exact: whole numbers in float64
    large = np.flatnonzero(areas >= min_area)
    chosen = large[np.argsort(-areas[large], kind="stable")][:max_regions]
    found = []
    for label in chosen:
        runs = owners == label
        rows, columns = np.divmod(begins[runs], width + 1)
        x, y = int(columns.min()), int(rows[0])
        right, bottom = int((columns + (ends - begins)[runs]).max()), int(rows[-1]) + 1
        box = slice(y, bottom), slice(x, right)
        inside = (labels[box] == label).view(np.uint8)
        mean = cv2.mean(values[box], inside)[0]
        highest = cv2.minMaxLoc(values[box], inside)[1]
        found.append(Region(x, y, right - x, bottom - y, int(areas[label]), mean, highest))
    return tuple(found), count / values.size

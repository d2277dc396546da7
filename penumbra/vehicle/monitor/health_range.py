"""The normal range of a camera's health scores, learnt from its ordinary frames.

    drives = [[measure(image, "bgr8") for image in drive] for drive in ordinary]
    normal = fit_health(drives)
    HealthRange.from_dict(normal.to_dict()) == normal        # for the manifest or a site folder

Nothing is optimised: medians, quantiles, and for each score a margin which is what the drive that
needs most would have needed, had it been left out of the fit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penumbra.errors import PenumbraError
from penumbra.vehicle.monitor.health_scores import TILE_FEATURES, TILES, Measured

SCHEMA = 1
FALSE_ALARM_RATE = 0.01
MARGIN = 1.25  # on top of what the left-out drives needed: there are few of them
MEMORY = 8  # frames over which tiles and flicker are averaged
MOVED = 0.08  # median change of a thumbnail, log2, after which the scene counts as moved
_STILL = 0.05  # log2: smaller changes are noise
_DARK, _SATURATED = 4.0, 7.96  # log2: black and white do not move either
_PARTS = 4  # that a single drive is divided into, in place of drives
_FEWEST = 20  # ordinary frames
_SPREAD = 1.4826  # from a median absolute deviation to a standard deviation


@dataclass(frozen=True)
class HealthScore:
    """A score: what it means, and the side on which a fault moves it."""

    what: str  # continues "the image is" or "the image has"
    unit: str
    below: bool = False
    above: bool = False
    step: float = 0.0  # the smallest half-width of a normal range, in the score's unit


SCORES: dict[str, HealthScore] = {
    "black": HealthScore("black pixels", "share", above=True, step=0.05),
    "white": HealthScore("white pixels", "share", above=True, step=0.05),
    "exposure": HealthScore("median brightness", "log2 grey levels", True, True, 0.3),
    "highlight": HealthScore(
        "brightness of the lightest 5 %", "log2 grey levels", True, False, 0.1
    ),
    "contrast": HealthScore("contrast", "log2 grey levels", True, False, 0.2),
    "shadow": HealthScore("brightness of the darkest 5 %", "log2 grey levels", False, True, 0.3),
    "haze": HealthScore("brightness of distant shadows", "grey levels", False, True, 10),
    "red_blue": HealthScore("colour cast, red to blue", "log2", True, True, 0.05),
    "green": HealthScore("colour cast, green to magenta", "log2", True, True, 0.05),
    "sky_blue": HealthScore("ground redder than sky", "log2", True, True, 0.1),
    "sharpness": HealthScore("sharpness", "log2", True, False, 0.2),
    "streak": HealthScore("difference of sharpness between directions", "log2", False, True, 0.2),
    "noise": HealthScore("noise of flat areas", "log2 grey levels", False, True, 0.3),
    "flat": HealthScore("areas of one colour", "share", False, True, 0.01),
    "row_noise": HealthScore("offset between rows", "log2 grey levels", False, True, 0.3),
    "repeated_rows": HealthScore("rows that repeat", "share", False, True, 0.005),
    "torn_rows": HealthScore("a tear between rows", "log2", False, True, 0.2),
    "banding": HealthScore("bands over the height", "log2", False, True, 0.2),
    "column_lines": HealthScore("lines in columns", "log2 grey levels", False, True, 0.5),
    "row_blocks": HealthScore("steps between blocks of rows", "log2", False, True, 0.1),
    "column_blocks": HealthScore("steps between blocks of columns", "log2", False, True, 0.1),
    "cover": HealthScore("tiles unlike themselves", "deviations", False, True, 1.0),
    "still": HealthScore("parts that do not move with the scene", "share", False, True, 0.01),
    "fixed_edges": HealthScore("edges that do not move with the scene", "log2", False, True, 0.05),
    "flicker": HealthScore("brightness that alternates", "log2", False, True, 0.02),
}


class HealthHistory:
    """Scores that need the frames before: covered tiles and flicker."""

    def __init__(self, centre: np.ndarray, spread: np.ndarray) -> None:
        self._centre, self._spread = centre, spread
        self._tiles: np.ndarray | None = None
        self._count = 0
        self._last: np.ndarray | None = None
        self._moved: deque[np.ndarray] = deque(maxlen=MEMORY)
        self._still = {"still": 0.0, "fixed_edges": 0.0}
        self._changes: deque[float] = deque(maxlen=MEMORY + 1)

    def step(self, measured: Measured) -> dict[str, float]:
        """All scores of the latest frame."""
        relative = relative_tiles(measured.tiles)
        self._count = min(self._count + 1, MEMORY)
        if self._tiles is None:
            self._tiles = relative
        else:
            self._tiles = self._tiles + (relative - self._tiles) / self._count
        away = np.abs(self._tiles - self._centre) / self._spread
        each = np.sqrt(np.mean(np.square(away), axis=0))
        cover = float(np.sort(each, axis=None)[-2:].mean())
        if self._last is not None:
            self._changes.append(float(np.median(measured.thumbnail - self._last)))
        self._last = measured.thumbnail
        self._follow(measured.thumbnail)
        return (
            measured.scores | self._still | {"cover": cover, "flicker": _alternation(self._changes)}
        )

    def _follow(self, thumbnail: np.ndarray) -> None:
        """Remember a thumbnail whenever the scene has moved on, however fast frames come."""
        if self._moved and np.median(np.abs(thumbnail - self._moved[-1])) < MOVED:
            return
        self._moved.append(thumbnail)
        if len(self._moved) < MEMORY:
            return
        stack = np.array(self._moved)
        highest = stack.max(axis=0)
        unclipped = (highest < _SATURATED) & (highest > _DARK)
        still = (highest - stack.min(axis=0) < _STILL) & unclipped
        across = np.median(np.diff(stack, axis=2), axis=0)[1:]
        down = np.median(np.diff(stack, axis=1), axis=0)[:, 1:]
        edges = np.sort(np.hypot(across, down), axis=None)
        self._still = {
            "still": np.count_nonzero(still) / still.size,
            "fixed_edges": float(edges[-edges.size // 32 :].mean()),
        }


def relative_tiles(tiles: np.ndarray) -> np.ndarray:
    """Tile features relative to the frame's own median, which exposure and weather move."""
    return np.asarray(tiles - np.median(tiles, axis=(1, 2), keepdims=True), np.float32)


def _alternation(changes: Sequence[float]) -> float:
    """Mean brightness change that the next frame takes back: a tunnel does not, a lamp does."""
    if len(changes) < 2:
        return 0.0
    values = np.array(changes)
    back = np.where(values[1:] * values[:-1] < 0, np.minimum(*np.abs([values[1:], values[:-1]])), 0)
    return float(back.mean())


@dataclass(frozen=True)
class ScoreRange:
    """A score's normal value and limits; an infinite limit is none."""

    centre: float
    low: float
    high: float

    def excess(self, value: float) -> float:
        """Distance from the normal value, in units of the limit's: above 1 is out of range."""
        if not math.isfinite(value):
            return math.inf
        limit = self.high if value >= self.centre else self.low
        return 0.0 if math.isinf(limit) else (value - self.centre) / (limit - self.centre)


@dataclass(frozen=True)
class HealthRange:
    """The normal ranges of one camera."""

    scores: Mapping[str, ScoreRange]
    tile_centre: np.ndarray  # features x rows x columns
    tile_spread: np.ndarray
    false_alarm_rate: float
    frames: int
    drives: int

    def history(self) -> HealthHistory:
        """A new history for the frames of this camera."""
        return HealthHistory(self.tile_centre, self.tile_spread)

    def excesses(self, values: Mapping[str, float]) -> dict[str, float]:
        """How far each score is out; scores without a range are left out."""
        return {name: known.excess(values[name]) for name, known in self.scores.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for YAML."""
        return {
            "schema": SCHEMA,
            "false_alarm_rate": self.false_alarm_rate,
            "frames": self.frames,
            "drives": self.drives,
            "scores": {
                name: [
                    None if math.isinf(v) else float(f"{v:.5g}") for v in (r.centre, r.low, r.high)
                ]
                for name, r in self.scores.items()
            },
            "tiles": {
                feature: {
                    "centre": [[float(f"{v:.4g}") for v in row] for row in self.tile_centre[i]],
                    "spread": [[float(f"{v:.4g}") for v in row] for row in self.tile_spread[i]],
                }
                for i, feature in enumerate(TILE_FEATURES)
            },
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> HealthRange:
        """The reverse of `to_dict`; PenumbraError if it is anything else."""
        try:
            if found["schema"] != SCHEMA:
                raise ValueError(f"schema {found['schema']}, not {SCHEMA}")
            unknown = set(found["scores"]) - set(SCORES)
            if unknown:
                raise ValueError(f"unknown scores {', '.join(sorted(unknown))}")
            scores = {}
            for name, (centre, low, high) in found["scores"].items():
                low = -math.inf if low is None else float(low)
                high = math.inf if high is None else float(high)
                if not low < float(centre) < high:
                    raise ValueError(f"{name}: {low:g}, {centre:g}, {high:g} are not in order")
                scores[name] = ScoreRange(float(centre), low, high)
            parts = [
                np.array([found["tiles"][feature][part] for feature in TILE_FEATURES], np.float32)
                for part in ("centre", "spread")
            ]
            if any(part.shape != (len(TILE_FEATURES), *TILES) for part in parts):
                raise ValueError(f"tiles must be {TILES[0]} x {TILES[1]}")
            if not (np.isfinite(parts).all() and (parts[1] > 0).all()):
                raise ValueError("tiles must be finite, their spread positive")
            centre_tiles, spread_tiles = parts
            return cls(
                scores,
                centre_tiles,
                spread_tiles,
                float(found["false_alarm_rate"]),
                int(found["frames"]),
                int(found["drives"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise PenumbraError(
                f"the camera's health range is not valid ({what}): fit it again"
            ) from error


def fit_health(
    drives: Sequence[Sequence[Measured]], false_alarm_rate: float = FALSE_ALARM_RATE
) -> HealthRange:
    """Fit the normal ranges to ordinary frames, in their order, drive by drive.

    Each limit is `MARGIN` times as far from the centre as the left-out drive that needs most
    requires for `false_alarm_rate` of its frames, a share of which falls to every score. A single
    drive is divided into four parts in place of drives: then no other drive vouches for the range.
    """
    if not 0 < false_alarm_rate < 1:
        raise PenumbraError(f"false_alarm_rate is {false_alarm_rate:g}: it must be within 0 and 1")
    filled = [drive for drive in drives if len(drive)]
    count = sum(map(len, filled))
    if count < _FEWEST:
        raise PenumbraError(f"{count} ordinary frames: camera health needs {_FEWEST} or more")
    parts = filled
    if len(filled) == 1:
        whole = filled[0]
        parts = [whole[i * count // _PARTS : (i + 1) * count // _PARTS] for i in range(_PARTS)]
    needed = dict.fromkeys(SCORES, (0.0, 0.0))
    for left_out in range(len(parts)):
        others = [part for number, part in enumerate(parts) if number != left_out]
        tiles = _fit_tiles(others)
        known, new = _score_table(others, tiles), _score_table([parts[left_out]], tiles)
        for name in SCORES:
            centre = float(np.median(known[name]))
            low, high = _widths(new[name] - centre, false_alarm_rate / len(SCORES))
            needed[name] = max(needed[name][0], low), max(needed[name][1], high)
    tiles = _fit_tiles(parts)
    table = _score_table(parts, tiles)
    scores = {}
    for name, score in SCORES.items():
        centre = float(np.median(table[name]))
        own = _widths(table[name] - centre, false_alarm_rate / len(SCORES))
        low, high = (
            MARGIN * max(score.step, *pair) for pair in zip(needed[name], own, strict=True)
        )
        scores[name] = ScoreRange(
            centre,
            centre - low if score.below else -math.inf,
            centre + high if score.above else math.inf,
        )
    return HealthRange(scores, *tiles, false_alarm_rate, count, len(filled))


def _widths(away: np.ndarray, rate: float) -> tuple[float, float]:
    """How far a share of 1 - `rate` stays below and above the centre."""
    return -float(np.quantile(away, rate)), float(np.quantile(away, 1 - rate))


def _fit_tiles(drives: Sequence[Sequence[Measured]]) -> tuple[np.ndarray, np.ndarray]:
    """Median and spread of each tile; a spread is at least half of its feature's typical one."""
    tiles = np.array([relative_tiles(frame.tiles) for drive in drives for frame in drive])
    centre = np.median(tiles, axis=0)
    spread = _SPREAD * np.median(np.abs(tiles - centre), axis=0)
    typical = np.median(spread, axis=(1, 2), keepdims=True)
    return centre, np.maximum(spread, 0.5 * typical + 0.02)


def _score_table(
    drives: Sequence[Sequence[Measured]], tiles: tuple[np.ndarray, np.ndarray]
) -> dict[str, np.ndarray]:
    """Every score of every frame, with the history of its own drive."""
    rows = []
    for drive in drives:
        history = HealthHistory(*tiles)
        rows += [history.step(frame) for frame in drive]
    return {name: np.array([row[name] for row in rows]) for name in SCORES}

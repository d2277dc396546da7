"""Fit of all causes at once, from ordinary drives: uncertainty, scene, camera.

No drive is judged by what was fitted to it: every drive is left out once. The threshold of the
uncertainty is what the drive that needs most requires; the models of scene and camera do the same
by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penumbra.bundle import Bundle, Thresholds
from penumbra.errors import PenumbraError
from penumbra.offline.datasets.augmentation import jitter
from penumbra.offline.fitting.familiarity import fit_familiarity, in_blocks, taps_of
from penumbra.offline.fitting.thresholds import LEAST_FRAMES, autocorrelation, frame_threshold
from penumbra.vehicle.monitor import frame_score
from penumbra.vehicle.monitor.familiarity import Familiarity
from penumbra.vehicle.monitor.health_range import HealthRange, fit_health
from penumbra.vehicle.monitor.health_scores import Measured, measure
from penumbra.vehicle.pipeline import FrameResult, Pipeline

DEFAULT_RATE = 0.01
_PIXELS_PER_FRAME = 4096  # drawn at random: enough for a quantile over all frames
_LEAST_SCENE_FRAMES = 10  # of each drive, or block of the only drive
_BLOCKS = 5


@dataclass
class MeasuredDrive:
    """What was measured on the frames of one drive, in order."""

    name: str
    scores: list[float] = field(default_factory=list)  # of the judged map
    pixels: list[np.ndarray] = field(default_factory=list)  # of the judged map, at random
    uncertainty: list[np.ndarray] = field(default_factory=list)  # at the same places
    statistics: list[np.ndarray] = field(default_factory=list)
    varied: list[np.ndarray] = field(default_factory=list)  # of photometric variants
    health: list[Measured] = field(default_factory=list)


@dataclass(frozen=True)
class CauseFits:
    """The models of scene and camera; where there is none, why."""

    scene: Familiarity | None
    camera: HealthRange | None
    missing: Mapping[str, str]  # cause: why it was not fitted
    left_out: Mapping[str, Mapping[str, float]]  # cause, drive: share of its frames over


def measure_drive(
    pipeline: Pipeline,
    name: str,
    images: Iterator[np.ndarray],
    judged_map: str,
    score_fraction: float,
    seen: Callable[[], object] = lambda: None,
) -> MeasuredDrive:
    """Run a drive of BGR images through the pipeline; `seen` is called after every frame."""
    found, bundle = MeasuredDrive(name), pipeline.bundle
    random = np.random.default_rng(0)
    for number, image in enumerate(images):
        try:
            result = pipeline.process(_ordered(image, bundle))
        except PenumbraError as error:
            raise PenumbraError(f"frame {number} of {name}: {error}") from error
        judged = result.maps.get(judged_map, result.uncertainty)
        found.scores.append(frame_score(judged, score_fraction))
        places = random.integers(0, judged.size, _PIXELS_PER_FRAME)
        found.pixels.append(judged.ravel()[places])
        found.uncertainty.append(result.uncertainty.ravel()[places])
        if result.statistics is not None:
            found.statistics.append(result.statistics)
            found.varied.append(_statistics_of_variant(pipeline, result, random))
        try:
            found.health.append(measure(image, "bgr8"))
        except PenumbraError:  # too small to judge the camera by
            found.health.clear()
        seen()
    return found


def supported_rate(drives: Sequence[MeasuredDrive], asked: float | None) -> float:
    """The rate of false alarms to fit; PenumbraError if the frames cannot support the one asked.

    n frames of a drive cannot show a rate below 1/n, and every drive has to keep to it.
    """
    smallest = min(drives, key=lambda drive: len(drive.scores))
    n = len(smallest.scores)
    if n < LEAST_FRAMES:
        raise PenumbraError(
            f"{n} frames are too few to set thresholds: give at least {LEAST_FRAMES} of every "
            f"drive ({smallest.name})"
        )
    if asked is None:
        return max(DEFAULT_RATE, 1 / n)
    if asked * n * (1 + 1e-9) < 1:
        raise PenumbraError(
            f"{n} frames of {smallest.name} cannot support a false-alarm rate of {asked:.3%}: they "
            f"support {1 / n:.2%} or more; give {math.ceil(1 / asked):,} frames of every drive, or "
            f"--false-alarm-rate {math.ceil(1e4 / n) / 1e4:g}"
        )
    return asked


def uncertainty_threshold(
    drives: Sequence[MeasuredDrive], rate: float
) -> tuple[float, dict[str, float]]:
    """The threshold that every drive keeps to; and by drive, the share over that of the others."""
    needed = {d.name: frame_threshold(np.array(d.scores), rate).value for d in drives}
    left_out = {}
    for drive in drives:
        others = [value for name, value in needed.items() if name != drive.name]
        if others:
            left_out[drive.name] = float(np.mean(np.array(drive.scores) > max(others)))
    return max(needed.values()), left_out


def fit_causes(bundle: Bundle, drives: Sequence[MeasuredDrive], rate: float) -> CauseFits:
    """The models of scene and camera."""
    missing: dict[str, str] = {}
    left_out: dict[str, dict[str, float]] = {}
    scene = _attempt("scene", missing, lambda: _fit_scene(bundle, drives))
    if scene is not None and len(drives) > 2:
        left_out["scene"] = {
            drive.name: _scene_over(bundle, drives, drive, rate) for drive in drives
        }
    camera = _attempt("camera", missing, lambda: _fit_camera(drives, rate))
    if camera is not None and len(drives) > 1:
        left_out["camera"] = {drive.name: _camera_over(drives, drive, rate) for drive in drives}
    return CauseFits(scene, camera, missing, left_out)


def alerts_entry(
    thresholds: Thresholds,
    drives: int,
    fits: CauseFits,
    scene_output: str | None,
    scene_model: str,
    camera_model: str | None,
) -> dict[str, Any]:
    """The entry `alerts` of a manifest or a site, with the names of the models' files."""
    entry = thresholds.entry() | {"drives": drives}
    if fits.scene is not None:
        entry["causes"]["scene"] = {
            "output": scene_output,
            "direction": "above",
            "frame": -math.log10(thresholds.false_alarm_rate),
            "model": scene_model,
        }
    if fits.camera is not None:
        entry["causes"]["camera"] = {
            "output": None, "direction": "above", "frame": 1.0, "model": camera_model,
        }  # fmt: skip
    return entry


def independent_frames(drives: Sequence[MeasuredDrive]) -> tuple[float, float, float]:
    """Equivalent number of independent frames, mean correlation and largest persistence."""
    alike = [autocorrelation(np.array(drive.scores)) for drive in drives]
    effective = sum(each.effective_frames for each in alike)
    correlation = float(np.mean([each.correlation for each in alike]))
    return effective, correlation, max(each.persistence for each in alike)


def _ordered(image: np.ndarray, bundle: Bundle) -> np.ndarray:
    return image if bundle.input.channel_order == "bgr" else np.ascontiguousarray(image[..., ::-1])


def _statistics_of_variant(
    pipeline: Pipeline, result: FrameResult, random: np.random.Generator
) -> np.ndarray:
    """Those of another exposure and tint of the same frame, so that these are no alarm."""
    swapped = pipeline.bundle.input.channel_order == "bgr"
    rgb = np.ascontiguousarray(result.image[..., ::-1]) if swapped else result.image
    varied = jitter(rgb, random)
    statistics = pipeline.process(varied[..., ::-1].copy() if swapped else varied).statistics
    assert statistics is not None  # as those of the frame itself
    return statistics


def _attempt(cause: str, missing: dict[str, str], fit: Callable[[], Any]) -> Any:
    try:
        return fit()
    except PenumbraError as error:
        missing[cause] = str(error)
        return None


def _fit_scene(
    bundle: Bundle, drives: Sequence[MeasuredDrive], without: str | None = None
) -> Familiarity:
    taps = taps_of(bundle)
    if taps is None:
        raise PenumbraError(f"{bundle.name} emits no statistics: export it again")
    kept = [drive for drive in drives if drive.name != without]
    plain = {drive.name: np.array(drive.statistics) for drive in kept}
    varied = {drive.name: np.array(drive.varied) for drive in kept}
    if len(kept) == 1:  # blocks of it, which are more alike than drives
        [name] = plain
        if len(plain[name]) < _BLOCKS * _LEAST_SCENE_FRAMES:
            raise PenumbraError(
                f"one drive of {len(plain[name])} frames: give two drives, or "
                f"{_BLOCKS * _LEAST_SCENE_FRAMES} frames"
            )
        plain, varied = in_blocks(plain[name], _BLOCKS), in_blocks(varied[name], _BLOCKS)
    return fit_familiarity(plain, taps, varied)


def _scene_over(
    bundle: Bundle, drives: Sequence[MeasuredDrive], drive: MeasuredDrive, rate: float
) -> float:
    model = _fit_scene(bundle, drives, without=drive.name)
    return float(np.mean([model.score(row) > -math.log10(rate) for row in drive.statistics]))


def _fit_camera(drives: Sequence[MeasuredDrive], rate: float) -> HealthRange:
    if any(len(drive.health) < len(drive.scores) for drive in drives):
        raise PenumbraError("the images are too small to judge a camera by: give its own images")
    return fit_health([drive.health for drive in drives], rate)


def _camera_over(drives: Sequence[MeasuredDrive], drive: MeasuredDrive, rate: float) -> float:
    normal = _fit_camera([other for other in drives if other.name != drive.name], rate)
    history = normal.history()
    excesses = [normal.excesses(history.step(frame)) for frame in drive.health]
    return float(np.mean([max(each.values()) > 1 for each in excesses]))

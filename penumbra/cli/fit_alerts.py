"""Fit the thresholds of alerts: above which uncertainty a pixel or frame is out of distribution.

Give ordinary frames that the model was not trained on: a folder of images, one in CamVid's layout
(its val/ is used), or a video; best are consecutive frames, as on the vehicle. The thresholds are
written into the bundle's manifest; the model does not change.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from penumbra.errors import PenumbraError

if TYPE_CHECKING:
    import numpy as np

    from penumbra.bags.frames import Drive
    from penumbra.bundle import Bundle

EXAMPLE = "penumbra fit-alerts bundles/street --images streets --false-alarm-rate 0.01"
_PIXELS_PER_FRAME = 4096  # drawn at random: enough for a quantile over all frames


@dataclass(frozen=True)
class AlertFit:
    """The fitted thresholds, and what the measured frames say about them.

    Scores of consecutive frames are correlated, so that the frames count as `effective_frames`
    independent ones; `persistence` is the share of the highest tenth that is followed by another.
    """

    pixel: float
    frame: float
    false_alarm_rate: float  # supported by the number of frames
    frames: int
    map: str
    score_fraction: float
    source: str
    asked_rate: float
    extrapolated: bool  # the rate asked for is below what the frames support
    frames_over: int
    median_score: float
    largest_score: float
    correlation: float
    effective_frames: float
    persistence: float
    rate_at_most: float  # at 95 % confidence
    alerts_seen: int
    alerts_per_hour_independent: float
    alerts_per_hour: float
    alerts_per_hour_extrapolated: float
    uncertainty_top: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which bundle, which frames, how many false alarms."""
    parser.add_argument("bundle", type=Path, help="folder that `penumbra export` wrote")
    parser.add_argument(
        "--images", type=Path, required=True, help="folder of images, CamVid's layout, or a video"
    )
    parser.add_argument(
        "--false-alarm-rate",
        type=float,
        default=0.001,
        help="share of ordinary frames that may be over the threshold (default: 0.001)",
    )
    parser.add_argument(
        "--pixel-rate",
        type=float,
        default=0.01,
        help="share of ordinary pixels that may be over theirs (default: 0.01)",
    )
    parser.add_argument(
        "--map",
        choices=("uncertainty", "entropy"),
        default="uncertainty",
        help="the judged map: the standard deviation of the classes, or the entropy of their "
        "mean, which detected more of the objects without a class (default: uncertainty)",
    )
    parser.add_argument(
        "--score-fraction",
        type=float,
        default=0.01,
        help="share of pixels that make up the score of a frame (default: 0.01)",
    )
    parser.add_argument(
        "--rate-hz", type=float, default=10.0, help="frames per second on the vehicle (default: 10)"
    )
    parser.add_argument(
        "--raise-frames",
        type=int,
        nargs=2,
        default=(3, 5),
        metavar=("N", "M"),
        help="an alert takes N of M frames, as in the node (default: 3 5)",
    )
    parser.add_argument("--frames", type=int, help="at most this many (default: all)")
    parser.add_argument(
        "--size",
        metavar="WIDTHxHEIGHT",
        help="working size of a bundle that accepts any: images are scaled to it here and on the "
        "vehicle (default: the size of the first image)",
    )
    parser.add_argument("--runner", default="auto", help="runner (default: auto)")
    parser.add_argument(
        "--dry-run", action="store_true", help="measure without changing the bundle"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> int:
    """Score every frame, set the thresholds, and print the expected false alerts."""
    from penumbra.bundle import load_bundle
    from penumbra.offline.fitting.thresholds import check_raise_frames

    for name in ("false_alarm_rate", "pixel_rate", "score_fraction"):
        value = getattr(arguments, name)
        if not 0 < value < 1:
            option = name.replace("_", "-")
            raise PenumbraError(f"--{option} {value:g}: give a share between 0 and 1")
    if not 0 < arguments.rate_hz < float("inf"):
        raise PenumbraError(f"--rate-hz {arguments.rate_hz:g}: give a number over 0")
    check_raise_frames(arguments.raise_frames)
    bundle = load_bundle(arguments.bundle)
    drive, source = _drive(arguments.images, arguments.frames)
    if arguments.map not in {output.name for output in bundle.outputs}:
        raise PenumbraError(f"--map {arguments.map}: {bundle.name} has no such output")
    frames = iter(drive.frames)
    first = next(frames, None)
    if first is None:
        raise PenumbraError(f"{source} has no frames: give ordinary frames of the camera")
    size = _size(bundle, first.image, arguments.size)
    drive = replace(drive, frames=chain([first], frames))
    scores, pixels, uncertainty = _measure(bundle, drive, source, size, arguments)
    fit = _fit(scores, pixels, uncertainty, source, arguments)
    if not arguments.dry_run:
        _write(bundle, fit, size)
    print(json.dumps(asdict(fit)) if arguments.json else _text(bundle, fit, arguments))
    return 0


def _drive(images: Path, frames: int | None) -> tuple[Drive, str]:
    """The frames, and the name of their source."""
    from penumbra.bags.frames import FrameSelection
    from penumbra.bags.sources import images_drive, video_drive

    selection = FrameSelection(frames=frames)
    if not images.exists():
        raise PenumbraError(f"no {images}: give a folder of images or a video")
    if not images.is_dir():
        return video_drive(images, selection), images.name
    if (images / "val").is_dir():
        return images_drive(images / "val", selection), f"{images.name}/val"
    return images_drive(images, selection), images.name


def _size(bundle: Bundle, image: np.ndarray, requested: str | None) -> tuple[int, int]:
    """Height and width at which the thresholds are fitted, and hold on the vehicle.

    Requested, or the bundle's own, or that of the first image as far as a node without a working
    size would keep it.
    """
    from penumbra.options import width_and_height
    from penumbra.vehicle.image_fit import fit_to_size

    spec = bundle.input
    if requested:
        width, height = width_and_height(requested, "--size")
        return height, width
    fitted = fit_to_size(image, (spec.height, spec.width))
    return fitted.shape[0], fitted.shape[1]


def _measure(
    bundle: Bundle, drive: Drive, source: str, size: tuple[int, int], arguments: argparse.Namespace
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The score of every frame in order, random pixels of each, and their uncertainty."""
    import numpy as np
    from tqdm import tqdm

    from penumbra.vehicle.monitor import frame_score
    from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
    from penumbra.vehicle.runners import RunnerSettings

    main = "labels" if bundle.depth is None else "disparity"
    outputs = tuple(dict.fromkeys((main, "uncertainty", arguments.map)))
    any_size = bundle.input.height is None and bundle.input.width is None
    settings = RunnerSettings(image_size=size if any_size else None)
    config = PipelineConfig(arguments.runner, outputs, settings)
    random = np.random.default_rng(0)
    scores, pixels, spread = [], [], []
    with Pipeline(bundle, config) as pipeline:
        bar = tqdm(drive.frames, total=drive.total, unit="frame", leave=False)
        for number, frame in enumerate(bar):
            image = frame.image if bundle.input.channel_order == "bgr" else frame.image[..., ::-1]
            try:
                result = pipeline.process(image)
            except PenumbraError as error:
                raise PenumbraError(f"frame {number} of {source}: {error}") from error
            judged = result.maps.get(arguments.map, result.uncertainty)
            scores.append(frame_score(judged, arguments.score_fraction))
            places = random.integers(0, judged.size, _PIXELS_PER_FRAME)
            pixels.append(judged.ravel()[places])
            spread.append(result.uncertainty.ravel()[places])
    return np.array(scores), np.array(pixels), np.array(spread)


def _quantile(pixels: np.ndarray, arguments: argparse.Namespace) -> float:
    import numpy as np

    return float(np.quantile(pixels, 1 - arguments.pixel_rate))


def _fit(
    scores: np.ndarray,
    pixels: np.ndarray,
    uncertainty: np.ndarray,
    source: str,
    arguments: argparse.Namespace,
) -> AlertFit:
    import numpy as np

    from penumbra.offline.fitting.thresholds import (
        alert_rate,
        alerts_in,
        autocorrelation,
        frame_threshold,
        upper_bound,
    )
    from penumbra.vehicle.monitor import MonitorSettings

    frame = frame_threshold(scores, arguments.false_alarm_rate)
    pixel = _quantile(pixels, arguments)
    alike = autocorrelation(scores)
    needed, window = arguments.raise_frames
    raise_frames = (needed, window)
    settings = MonitorSettings(frame.value, pixel, score_fraction=1.0, raise_frames=raise_frames)

    def per_hour(rate: float, persistence: float) -> float:
        return 3600 * arguments.rate_hz * alert_rate(rate, persistence, raise_frames)

    # As many of the effective frames over the threshold as of all.
    share = alike.effective_frames / scores.size
    return AlertFit(
        pixel=pixel,
        frame=frame.value,
        false_alarm_rate=frame.supported_rate,
        frames=int(scores.size),
        map=arguments.map,
        score_fraction=arguments.score_fraction,
        source=source,
        asked_rate=frame.target_rate,
        extrapolated=frame.extrapolated,
        frames_over=frame.over,
        median_score=float(np.median(scores)),
        largest_score=float(scores.max()),
        correlation=alike.correlation,
        effective_frames=alike.effective_frames,
        persistence=alike.persistence,
        rate_at_most=upper_bound(round(frame.over * share), alike.effective_frames),
        alerts_seen=alerts_in(scores.tolist(), settings),
        alerts_per_hour_independent=per_hour(frame.supported_rate, frame.supported_rate),
        alerts_per_hour=per_hour(frame.supported_rate, alike.persistence),
        alerts_per_hour_extrapolated=per_hour(frame.target_rate, alike.persistence),
        uncertainty_top=2 * _quantile(uncertainty, arguments),
    )


def _write(bundle: Bundle, fit: AlertFit, size: tuple[int, int]) -> None:
    """Replace the thresholds of the bundle, atomically, and the size at which they hold."""
    from penumbra.bundle import Thresholds, rewrite_bundle

    thresholds = Thresholds(
        pixel=fit.pixel,
        frame=fit.frame,
        false_alarm_rate=fit.false_alarm_rate,
        frames=fit.frames,
        map=fit.map,
        score_fraction=fit.score_fraction,
        uncertainty_top=fit.uncertainty_top if fit.uncertainty_top > 0 else None,
    )
    entry = dict(bundle.manifest["input"])
    if bundle.input.height is None and bundle.input.width is None:
        entry["working_size"] = {"height": size[0], "width": size[1]}
    rewrite_bundle(bundle, alerts=thresholds.entry(), input=entry)


def _text(bundle: Bundle, fit: AlertFit, arguments: argparse.Namespace) -> str:
    unit = "" if bundle.depth is None else " m"
    needed, window = arguments.raise_frames
    lines = [
        f"{bundle.name}: {fit.frames} frames of {fit.source}; scores: median "
        f"{fit.median_score:.4g}{unit}, largest {fit.largest_score:.4g}{unit}",
        f"pixel threshold {fit.pixel:.4g}{unit}: {arguments.pixel_rate:.2%} of the pixels are "
        "above it",
        f"frame threshold {fit.frame:.4g}{unit}: {fit.frames_over} of the frames are above it; "
        f"requested: {fit.asked_rate:.3%}",
    ]
    if fit.extrapolated:
        lines.append(
            f"  {fit.frames} frames are too few to measure this rate: the threshold is the largest "
            "score plus a margin, which assumes an exponential tail; the manifest states "
            f"{fit.false_alarm_rate:.2%}, which the frames support. Give "
            f"{1 / fit.asked_rate:,.0f} frames or more for the requested rate"
        )
    lines += [
        f"  consecutive frames are correlated ({fit.correlation:.2f}): they count as "
        f"{fit.effective_frames:.0f} independent ones; at 95 % confidence the rate is below "
        f"{fit.rate_at_most:.2%}",
        f"false alerts per hour at {arguments.rate_hz:g} Hz, raised by {needed} of {window}:",
        f"  {fit.alerts_per_hour:.3g} if frames on the vehicle are correlated as here, where "
        f"{fit.persistence:.0%} of the most uncertain tenth are followed by another; a higher "
        "frame rate increases the correlation",
        f"  {fit.alerts_per_hour_independent:.3g} if frames were independent",
    ]
    if fit.extrapolated:
        lines.append(
            f"  {fit.alerts_per_hour_extrapolated:.3g} at the requested rate, if the tail is "
            "exponential"
        )
    lines.append(f"alerts that the node would have raised in these frames: {fit.alerts_seen}")
    if bundle.thresholds is not None and not arguments.dry_run:
        lines.append(
            f"before: pixel {bundle.thresholds.pixel:.4g}{unit}, "
            f"frame {bundle.thresholds.frame:.4g}{unit}"
        )
    done = "nothing was changed (--dry-run)" if arguments.dry_run else f"{bundle.path}: written"
    return "\n".join([*lines, done])

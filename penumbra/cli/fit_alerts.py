"""Fit the thresholds of alerts: when uncertainty, scene or camera are out of the ordinary.

Give ordinary drives that the model was not trained on: folders of images, videos or bags; best are
consecutive frames of your own camera, in several drives. Thresholds and models are written into the
bundle, or with --site into a folder of their own; the network does not change.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penumbra.errors import PenumbraError

if TYPE_CHECKING:
    import numpy as np

    from penumbra.bundle import Bundle
    from penumbra.offline.fitting.alerts import CauseFits, MeasuredDrive
    from penumbra.offline.fitting.ordinary_drives import OrdinaryDrive

EXAMPLE = "penumbra fit-alerts bundles/street --bag monday tuesday --site sites/depot"


@dataclass(frozen=True)
class AlertFit:
    """The fitted thresholds, and what the measured frames say about them.

    Scores of consecutive frames are correlated, so that the frames count as `effective_frames`
    independent ones; `persistence` is the share of the highest tenth that is followed by another.
    """

    pixel: float
    frame: float
    false_alarm_rate: float  # of each cause
    frames: int
    drives: int
    map: str
    score_fraction: float
    source: str
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
    uncertainty_top: float
    causes: Sequence[str]
    not_fitted: Mapping[str, str]  # cause: why
    left_out: Mapping[str, Mapping[str, float]]  # cause, drive: share over, had it been left out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which bundle, which frames, how many false alarms."""
    parser.add_argument("bundle", type=Path, help="folder that `penumbra export` wrote")
    parser.add_argument(
        "--images",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="DIR",
        help="folders of images, CamVid's layout, or videos; each is a drive, and file names as in "
        "CamVid name theirs",
    )
    parser.add_argument(
        "--bag",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="BAG",
        help="bags with the camera's images; each is a drive",
    )
    parser.add_argument("--topic", help="image topic of the bags, if there are several")
    parser.add_argument(
        "--site",
        type=Path,
        metavar="DIR",
        help="write into this site folder instead of the bundle, which stays as it is",
    )
    parser.add_argument(
        "--camera", default="", help="camera of the site folder (default: that of a node with one)"
    )
    parser.add_argument(
        "--false-alarm-rate",
        type=float,
        help="share of the ordinary frames of a drive that may be over a threshold, for each cause "
        "(default: 0.01, or the lowest that the frames support)",
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
    parser.add_argument("--frames", type=int, help="at most this many of a drive (default: all)")
    parser.add_argument(
        "--size",
        metavar="WIDTHxHEIGHT",
        help="working size of a bundle that accepts any: images are scaled to it here and on the "
        "vehicle (default: the size of the first image)",
    )
    parser.add_argument("--runner", default="auto", help="runner (default: auto)")
    parser.add_argument("--dry-run", action="store_true", help="measure without writing anything")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> int:
    """Score every frame, fit all causes, and print the expected false alerts."""
    from penumbra.bundle import load_bundle
    from penumbra.offline.fitting.alerts import fit_causes, supported_rate
    from penumbra.offline.fitting.ordinary_drives import ordinary_drives
    from penumbra.offline.fitting.thresholds import check_raise_frames

    for name in ("false_alarm_rate", "pixel_rate", "score_fraction"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < 1:
            option = name.replace("_", "-")
            raise PenumbraError(f"--{option} {value:g}: give a share between 0 and 1")
    if not 0 < arguments.rate_hz < float("inf"):
        raise PenumbraError(f"--rate-hz {arguments.rate_hz:g}: give a number over 0")
    check_raise_frames(arguments.raise_frames)
    if arguments.site is not None and arguments.size:
        raise PenumbraError("--size belongs to the bundle: leave it out with --site")
    if arguments.camera and arguments.site is None:
        raise PenumbraError("--camera belongs to --site: a bundle has no cameras")
    bundle = load_bundle(arguments.bundle)
    if arguments.map not in {output.name for output in bundle.outputs}:
        raise PenumbraError(f"--map {arguments.map}: {bundle.name} has no such output")
    given = [*arguments.images, *arguments.bag]
    if not given:
        raise PenumbraError("no frames: give --images DIR or --bag BAG with ordinary drives")
    sources = ordinary_drives(arguments.images, arguments.bag, arguments.topic, arguments.frames)
    size = _size(bundle, sources[0], arguments)
    drives = _measure(bundle, sources, size, arguments)
    rate = supported_rate(drives, arguments.false_alarm_rate)
    fits = fit_causes(bundle, drives, rate)
    fit = _fit(drives, fits, rate, ", ".join(_name(path) for path in given), arguments)
    if not arguments.dry_run:
        _write(bundle, fit, fits, size, arguments)
    print(json.dumps(asdict(fit)) if arguments.json else _text(bundle, fit, arguments))
    return 0


def _name(path: Path) -> str:
    return f"{path.name}/val" if (path / "val").is_dir() else path.name


def _size(
    bundle: Bundle, drive: OrdinaryDrive, arguments: argparse.Namespace
) -> tuple[int, int] | None:
    """Height and width at which the thresholds are fitted, and hold on the vehicle.

    Requested, or the bundle's own, or that of the first image as far as a node without a working
    size would keep it. None: as the bundle has it, which a site cannot change.
    """
    from penumbra.options import width_and_height
    from penumbra.vehicle.image_fit import fit_to_size

    spec = bundle.input
    if arguments.size:
        width, height = width_and_height(arguments.size, "--size")
        return height, width
    if arguments.site is not None:
        return spec.working_size
    first = next(drive.images(), None)
    if first is None:
        raise PenumbraError(f"{drive.name} has no frames: give ordinary frames of the camera")
    fitted = fit_to_size(first, (spec.height, spec.width))
    return fitted.shape[0], fitted.shape[1]


def _measure(
    bundle: Bundle,
    sources: Sequence[OrdinaryDrive],
    size: tuple[int, int] | None,
    arguments: argparse.Namespace,
) -> list[MeasuredDrive]:
    from tqdm import tqdm

    from penumbra.offline.fitting.alerts import measure_drive
    from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
    from penumbra.vehicle.runners import RunnerSettings

    main = "labels" if bundle.depth is None else "disparity"
    statistics = bundle.outputs_of_role("statistics")
    outputs = tuple(dict.fromkeys((main, "uncertainty", arguments.map, *statistics)))
    any_size = bundle.input.height is None and bundle.input.width is None
    settings = RunnerSettings(image_size=size if any_size else None)
    config = PipelineConfig(arguments.runner, outputs, settings=settings)
    fraction = arguments.score_fraction
    with Pipeline(bundle, config) as pipeline, tqdm(unit="frame", leave=False) as bar:
        return [
            measure_drive(pipeline, s.name, s.images(), arguments.map, fraction, bar.update)
            for s in sources
        ]


def _quantile(pixels: Sequence[np.ndarray], arguments: argparse.Namespace) -> float:
    import numpy as np

    return float(np.quantile(np.array(pixels), 1 - arguments.pixel_rate))


def _fit(
    drives: Sequence[MeasuredDrive],
    fits: CauseFits,
    rate: float,
    source: str,
    arguments: argparse.Namespace,
) -> AlertFit:
    import numpy as np

    from penumbra.offline.fitting.alerts import independent_frames, uncertainty_threshold
    from penumbra.offline.fitting.thresholds import alert_rate, alerts_in, upper_bound
    from penumbra.vehicle.monitor import MonitorSettings

    frame, left_out = uncertainty_threshold(drives, rate)
    pixel = _quantile([p for drive in drives for p in drive.pixels], arguments)
    scores = np.concatenate([drive.scores for drive in drives])
    effective, correlation, persistence = independent_frames(drives)
    needed, window = arguments.raise_frames
    raise_frames = (needed, window)
    settings = MonitorSettings(frame, pixel, score_fraction=1.0, raise_frames=raise_frames)

    def per_hour(persistence: float) -> float:
        return 3600 * arguments.rate_hz * alert_rate(rate, persistence, raise_frames)

    over = int((scores > frame).sum())
    # As many of the effective frames over the threshold as of all.
    share = effective / scores.size
    fitted = {"uncertainty": True, "scene": fits.scene, "camera": fits.camera}
    return AlertFit(
        pixel=pixel,
        frame=frame,
        false_alarm_rate=rate,
        frames=int(scores.size),
        drives=len(drives),
        map=arguments.map,
        score_fraction=arguments.score_fraction,
        source=source,
        frames_over=over,
        median_score=float(np.median(scores)),
        largest_score=float(scores.max()),
        correlation=correlation,
        effective_frames=effective,
        persistence=persistence,
        rate_at_most=upper_bound(round(over * share), effective),
        alerts_seen=sum(alerts_in(drive.scores, settings) for drive in drives),
        alerts_per_hour_independent=per_hour(rate),
        alerts_per_hour=per_hour(persistence),
        uncertainty_top=2 * _quantile([u for d in drives for u in d.uncertainty], arguments),
        causes=[cause for cause, model in fitted.items() if model is not None],
        not_fitted=fits.missing,
        left_out={**({"uncertainty": left_out} if left_out else {}), **fits.left_out},
    )


def _write(
    bundle: Bundle,
    fit: AlertFit,
    fits: CauseFits,
    size: tuple[int, int] | None,
    arguments: argparse.Namespace,
) -> None:
    """Replace thresholds and models, atomically, in the site folder or in the bundle."""
    from penumbra.bundle import Thresholds, rewrite_bundle
    from penumbra.offline.fitting.alerts import alerts_entry
    from penumbra.safe_yaml import dump_yaml
    from penumbra.site import write_site
    from penumbra.vehicle.monitor.familiarity import FAMILIARITY, familiarity_bytes
    from penumbra.vehicle.ordinary import HEALTH

    thresholds = Thresholds(
        pixel=fit.pixel,
        frame=fit.frame,
        false_alarm_rate=fit.false_alarm_rate,
        frames=fit.frames,
        map=fit.map,
        score_fraction=fit.score_fraction,
        uncertainty_top=fit.uncertainty_top if fit.uncertainty_top > 0 else None,
    )
    output = next(iter(bundle.outputs_of_role("statistics")), None)
    scene = None if fits.scene is None else familiarity_bytes(fits.scene)
    health = None if fits.camera is None else fits.camera.to_dict()
    if arguments.site is not None:
        stem = f"familiarity-{arguments.camera}.npz" if arguments.camera else FAMILIARITY
        entry = alerts_entry(thresholds, fit.drives, fits, output, stem, None)
        files = {} if scene is None else {stem: scene}
        write_site(arguments.site, bundle, arguments.camera, entry, health, files)
        return
    entry = alerts_entry(thresholds, fit.drives, fits, output, FAMILIARITY, HEALTH)
    spec = dict(bundle.manifest["input"])
    if bundle.input.height is None and bundle.input.width is None and size is not None:
        spec["working_size"] = {"height": size[0], "width": size[1]}
    ranges = None if health is None else dump_yaml(health).encode()
    rewrite_bundle(bundle, {FAMILIARITY: scene, HEALTH: ranges}, alerts=entry, input=spec)


def _text(bundle: Bundle, fit: AlertFit, arguments: argparse.Namespace) -> str:
    unit = "" if bundle.depth is None else " m"
    needed, window = arguments.raise_frames
    lines = [
        f"{bundle.name}: {fit.frames} frames of {fit.source}, {fit.drives} "
        f"drive{'s' if fit.drives > 1 else ''}; causes: {', '.join(fit.causes)}; scores: median "
        f"{fit.median_score:.4g}{unit}, largest {fit.largest_score:.4g}{unit}",
        *(f"{cause}: not fitted: {why}" for cause, why in fit.not_fitted.items()),
        f"pixel threshold {fit.pixel:.4g}{unit}: {arguments.pixel_rate:.2%} of the pixels are "
        "above it",
        f"frame threshold {fit.frame:.4g}{unit}: {fit.frames_over} of the frames are above it",
        f"  consecutive frames are correlated ({fit.correlation:.2f}): they count as "
        f"{fit.effective_frames:.0f} independent ones; at 95 % confidence the rate is below "
        f"{fit.rate_at_most:.2%}",
        f"false alerts per hour at {arguments.rate_hz:g} Hz by uncertainty, raised by {needed} of "
        f"{window}:",
        f"  {fit.alerts_per_hour:.3g} if frames on the vehicle are correlated as here, where "
        f"{fit.persistence:.0%} of the most uncertain tenth are followed by another; a higher "
        "frame rate increases the correlation",
        f"  {fit.alerts_per_hour_independent:.3g} if frames were independent",
        f"alerts that the node would have raised in these frames: {fit.alerts_seen}",
    ]
    for cause, shares in fit.left_out.items():
        each = ", ".join(f"{drive} {share:.1%}" for drive, share in shares.items())
        lines.append(f"over the threshold of {cause} in a drive that was left out: {each}")
    lines.append(_bound(fit))
    if bundle.thresholds is not None and arguments.site is None and not arguments.dry_run:
        lines.append(
            f"before: pixel {bundle.thresholds.pixel:.4g}{unit}, "
            f"frame {bundle.thresholds.frame:.4g}{unit}"
        )
    target = arguments.site or bundle.path
    done = "nothing was changed (--dry-run)" if arguments.dry_run else f"{target}: written"
    return "\n".join([*lines, done])


def _bound(fit: AlertFit) -> str:
    """The promise, and what it assumes, in one sentence.

    The threshold is the largest that one of n drives needs. Of n + 1 exchangeable drives each is as
    likely to need the largest, so a new one needs more with a probability of at most 1 / (n + 1).
    """
    others = [cause for cause in fit.causes if cause != "uncertainty"]
    estimate = f"; {' and '.join(others)} have no bound, only the shares above" if others else ""
    return (
        f"bound: if the next drive is drawn like {'these' if fit.drives > 1 else 'this one'} "
        f"(exchangeable), then with a probability of {fit.drives}/{fit.drives + 1} or more at most "
        f"{fit.false_alarm_rate:.2%} of its frames are over the threshold of "
        f"uncertainty{estimate}"
    )

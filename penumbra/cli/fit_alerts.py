"""Measure on ordinary frames from which uncertainty on a pixel or a frame is out of distribution.

Give frames that the model was not trained on and on which all is as it should be: a folder of
pictures, one in CamVid's layout (its val/ is taken), or a video; best of all, frames that follow
each other as they do on the vehicle. The thresholds are written into the bundle's manifest; the
model stays as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError

if TYPE_CHECKING:
    import numpy as np

    from penumbra.bags.frames import Drive
    from penumbra.bundle import Bundle

EXAMPLE = "penumbra fit-alerts bundles/street --images streets --false-alarm-rate 0.01"
_PIXELS_PER_FRAME = 4096  # drawn at random: more than enough for a quantile over all frames


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which bundle, which frames, how many false alarms."""
    parser.add_argument("bundle", type=Path, help="folder that `penumbra export` wrote")
    parser.add_argument(
        "--images", type=Path, required=True, help="folder of pictures, CamVid's layout, or a video"
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
        help="what alerts go by: the standard deviation of the classes, or the entropy of their "
        "mean, which saw more of the objects without a class (default: uncertainty)",
    )
    parser.add_argument(
        "--score-fraction",
        type=float,
        default=0.01,
        help="of pixels that make the frame's score (default: 0.01)",
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
    parser.add_argument("--frames", type=int, help="at most so many (default: all)")
    parser.add_argument("--runner", default="auto", help="what computes (default: auto)")
    parser.add_argument("--dry-run", action="store_true", help="measure, and change nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> int:
    """Judge every frame, set the thresholds, say what they are worth."""
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
    scores, pixels, uncertainty = _measure(bundle, drive, source, arguments)
    facts = _facts(scores, pixels, source, arguments)
    facts["uncertainty_top"] = 2 * _quantile(uncertainty, arguments)
    if not arguments.dry_run:
        _write(bundle, facts)
    if arguments.json:
        json.dump(facts, sys.stdout)
        print()
    else:
        print(_told(bundle, facts, arguments))
    return 0


def _drive(images: Path, frames: int | None) -> tuple[Drive, str]:
    """The frames, and what to call them."""
    from penumbra.bags.frames import FrameSelection
    from penumbra.bags.sources import images_drive, video_drive

    selection = FrameSelection(frames=frames)
    if not images.exists():
        raise PenumbraError(f"no {images}: give a folder of pictures or a video")
    if not images.is_dir():
        return video_drive(images, selection), images.name
    if (images / "val").is_dir():
        return images_drive(images / "val", selection), f"{images.name}/val"
    return images_drive(images, selection), images.name


def _measure(
    bundle: Bundle, drive: Drive, source: str, arguments: argparse.Namespace
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The score of every frame in order, some pixels of each, and the uncertainty of the same."""
    import numpy as np
    from tqdm import tqdm

    from penumbra.vehicle.monitor import frame_score
    from penumbra.vehicle.pipeline import Pipeline, PipelineConfig

    main = "labels" if bundle.depth is None else "disparity"
    outputs = tuple(dict.fromkeys((main, "uncertainty", arguments.map)))
    config = PipelineConfig(runner=arguments.runner, outputs=outputs)
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


def _facts(
    scores: np.ndarray, pixels: np.ndarray, source: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    import numpy as np

    from penumbra.offline.fitting.thresholds import (
        alert_rate,
        alerts_in,
        frame_threshold,
        likeness,
        upper_bound,
    )
    from penumbra.vehicle.monitor import MonitorSettings

    frame = frame_threshold(scores, arguments.false_alarm_rate)
    pixel = _quantile(pixels, arguments)
    alike = likeness(scores)
    raise_frames = tuple(arguments.raise_frames)
    settings = MonitorSettings(frame.value, pixel, score_fraction=1.0, raise_frames=raise_frames)
    hourly = 3600 * arguments.rate_hz
    # As many of the effective frames over the threshold as of all.
    share = alike.effective_frames / scores.size
    return {
        "pixel": pixel,
        "frame": frame.value,
        "false_alarm_rate": frame.vouched_rate,
        "frames": int(scores.size),
        "map": arguments.map,
        "score_fraction": arguments.score_fraction,
        "source": source,
        "asked_rate": frame.asked_rate,
        "extrapolated": frame.extrapolated,
        "frames_over": frame.over,
        "median_score": float(np.median(scores)),
        "largest_score": float(scores.max()),
        "correlation": alike.correlation,
        "effective_frames": alike.effective_frames,
        "persistence": alike.persistence,
        "rate_at_most": upper_bound(round(frame.over * share), alike.effective_frames),
        "alerts_seen": alerts_in(scores, settings),
        "alerts_per_hour_independent": hourly
        * alert_rate(frame.vouched_rate, frame.vouched_rate, raise_frames),
        "alerts_per_hour": hourly * alert_rate(frame.vouched_rate, alike.persistence, raise_frames),
        "alerts_per_hour_extrapolated": hourly
        * alert_rate(frame.asked_rate, alike.persistence, raise_frames),
    }


def _write(bundle: Bundle, facts: dict[str, Any]) -> None:
    """The same bundle, whole or not at all, with other thresholds."""
    from penumbra.bundle import write_bundle

    manifest = {k: v for k, v in bundle.manifest.items() if k not in ("schema", "files")}
    manifest["thresholds"] = {
        name: facts[name]
        for name in ("pixel", "frame", "false_alarm_rate", "frames", "map", "score_fraction")
    }
    if facts["uncertainty_top"] > 0:
        manifest["thresholds"]["uncertainty_top"] = facts["uncertainty_top"]
    write_bundle(bundle.path, manifest, {f: bundle.path / f for f in bundle.manifest["files"]})


def _told(bundle: Bundle, facts: dict[str, Any], arguments: argparse.Namespace) -> str:
    unit = "" if bundle.depth is None else " m"
    needed, window = arguments.raise_frames
    lines = [
        f"{bundle.name}: {facts['frames']} frames of {facts['source']}; scores: median "
        f"{facts['median_score']:.4g}{unit}, largest {facts['largest_score']:.4g}{unit}",
        f"pixel threshold {facts['pixel']:.4g}{unit}: {arguments.pixel_rate:.2%} of their pixels "
        "are over it",
        f"frame threshold {facts['frame']:.4g}{unit}: {facts['frames_over']} of the frames are "
        f"over it; asked for: {facts['asked_rate']:.3%}",
    ]
    if facts["extrapolated"]:
        lines.append(
            f"  that few cannot be seen in {facts['frames']} frames: the threshold is the largest "
            "score and a margin, as if the tail went on exponentially; the manifest says "
            f"{facts['false_alarm_rate']:.2%}, which is all that they vouch for. Give "
            f"{1 / facts['asked_rate']:,.0f} frames or more for the rate asked for"
        )
    lines += [
        f"  neighbouring frames are alike (correlation {facts['correlation']:.2f}): these tell as "
        f"much as {facts['effective_frames']:.0f} independent ones; at 95 % confidence the rate is "
        f"under {facts['rate_at_most']:.2%}",
        f"false alerts per hour at {arguments.rate_hz:g} Hz, raised by {needed} of {window}:",
        f"  {facts['alerts_per_hour']:.3g} if on the vehicle frames are as alike as here, where "
        f"{facts['persistence']:.0%} of the most uncertain tenth are followed by another of it; "
        "frames that follow each other faster are more alike",
        f"  {facts['alerts_per_hour_independent']:.3g} if frames were independent",
    ]
    if facts["extrapolated"]:
        lines.append(
            f"  {facts['alerts_per_hour_extrapolated']:.3g} at the rate asked for, if the margin "
            "holds what it assumes"
        )
    lines.append(f"alerts that the node would have raised in these frames: {facts['alerts_seen']}")
    if bundle.thresholds is not None and not arguments.dry_run:
        lines.append(
            f"before: pixel {bundle.thresholds.pixel:.4g}{unit}, "
            f"frame {bundle.thresholds.frame:.4g}{unit}"
        )
    done = "nothing was changed (--dry-run)" if arguments.dry_run else f"{bundle.path}: written"
    return "\n".join([*lines, done])

"""The demonstration: a drive through the real node over DDS, and the node's alerts.

The drive is a bag. The node runs in a separate process and a private ROS domain, and answers frame
by frame. The summary is read from the recording of its answers alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from penumbra.bags import (
    ANOMALY_TOPIC,
    Bag,
    FrameSelection,
    array_of,
    images_drive,
    open_bag,
    video_drive,
    write_drive,
)
from penumbra.bundle import load_bundle
from penumbra.errors import PenumbraError
from penumbra.offline.scenes.street_drive import street_drive
from penumbra.replay.process import NODE, Progress, send_through_node
from penumbra.share import bundle_folder
from penumbra.vehicle.colours import panel
from penumbra.vehicle.conversions import compressed_image_of, image_of
from penumbra.vehicle.monitor import Level

# The rendered drive: which object enters the road when, and its size in pixels when visible.
SEED, SECONDS, RATE_HZ = 12, 9.0, 5.0
ANOMALY, ANOMALY_AT, VISIBLE_PIXELS = "elephant", 5.0, 200

_IMAGES = ("prediction/color", "uncertainty/color", "overlay")
_TITLES = ("prediction", "uncertainty", "uncertain regions")


@dataclass
class FrameVerdict:
    """The node's answer to one frame; `time` is in seconds since the first."""

    time: float
    level: Level
    score: float
    reason: str
    latency_ms: float = float("nan")


@dataclass
class DemoSummary:
    """The answers of the node to a drive."""

    frames: list[FrameVerdict] = field(default_factory=list)
    threshold: float = float("nan")
    model: str = ""
    runner: str = ""
    visible_from: float | None = None  # when an object without a class becomes visible, seconds

    @property
    def alerts(self) -> list[FrameVerdict]:
        """The first frame of each alert."""
        before = [None, *(frame.level for frame in self.frames)]
        return [
            frame
            for frame, last in zip(self.frames, before, strict=False)
            if frame.level is Level.ALERT and last is not Level.ALERT
        ]

    @property
    def failure(self) -> str | None:
        """Why the alerts are wrong: too early or missing. None without an object."""
        if self.visible_from is None:
            return None
        early = [frame for frame in self.alerts if frame.time < self.visible_from]
        if early:
            lead = self.visible_from - early[0].time
            return f"an alert {lead:.1f} s before the object was visible"
        return None if self.alerts else "no alert for the object"


def demonstrate(
    source: Path | None,
    bundle: str,
    out: Path,
    runner: str = "auto",
    frames: int | None = None,
    progress: Progress = lambda work, total: work,
) -> DemoSummary:
    """Send a drive through the node; `out` gets the drive, the recording, the log and a panel.

    `source` is a bag, a folder of images or a video; None is the rendered drive.
    """
    model = load_bundle(bundle_folder(bundle))  # errors in it show before anything is rendered
    out.mkdir(parents=True, exist_ok=True)
    with open_bag(_drive(source, out, frames, progress)) as bag:
        recording = out / "answers"
        _remove_bag(recording)
        send_through_node(bag, model, recording, out / "node.log", runner=runner, progress=progress)
        # Without warnings about time: periodic messages have stamps of the clock, not of the drive.
        with open_bag(recording, warn=lambda line: None) as answers:
            summary = _read(answers, bag)
            image = _panel(answers, bag, summary)
    cv2.imwrite(str(out / "panel.png"), cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return summary


def _drive(source: Path | None, out: Path, frames: int | None, progress: Progress) -> Path:
    """The bag to replay, written to `out` if the source is not a bag."""
    if source is not None and not source.exists():
        raise PenumbraError(f"no {source}: give a bag, a folder of images or a video")
    if source is not None and (
        (source / "metadata.yaml").is_file() or source.suffix in (".mcap", ".db3", ".bag")
    ):
        return source
    selection = FrameSelection(frames=frames)
    if source is None:
        seconds = SECONDS if frames is None else frames / RATE_HZ
        drive = street_drive(SEED, seconds, RATE_HZ, anomaly=ANOMALY, anomaly_at=ANOMALY_AT)
    elif source.is_dir():
        drive = images_drive(source, selection)
    else:
        drive = video_drive(source, selection)
    bag = out / "drive"
    _remove_bag(bag)
    write_drive(replace(drive, frames=progress(drive.frames, drive.total)), bag)
    return bag


def _remove_bag(folder: Path) -> None:
    """Remove the bag of an earlier demonstration; refuse a folder with other files."""
    if folder.is_dir():
        for file in folder.iterdir():
            if file.name != "metadata.yaml" and file.suffix not in (".mcap", ".db3"):
                raise PenumbraError(f"{folder} exists and is not a bag: choose another --out")
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def _read(answers: Bag, drive: Bag) -> DemoSummary:
    """Alerts and latencies from the recording; when the object is visible, from the drive."""
    summary = DemoSummary()
    start: int | None = None
    by_stamp: dict[int, FrameVerdict] = {}
    latencies: dict[int, float] = {}
    for topic, _, message in answers:
        if topic not in (f"{NODE}/ood", f"{NODE}/stats"):
            continue
        stamp = _stamp(message)
        if topic.endswith("/stats"):
            latencies[stamp] = float(message.total_ms)
            summary.runner = message.runner or summary.runner
        elif np.isfinite(message.frame_score):  # NaN: a change of level without a frame
            start = stamp if start is None else start
            summary.threshold, summary.model = float(message.frame_threshold), message.model
            by_stamp[stamp] = FrameVerdict(
                (stamp - start) / 1e9, Level(message.level), float(message.frame_score),
                message.reason,
            )  # fmt: skip
    for stamp, frame in by_stamp.items():
        frame.latency_ms = latencies.get(stamp, float("nan"))
    summary.frames = [by_stamp[stamp] for stamp in sorted(by_stamp)]
    if start is not None and ANOMALY_TOPIC in drive.topics:
        for topic, _, message in drive:
            if topic == ANOMALY_TOPIC and np.count_nonzero(array_of(message)) > VISIBLE_PIXELS:
                summary.visible_from = (_stamp(message) - start) / 1e9
                break
    return summary


def _panel(answers: Bag, drive: Bag, summary: DemoSummary) -> np.ndarray:
    """The images of the frame with the highest score, above a chart of all scores."""
    if not summary.frames:
        raise PenumbraError("the node answered no frame: see node.log")
    worst = max(summary.frames, key=lambda frame: (frame.level is Level.ALERT, frame.score))
    source = drive.image_topic(None).name
    first = min(_stamp(m) for t, _, m in answers if t == f"{NODE}/ood" and m.header.frame_id)
    at = first + round(worst.time * 1e9)
    images = {}
    for bag, wanted in ((drive, (source,)), (answers, tuple(f"{NODE}/{n}" for n in _IMAGES))):
        for topic, _, message in bag:
            if topic in wanted and _stamp(message) == at:
                images[topic] = _rgb(message)
    shown = [(f"camera, {worst.time:.1f} s", images.pop(source))]
    for name, title in zip(_IMAGES, _TITLES, strict=True):
        if f"{NODE}/{name}" in images:
            shown.append((title, images[f"{NODE}/{name}"]))
    image = panel(shown)
    return np.vstack([image, _score_chart(summary, image.shape[1])])


def _score_chart(summary: DemoSummary, width: int, height: int = 150) -> np.ndarray:
    """Score over time with its threshold; red during alerts, grey while the object is visible."""
    chart = np.full((height, width, 3), 250, np.uint8)
    times = np.array([frame.time for frame in summary.frames])
    scores = np.array([frame.score for frame in summary.frames])
    known = np.append(scores, summary.threshold)
    low, high = np.nanmin(known), np.nanmax(known)
    span, rise = max(times[-1], 1e-9), max(high - low, 1e-9)

    def place(time: float, score: float) -> tuple[int, int]:
        share = (score - low) / rise
        return round(10 + time / span * (width - 20)), round(height - 15 - share * (height - 50))

    if summary.visible_from is not None:
        cv2.rectangle(
            chart, (place(summary.visible_from, low)[0], 25), (width, height), (226,) * 3, -1
        )
    if np.isfinite(summary.threshold):
        y = place(0, summary.threshold)[1]
        cv2.line(chart, (10, y), (width - 10, y), (120, 120, 120), 1, cv2.LINE_AA)
    points = [place(time, score) for time, score in zip(times, scores, strict=True)]
    for frame, a, b in zip(summary.frames[1:], points, points[1:], strict=False):
        colour = (200, 30, 30) if frame.level is Level.ALERT else (30, 70, 160)
        cv2.line(chart, a, b, colour, 2, cv2.LINE_AA)
    title = "frame score and threshold over time; red: alert"
    if summary.visible_from is not None:
        title += "; grey: an object without a class is visible"
    cv2.putText(chart, title, (6, 16), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (40,) * 3, 1, cv2.LINE_AA)
    return chart


def _rgb(message: Any) -> np.ndarray:
    return (image_of if hasattr(message, "encoding") else compressed_image_of)(message, "rgb")


def _stamp(message: Any) -> int:
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec

"""The demonstration: a drive through the real node over real DDS, and what the node said of it.

The drive is a bag; the node runs in a process of its own, in a ROS domain of its own, and answers
frame by frame. What is shown afterwards is read from the recording of its answers alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

# The rendered drive: what comes onto the road when, and at how many pixels it counts as visible.
SEED, SECONDS, RATE_HZ = 12, 9.0, 5.0
ANOMALY, ANOMALY_AT, VISIBLE_PIXELS = "elephant", 5.0, 200

_PICTURES = ("prediction/color", "uncertainty/color", "overlay")
_TITLES = ("prediction", "uncertainty", "where not to trust it")


@dataclass
class FrameVerdict:
    """What the node said of one frame; `time` is in seconds from the first."""

    time: float
    level: Level
    score: float
    reason: str
    latency_ms: float = float("nan")


@dataclass
class DemoSummary:
    """What the demonstration found."""

    frames: list[FrameVerdict] = field(default_factory=list)
    threshold: float = float("nan")
    model: str = ""
    runner: str = ""
    visible_from: float | None = None  # when something that has no class comes into view

    @property
    def alerts(self) -> list[FrameVerdict]:
        """The frames with which an alert began."""
        before = [None, *(said.level for said in self.frames)]
        return [
            said
            for said, last in zip(self.frames, before, strict=False)
            if said.level is Level.ALERT and last is not Level.ALERT
        ]

    @property
    def disappointment(self) -> str | None:
        """Why a drive in which something strange appears did not end as it should."""
        if self.visible_from is None:
            return None
        early = [said for said in self.alerts if said.time < self.visible_from]
        if early:
            return f"an alert {self.visible_from - early[0].time:.1f} s before the object was there"
        return None if self.alerts else "the object was never reported"


def demonstrate(
    source: Path | None,
    bundle: str,
    out: Path,
    runner: str = "auto",
    frames: int | None = None,
    progress: Progress = lambda work, total: work,
) -> DemoSummary:
    """Send a drive through the node; `out` gets the drive, the recording, the log and a panel.

    `source` is a bag, a folder of pictures or a video; None is the rendered drive.
    """
    model = load_bundle(bundle_folder(bundle))  # before anything is drawn or started
    out.mkdir(parents=True, exist_ok=True)
    with open_bag(_drive(source, out, frames, progress)) as bag:
        recording = out / "answers"
        _remove_bag(recording)
        send_through_node(bag, model, recording, out / "node.log", runner=runner, progress=progress)
        # Not a word about time: what is said once a second has the clock's, not the drive's.
        with open_bag(recording, warn=lambda line: None) as said:
            finding = _read(said, bag)
            picture = _panel(said, bag, finding)
    cv2.imwrite(str(out / "panel.png"), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    return finding


def _drive(source: Path | None, out: Path, frames: int | None, progress: Progress) -> Path:
    """The bag to replay, written to `out` where the source is none."""
    if source is not None and not source.exists():
        raise PenumbraError(f"no {source}: give a bag, a folder of pictures or a video")
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
    shown = type(drive)(progress(drive.frames, drive.total), drive.total, drive.notes)
    write_drive(shown, bag)
    return bag


def _remove_bag(folder: Path) -> None:
    """Of an earlier demonstration; nothing but what a bag consists of."""
    if folder.is_dir():
        for file in folder.iterdir():
            if file.name != "metadata.yaml" and file.suffix not in (".mcap", ".db3"):
                raise PenumbraError(f"{folder} is there and is no bag: choose another --out")
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def _read(said: Bag, drive: Bag) -> DemoSummary:
    """Alerts and latencies from the recording; when the object is in view, from the drive."""
    finding = DemoSummary()
    start: int | None = None
    by_stamp: dict[int, FrameVerdict] = {}
    latencies: dict[int, float] = {}
    for topic, _, message in said:
        if topic not in (f"{NODE}/ood", f"{NODE}/stats"):
            continue
        stamp = _stamp(message)
        if topic.endswith("/stats"):
            latencies[stamp] = float(message.total_ms)
            finding.runner = message.runner or finding.runner
        elif np.isfinite(message.frame_score):  # of a frame, not of a change without one
            start = stamp if start is None else start
            finding.threshold, finding.model = float(message.frame_threshold), message.model
            by_stamp[stamp] = FrameVerdict(
                (stamp - start) / 1e9, Level(message.level), float(message.frame_score),
                message.reason,
            )  # fmt: skip
    for stamp, frame in by_stamp.items():
        frame.latency_ms = latencies.get(stamp, float("nan"))
    finding.frames = [by_stamp[stamp] for stamp in sorted(by_stamp)]
    if start is not None and ANOMALY_TOPIC in drive.topics:
        for topic, _, message in drive:
            if topic == ANOMALY_TOPIC and np.count_nonzero(array_of(message)) > VISIBLE_PIXELS:
                finding.visible_from = (_stamp(message) - start) / 1e9
                break
    return finding


def _panel(said: Bag, drive: Bag, finding: DemoSummary) -> np.ndarray:
    """The worst frame of the drive as the node saw it, over the course of the scores."""
    if not finding.frames:
        raise PenumbraError("the node judged no frame: see node.log")
    worst = max(finding.frames, key=lambda frame: (frame.level is Level.ALERT, frame.score))
    source = drive.image_topic(None).name
    first = min(_stamp(m) for t, _, m in said if t == f"{NODE}/ood" and m.header.frame_id)
    at = first + round(worst.time * 1e9)
    pictures = {}
    for bag, wanted in ((drive, (source,)), (said, tuple(f"{NODE}/{n}" for n in _PICTURES))):
        for topic, _, message in bag:
            if topic in wanted and _stamp(message) == at:
                pictures[topic] = _rgb(message)
    shown = [(f"camera, {worst.time:.1f} s", pictures.pop(source))]
    for name, title in zip(_PICTURES, _TITLES, strict=True):
        if f"{NODE}/{name}" in pictures:
            shown.append((title, pictures[f"{NODE}/{name}"]))
    picture = panel(shown)
    return np.vstack([picture, _course(finding, picture.shape[1])])


def _course(finding: DemoSummary, width: int, height: int = 150) -> np.ndarray:
    """Score over time with its threshold; red where there is an alert, grey while it is there."""
    chart = np.full((height, width, 3), 250, np.uint8)
    times = np.array([frame.time for frame in finding.frames])
    scores = np.array([frame.score for frame in finding.frames])
    known = np.append(scores, finding.threshold)
    low, high = np.nanmin(known), np.nanmax(known)
    span, rise = max(times[-1], 1e-9), max(high - low, 1e-9)

    def place(time: float, score: float) -> tuple[int, int]:
        share = (score - low) / rise
        return round(10 + time / span * (width - 20)), round(height - 15 - share * (height - 50))

    if finding.visible_from is not None:
        cv2.rectangle(
            chart, (place(finding.visible_from, low)[0], 25), (width, height), (226,) * 3, -1
        )
    if np.isfinite(finding.threshold):
        y = place(0, finding.threshold)[1]
        cv2.line(chart, (10, y), (width - 10, y), (120, 120, 120), 1, cv2.LINE_AA)
    points = [place(time, score) for time, score in zip(times, scores, strict=True)]
    for frame, a, b in zip(finding.frames[1:], points, points[1:], strict=False):
        colour = (200, 30, 30) if frame.level is Level.ALERT else (30, 70, 160)
        cv2.line(chart, a, b, colour, 2, cv2.LINE_AA)
    title = "frame score and threshold over time; red: alert"
    if finding.visible_from is not None:
        title += "; grey: something without a class is in view"
    cv2.putText(chart, title, (6, 16), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (40,) * 3, 1, cv2.LINE_AA)
    return chart


def _rgb(message: Any) -> np.ndarray:
    return (image_of if hasattr(message, "encoding") else compressed_image_of)(message, "rgb")


def _stamp(message: Any) -> int:
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec

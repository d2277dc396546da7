"""Publish a bag over ROS 2, in real time or frame by frame, and record the answers.

Plays any rosbag2 or ROS 1 bag as `ros2 bag play` does, also where rosbag2 is not installed. With
--lockstep the next frame is sent when the node has answered the last one, so none is dropped: a
frame without an answer is sent once more, and then it is an error. --record writes the messages of
the node into a rosbag2. Ctrl-C ends the replay and leaves a complete recording.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from penumbra.errors import PenumbraError

if TYPE_CHECKING:
    from penumbra.replay.bag_replay import ReplaySummary

EXAMPLE = "penumbra replay drive --rate 0.5 --clock --record answers"
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to publish, whether to wait for answers, and what to record."""
    parser.add_argument("bag", type=Path, metavar="BAG", help="folder, or file .mcap .db3 .bag")
    parser.add_argument("--rate", type=float, default=1.0, help="2 is twice as fast (default 1)")
    parser.add_argument("--loop", action="store_true", help="restart at the end")
    parser.add_argument("--topics", nargs="+", metavar="TOPIC", help="only these (default: all)")
    parser.add_argument("--remap", nargs="+", metavar="FROM:=TO", default=[], help="publish a topic"
                        " of the bag under another name")  # fmt: skip
    parser.add_argument("--clock", action="store_true", help="publish the bag's time on /clock")
    parser.add_argument("--best-effort", action="store_true", help="as many cameras do; may lose "
                        "large images (default: reliable)")  # fmt: skip
    parser.add_argument("--wait", type=float, default=0.0, metavar="S", help="before the start, "
                        "wait up to S seconds for a subscriber")  # fmt: skip
    steps = parser.add_argument_group("frame by frame")
    steps.add_argument("--lockstep", action="store_true", help="wait for the answer to each frame")
    steps.add_argument("--answer", nargs="+", metavar="TOPIC", default=["/penumbra/prediction"],
                       help="topics of the answers (default /penumbra/prediction)")  # fmt: skip
    steps.add_argument(
        "--frames", metavar="TOPIC", help="topic of the frames (default: the only images)"
    )
    steps.add_argument("--patience", type=float, default=30.0, metavar="S", help="seconds for an "
                       "answer (default 30)")  # fmt: skip
    record = parser.add_argument_group("recording")
    record.add_argument("--record", type=Path, metavar="OUT", help="write a rosbag2 of the answers")
    record.add_argument("--record-under", nargs="*", metavar="NAMESPACE", default=["/penumbra"],
                        help="all topics under these (default /penumbra)")  # fmt: skip
    record.add_argument("--record-topics", nargs="+", metavar="TOPIC", default=[], help="and these")
    record.add_argument("--storage", choices=("mcap", "sqlite3"), default="mcap")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0, or 130 if a replay in lockstep was interrupted."""
    from tqdm import tqdm

    from penumbra.bags import open_bag
    from penumbra.bags.writer import refuse_existing

    remap = dict(map(_renamed, arguments.remap))
    if arguments.lockstep and arguments.loop:
        raise PenumbraError("--lockstep goes through the bag once: leave out --loop")
    if arguments.record is not None:
        refuse_existing(arguments.record)
    with open_bag(arguments.bag) as bag:
        try:
            from penumbra.replay.bag_replay import (
                LockstepSettings,
                PlaybackSettings,
                RecordingSettings,
                replay,
            )
        except ModuleNotFoundError as error:
            if error.name and error.name.startswith("penumbra"):
                raise
            raise PenumbraError(
                f"ROS 2 is not available ({error}): source it, or run scripts/setup"
            ) from None
        playing = PlaybackSettings(
            arguments.rate,
            arguments.loop,
            arguments.topics and tuple(arguments.topics),
            remap,
            arguments.clock,
            arguments.best_effort,
        )
        steps = LockstepSettings(tuple(arguments.answer), arguments.frames, arguments.patience)
        recording = arguments.record and RecordingSettings(
            arguments.record,
            tuple(arguments.record_under),
            tuple(arguments.record_topics),
            arguments.storage,
        )
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        summary = replay(
            bag,
            playing,
            steps if arguments.lockstep else None,
            recording,
            wait=arguments.wait,
            stop=stop,
            progress=lambda work, total: tqdm(work, total=total, unit="message", disable=None),
        )
    if arguments.json:
        print(json.dumps(asdict(summary)))
    else:
        print(_text(summary, arguments))
    return INTERRUPTED if arguments.lockstep and not summary.finished else 0


def _renamed(text: str) -> tuple[str, str]:
    before, found, after = text.partition(":=")
    if not (found and before.startswith("/") and after.startswith("/")):
        raise PenumbraError(f"--remap {text}: write it as /from:=/to")
    return before, after


def _text(summary: ReplaySummary, arguments: argparse.Namespace) -> str:
    text = f"{summary.messages} messages published in {summary.seconds:.1f} s"
    if arguments.lockstep:
        text += f", {summary.answered} frames answered, {summary.resent} of them sent twice"
    if arguments.record is not None:
        text += f"; {summary.recorded} messages recorded in {arguments.record}"
    return text if summary.finished else f"{text}; stopped before the end"

"""Replay a bag over ROS 2 as `ros2 bag play` does, also where rosbag2 is not installed.

replay(bag, PlaybackSettings(rate=2.0))                             # in real time, steady clock
replay(bag, lockstep=LockstepSettings(("/penumbra/prediction",)))   # frame after answer
replay(bag, recording=RecordingSettings(Path("answers")))           # record what the node publishes
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penumbra.bags.reader import Bag, RawMessage
from penumbra.replay.lockstep import LockstepPlayer, LockstepSettings, OnAnswer
from penumbra.replay.player import PlaybackSettings, Player
from penumbra.replay.progress import Progress, no_progress
from penumbra.replay.recorder import Recorder, RecordingSettings
from penumbra.replay.session import Session, Stopped

__all__ = ["LockstepSettings", "PlaybackSettings", "RecordingSettings", "ReplaySummary", "replay"]


@dataclass
class ReplaySummary:
    """Counts and time of a replay."""

    messages: int = 0
    answered: int = 0
    """Frames answered in lockstep."""
    resent: int = 0
    """Frames sent twice; a recording may hold two answers to each."""
    recorded: int = 0
    seconds: float = 0.0
    finished: bool = False
    """False if it was stopped before the end."""


def replay(
    bag: Bag,
    playing: PlaybackSettings | None = None,
    lockstep: LockstepSettings | None = None,
    recording: RecordingSettings | None = None,
    *,
    wait: float = 0.0,
    stop: threading.Event | None = None,
    keep: Callable[[RawMessage], bool] | None = None,
    progress: Progress = no_progress,
    on_answer: OnAnswer | None = None,
) -> ReplaySummary:
    """Publish a bag; `stop` ends it early and still leaves a complete recording.

    `keep` selects the messages to publish (default: all). Waits up to `wait` seconds for a
    subscriber of the images. In lockstep, `on_answer` gets every
    frame with its answers (bytes by topic), and recorded messages are stamped with the time of the
    bag, so that two recordings of one bag are equal.
    """
    playing = playing or PlaybackSettings()
    summary = ReplaySummary()
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(Session(stop))
        player = Player(session, bag, playing)
        recorder = None if recording is None else Recorder(session, recording, bag.warn)
        if recorder is not None:
            stack.enter_context(recorder.bag)
        total = sum(bag.topics[name].count for name in player.publishers)

        def messages() -> Iterable[RawMessage]:
            recorded = bag.raw(list(player.publishers))
            if keep is None:
                return progress(recorded, total)
            return progress(filter(keep, recorded), None)

        started = time.monotonic()
        with contextlib.suppress(Stopped):
            if lockstep is None:
                session.wait(lambda: _has_subscriber(bag, player), wait)
                if recorder is not None:
                    recorder.open(wait)
                started = time.monotonic()
                player.play(messages)
            else:
                steps = LockstepPlayer(session, bag, player, lockstep)
                steps.open(recorder)
                started = time.monotonic()
                try:
                    steps.play(messages(), on_answer)
                finally:
                    summary.answered, summary.resent = steps.answered, steps.resent
            summary.finished = True
        summary.messages = player.sent
        summary.seconds = time.monotonic() - started
        if recorder is not None:
            with contextlib.suppress(Stopped):
                recorder.settle()
            recorder.require_messages()
            summary.recorded = recorder.bag.count
    return summary


def _has_subscriber(bag: Bag, player: Player) -> bool:
    images = [name for name in player.publishers if "Image" in bag.topics[name].type]
    return any(player.publishers[n].get_subscription_count() for n in images or player.publishers)

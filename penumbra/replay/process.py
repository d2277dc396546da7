"""The real node in its own process, and a bag sent through it frame by frame.

The demonstration and the verification both use it: neither the node nor DDS is replaced by a stub.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penumbra.bags import Bag, RawMessage
from penumbra.bags.messages import CAMERA_INFO, COMPRESSED_IMAGE
from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.replay import child
from penumbra.replay.progress import Progress, no_progress

if TYPE_CHECKING:
    from penumbra.replay.bag_replay import ReplaySummary

NODE = "/penumbra"
PATIENCE = 60.0  # seconds for a frame's answer, or for the node to appear
# The node runs as fast as it can, with stamps of the bag: no frame is too old, none is late, and a
# scene may stand still. Heartbeats follow the steady clock, which no two replays share.
LOCKSTEP = {
    "max_age": 0.0,
    "frozen_after": 0.0,
    "ood.stale_after": 3600.0,
    "ood.heartbeat": 10.0,
    "watchdog.inference": PATIENCE,
    "qos.input_reliability": "reliable",
}


@dataclass(frozen=True)
class NodeProcess:
    """A running node. `ended` is set when it ends, so that nobody waits for it in vain."""

    pid: int
    ended: threading.Event


def send_through_node(
    bag: Bag,
    bundle: Bundle,
    recording: Path,
    log: Path,
    *,
    answers: Sequence[str] = ("prediction", "ood", "stats"),
    record_everything: bool = True,
    runner: str = "auto",
    threads: int = 0,
    image_topic: str | None = None,
    keep: Callable[[RawMessage], bool] | None = None,
    progress: Progress = no_progress,
) -> ReplaySummary:
    """Start a node in a private ROS domain and replay `bag` through it in lockstep.

    Waits for all of `answers` (names of the node's outputs) to each frame. The rosbag2 `recording`
    holds these, or everything that the node publishes; `log` holds its output. `keep` selects the
    messages to send (default: all).
    """
    need_ros()
    from penumbra.replay.bag_replay import (
        LockstepSettings,
        PlaybackSettings,
        RecordingSettings,
        replay,
    )
    from penumbra.replay.domain import private_domain

    images = bag.image_topic(image_topic)
    names = node_topics(bag, images.name)
    parameters = LOCKSTEP | {
        "bundle": str(bundle.path.resolve()),
        "runner": runner,
        "threads": threads,
        "compressed": images.type == COMPRESSED_IMAGE,
    }
    expected = tuple(f"{NODE}/{name}" for name in answers)
    recorded = (
        RecordingSettings(recording, under=(NODE,))
        if record_everything
        else RecordingSettings(recording, under=(), topics=expected)
    )
    with private_domain(), node_process(parameters, log) as node:
        summary = replay(
            bag,
            PlaybackSettings(topics=tuple(names), remap=names),
            LockstepSettings(expected, images.name, patience=PATIENCE, ready=PATIENCE),
            recorded,
            stop=node.ended,
            keep=keep,
            progress=progress,
        )
        if not summary.finished:
            raise PenumbraError("not all of the bag was replayed")
        return summary


def need_ros() -> None:
    """Raise, with advice, unless ROS 2 and penumbra_msgs can be imported."""
    try:
        for name in ("rclpy", "penumbra_msgs.msg"):
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise PenumbraError(
            f"ROS 2 is not available ({error}): source it, or run scripts/setup"
        ) from None


@contextlib.contextmanager
def node_process(parameters: Mapping[str, object], log: Path) -> Iterator[NodeProcess]:
    """Run the perception node with these parameters; its output goes to `log`."""
    words = [
        word
        for name, value in parameters.items()
        for word in ("-p", f"{name}:={str(value).lower() if isinstance(value, bool) else value}")
    ]
    command = child.command("penumbra.vehicle.node.perception_node", "--ros-args", *words)
    ended = threading.Event()
    with log.open("w", encoding="utf-8") as stream:
        node = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)

        def watch() -> None:
            node.wait()
            ended.set()

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield NodeProcess(node.pid, ended)
        except PenumbraError as error:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            errors = [line for line in lines if "ERROR" in line.upper()]
            reason = errors[-1] if errors else f"see {log}"
            state = (
                "still runs" if node.poll() is None else f"ended with exit code {node.returncode}"
            )
            raise PenumbraError(f"{error}; the node {state}: {reason}") from error
        finally:
            node.terminate()
            try:
                node.wait(5)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()


def node_topics(bag: Bag, images: str) -> dict[str, str]:
    """The topics of the bag that the node subscribes to, and the node's names for them."""
    compressed = bag.topics[images].type == COMPRESSED_IMAGE
    names = {images: f"{NODE}/image/compressed" if compressed else f"{NODE}/image"}
    # The CameraInfo in the namespace of the images, or else the first one.
    cameras = [name for name, topic in bag.topics.items() if topic.type == CAMERA_INFO]
    beside = [name for name in cameras if images.startswith(name.rpartition("/")[0])]
    for name in (beside or cameras)[:1]:
        names[name] = f"{NODE}/image/camera_info"
    return names

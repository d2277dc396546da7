"""The real node in a process of its own, and a bag sent through it frame by frame.

What the demonstration shows and what verification measures comes from here: nothing in between
stands in for the node or for DDS.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.bags import Bag
from penumbra.bags.messages import CAMERA_INFO, COMPRESSED_IMAGE
from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.replay import child

if TYPE_CHECKING:
    from penumbra.replay.bag_replay import ReplaySummary

NODE = "/penumbra"
PATIENCE = 60.0  # seconds for a frame's answer, or for the node to appear
# As fast as the node can, on any machine, with stamps of the bag: nothing is old, nothing late.
LOCKSTEP = {"max_age": 0.0, "ood.stale_after": 3600.0, "qos.input_reliability": "reliable"}

Progress = Callable[[Iterable[Any], int | None], Iterable[Any]]


@dataclass(frozen=True)
class NodeProcess:
    """A node that runs. `ended` is set should it end by itself: nobody waits in vain for it."""

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
    progress: Progress = lambda work, total: work,
) -> ReplaySummary:
    """Replay `bag` in lockstep through a node that is started for it, in a ROS domain of its own.

    Waits for all of `answers` (names of the node's outputs) to each frame. The rosbag2 `recording`
    gets these, or everything that the node publishes; `log` gets what it says. `progress` wraps
    the messages that are sent, and may leave some out.
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
    names = names_for_the_node(bag, images.name)
    parameters = LOCKSTEP | {
        "bundle": str(bundle.path.resolve()),
        "runner": runner,
        "threads": threads,
        "compressed": images.type == COMPRESSED_IMAGE,
    }
    expected = tuple(f"{NODE}/{name}" for name in answers)
    wanted = {"under": (NODE,)} if record_everything else {"under": (), "topics": expected}
    with private_domain(), node_process(parameters, log) as node:
        summary = replay(
            bag,
            PlaybackSettings(topics=tuple(names), remap=names),
            LockstepSettings(expected, images.name, patience=PATIENCE, ready=PATIENCE),
            RecordingSettings(recording, **wanted),
            stop=node.ended,
            progress=progress,
        )
        if not summary.finished:
            raise PenumbraError("not all of the bag was replayed")
        return summary


def need_ros() -> None:
    """Nothing where ROS 2 and our messages can be imported, else what to do."""
    try:
        for name in ("rclpy", "penumbra_msgs.msg"):
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise PenumbraError(f"ROS 2 is not there ({error}): source it, or scripts/setup") from None


@contextlib.contextmanager
def node_process(parameters: dict[str, Any], log: Path) -> Iterator[NodeProcess]:
    """The perception node while it is needed; what it says goes to `log`."""
    words = [
        word
        for name, value in parameters.items()
        for word in ("-p", f"{name}:={str(value).lower() if isinstance(value, bool) else value}")
    ]
    command = child.command("penumbra.vehicle.node.perception_node", "--ros-args", *words)
    ended = threading.Event()
    with log.open("w", encoding="utf-8") as stream:
        node = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        threading.Thread(target=lambda: (node.wait(), ended.set()), daemon=True).start()
        try:
            yield NodeProcess(node.pid, ended)
        except PenumbraError as error:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            errors = [line for line in lines if "ERROR" in line.upper()]
            said = f"it said: {errors[-1]}" if errors else f"see {log}"
            state = (
                "still runs" if node.poll() is None else f"ended with exit code {node.returncode}"
            )
            raise PenumbraError(f"{error}; the node {state}: {said}") from error
        finally:
            node.terminate()
            try:
                node.wait(5)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()


def names_for_the_node(bag: Bag, images: str) -> dict[str, str]:
    """Topics of the bag that the node listens to, and its own names for them."""
    compressed = bag.topics[images].type == COMPRESSED_IMAGE
    names = {images: f"{NODE}/image/compressed" if compressed else f"{NODE}/image"}
    # The camera of the images: the one whose topic begins like theirs, or the only one.
    cameras = [name for name, topic in bag.topics.items() if topic.type == CAMERA_INFO]
    beside = [name for name in cameras if images.startswith(name.rpartition("/")[0])]
    for name in (beside or cameras)[:1]:
        names[name] = f"{NODE}/image/camera_info"
    return names

"""Record messages of other nodes into a rosbag2, byte for byte."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rclpy.topic_endpoint_info import TopicEndpointInfo

from penumbra.bags.definitions import InstalledTypes
from penumbra.bags.messages import has_header, header_stamp
from penumbra.bags.reader import Warn
from penumbra.bags.writer import BagWriter
from penumbra.errors import PenumbraError
from penumbra.replay.session import Session, message_class

DISCOVERY = 0.2  # seconds between two searches for new topics
QUIET = 0.5  # seconds without a message, after which none is expected
LONGEST_QUIET = 10.0  # seconds to wait for quiet


@dataclass(frozen=True)
class RecordingSettings:
    """The bag to write, and what to record: `topics`, and all topics in the namespaces `under`."""

    out: Path
    under: tuple[str, ...] = ("/penumbra",)
    topics: tuple[str, ...] = ()
    storage: str = "mcap"

    def wants(self, topic: str) -> bool:
        """Whether `topic` is to be recorded."""
        inside = any(topic.startswith(f"{namespace.rstrip('/')}/") for namespace in self.under)
        return inside or topic in self.topics


class Recorder:
    """Subscribes to every wanted topic as soon as it has a publisher."""

    def __init__(self, session: Session, recording: RecordingSettings, warn: Warn) -> None:
        self._session = session
        self._recording = recording
        self._warn = warn
        self._types = InstalledTypes()
        self._found: set[str] = set()
        self._last = 0.0
        self.stamp: Callable[[int | None], int] = lambda header: time.time_ns()
        """The time of reception to record, given the header stamp of a message."""
        self.on_message: Callable[[str, int | None], None] = lambda topic, header: None
        """Called with the topic and header stamp of every recorded message."""
        self.bag = BagWriter(
            recording.out,
            recording.storage,
            {"source": "penumbra replay"},
            self._types.store,
            warn,
        )
        session.node.create_timer(DISCOVERY, self.discover)

    def open(self, seconds: float) -> None:
        """Wait for the first of the topics, and until its publishers have discovered us."""

        def found() -> bool:
            self.discover()
            return bool(self._found)

        if self._session.wait(found, seconds):
            self._session.make_known(sorted(self._found), seconds)

    def discover(self) -> None:
        """Subscribe to new topics."""
        for topic, types in self._session.node.get_topic_names_and_types():
            if topic in self._found or not self._recording.wants(topic):
                continue
            publishers = self._session.publishers_of(topic)
            if publishers:
                self._found.add(topic)
                self._record(topic, types[0], publishers)

    def settle(self) -> None:
        """Wait until no more messages arrive."""
        deadline = time.monotonic() + LONGEST_QUIET
        self._last = time.monotonic()
        self._session.wait(
            lambda: time.monotonic() > min(self._last + QUIET, deadline), LONGEST_QUIET
        )

    def require_messages(self) -> None:
        """Raise if nothing was recorded."""
        if not self.bag.count:
            where = ", ".join((*self._recording.under, *self._recording.topics))
            raise PenumbraError(f"nothing was recorded: no messages under {where} (--record-under)")

    def _record(self, topic: str, type_name: str, publishers: Sequence[TopicEndpointInfo]) -> None:
        kind = message_class(type_name)
        try:
            if kind is None:
                raise PenumbraError(f"{type_name} is not installed")
            self._types.add(type_name)
        except PenumbraError as error:
            self._warn(f"{topic} is not recorded: {error}")
            return
        latched = all(p.qos_profile.durability.name == "TRANSIENT_LOCAL" for p in publishers)
        reliable = all(p.qos_profile.reliability.name == "RELIABLE" for p in publishers)
        self.bag.add_topic(topic, type_name, latched, reliable)
        stamped = has_header(self._types.store, type_name)

        def take(data: bytes) -> None:
            header = header_stamp(data) if stamped else None
            self.bag.write(topic, type_name, self.stamp(header), data)
            self.on_message(topic, header)
            self._last = time.monotonic()

        self._session.subscribe(topic, kind, publishers, take)

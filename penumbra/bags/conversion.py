"""Rewrite any readable bag as a rosbag2: ROS 1, another storage, a truncated recording."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from penumbra.bags.reader import RawMessage, Warn, open_bag
from penumbra.bags.writer import BagWriter, refuse_existing
from penumbra.errors import PenumbraError


def convert_bag(
    source: Path,
    out: Path,
    storage: str = "mcap",
    topics: Collection[str] | None = None,
    progress: Callable[[Iterable[RawMessage], int], Iterable[RawMessage]] = lambda work, total: (
        work
    ),
    warn: Warn | None = None,
) -> int:
    """Copy `topics` (None: all whose definition is known); return the number of messages."""
    refuse_existing(out)
    with open_bag(source, warn) as bag:
        chosen = {name: bag.topic(name) for name in topics or bag.topics}
        for topic in list(chosen.values()):
            if topic.type not in bag.store.fielddefs:
                bag.warn(f"{topic.name} is skipped: the definition of {topic.type} is unknown")
                del chosen[topic.name]
        if not chosen:
            raise PenumbraError(f"nothing in {source} can be converted")
        with BagWriter(out, storage, {"source": source.name}, bag.store, warn) as copy:
            for topic in chosen.values():
                copy.add_topic(topic.name, topic.type, topic.latched, topic.reliable)
            total = sum(topic.count for topic in chosen.values())
            for recorded in progress(bag.raw(list(chosen)), total):
                kind = chosen[recorded.topic].type
                copy.write(recorded.topic, kind, recorded.stamp_ns, recorded.data)
            return copy.count

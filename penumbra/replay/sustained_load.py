"""Images to the node at a camera's rate for as long as wanted, and what is seen of it meanwhile."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator

from sensor_msgs.msg import CameraInfo

from penumbra.bags import Bag, RawMessage
from penumbra.bags.messages import COMPRESSED_IMAGE, restamped
from penumbra.bundle import Bundle
from penumbra.replay.exchange import Exchange
from penumbra.replay.load_record import LoadRecord
from penumbra.replay.process import NodeProcess, names_for_the_node
from penumbra.replay.process_usage import process_usage
from penumbra.replay.session import Session, Stopped

CAMERA_HZ = 10.0
SPARE = 1.5  # times as long as an answer takes is what the node gets for it
TRIED = 10  # images by which that time is measured
LATE = 5.0  # seconds after which an answer is not waited for any longer ...
LATE_TIMES = 4  # ... or so many times what one takes, where that is longer
REASONS = ("busy", "old", "rate", "invalid", "failed")

Told = Callable[[float, str], None]


def soak(
    bag: Bag,
    image_topic: str | None,
    bundle: Bundle,
    node: NodeProcess,
    seconds: float,
    rate_hz: float | None,
    stop: threading.Event,
    begun: Callable[[LoadRecord], None],
    told: Told,
) -> LoadRecord:
    """Send the bag's images again and again; `stop` ends it early.

    `begun` gets the record when the rate is known, `told` the seconds and a line from time to time.
    """
    images = bag.image_topic(image_topic)
    names = names_for_the_node(bag, images.name)
    record = LoadRecord(bundle.name, "", rate_hz or 0.0, float("nan"))
    with Session(stop) as session:
        compressed = images.type == COMPRESSED_IMAGE
        exchange = Exchange(session, node, bundle.task, compressed=compressed)
        cameras = {
            topic: session.node.create_publisher(CameraInfo, name, 10)
            for topic, name in names.items()
            if topic != images.name
        }
        first = next(iter(bag.raw([images.name]))).data
        try:
            exchange.open(first)
            answers = [exchange.ask(first) for _ in range(TRIED)]
        except Stopped:
            record.interrupted = True
            return record
        answer = statistics.median(answers)
        record.answer_ms = answer * 1e3
        record.rate_hz = rate_hz or min(CAMERA_HZ, 1 / (SPARE * answer))
        record.runner = exchange.stats.runner
        begun(record)
        _Watch(exchange, node, record, seconds, stop, told).run(
            _endless(bag, list(names)), images.name, cameras
        )
    return record


def _endless(bag: Bag, topics: list[str]) -> Iterator[RawMessage]:
    while True:
        yield from bag.raw(topics)


def next_due(due: float, now: float, period: float) -> float:
    """When the next image is sent, after one that was `due` and went out at `now`.

    A little late does not shift the rest. What was missed altogether, while the machine stood
    still, is not caught up with: no camera sends two images at once.
    """
    return due + period if now < due + period else now + period


class _Watch:
    def __init__(
        self,
        exchange: Exchange,
        node: NodeProcess,
        record: LoadRecord,
        seconds: float,
        stop: threading.Event,
        told: Told,
    ) -> None:
        self._exchange, self._node, self._record = exchange, node, record
        self._seconds, self._stop, self._told = seconds, stop, told
        self._late = max(LATE, LATE_TIMES * record.answer_ms / 1e3)
        self._pause = min(max(seconds / 1000, 0.1), 5.0)  # between two looks at the process
        self._start = self._next_look = time.monotonic()
        self._sent: dict[int, float] = {}  # by stamp: when
        self._latency: dict[int, float] = {}  # by stamp: milliseconds
        self._last_answered = 0
        exchange.on_answer = self._note

    def run(self, messages: Iterator[RawMessage], images: str, cameras: dict) -> None:
        before = self._drops()
        try:
            self._send(messages, images, cameras)
            # All that is under way gets the time that it may take.
            self._exchange.session.wait(lambda: not self._exchange.under_way, self._late)
        except Stopped:
            self._record.interrupted = True
        record = self._record
        record.seconds = time.monotonic() - self._start
        record.dropped = {why: count - before[why] for why, count in self._drops().items()}
        for stamp, sent in self._sent.items():
            if stamp in self._latency or self._is_lost(stamp):
                record.sent.append(sent)
                record.latency_ms.append(self._latency.get(stamp, float("nan")))

    def _send(self, messages: Iterator[RawMessage], images: str, cameras: dict) -> None:
        period, due, end = 1 / self._record.rate_hz, self._start, self._start + self._seconds
        for recorded in messages:
            if recorded.topic != images:
                publisher = cameras[recorded.topic]
                publisher.publish(restamped(recorded.data, time.time_ns()))
                continue
            now = self._rest(min(due, end))
            if self._node.ended.is_set() and not self._stop.wait(1.0):
                # Not with us: Ctrl-C in a terminal reaches the node as well.
                self._record.node_ended = True
                return
            if now >= end:
                return
            self._sent[self._exchange.send(recorded.data)] = now - self._start
            due = next_due(due, now, period)

    def _rest(self, due: float) -> float:
        """Take what comes, and look at the process, until something is due; the time."""
        while True:
            self._exchange.session.rest(round(min(due, self._next_look) * 1e9))
            now = time.monotonic()
            if now >= self._next_look:
                self._next_look = now + self._pause
                self._look(now)
            if now >= due:
                return now

    def _look(self, now: float) -> None:
        seen = process_usage(self._node.pid, now - self._start)
        if seen is not None:
            self._record.usage.append(seen)
            missing = sum(map(self._is_lost, self._exchange.under_way))
            latency = self._latency.get(self._last_answered, float("nan"))
            text = f"{seen.memory_mib:.0f} MiB, {latency:.0f} ms, {missing} lost"
            self._told(seen.seconds, text)

    def _is_lost(self, stamp: int) -> bool:
        """A later one was answered, or its time is over."""
        if stamp not in self._exchange.under_way:
            return False
        if stamp < self._last_answered or self._record.node_ended:
            return True
        return time.monotonic() - self._start - self._sent[stamp] > self._late

    def _note(self, stamp: int, at: float) -> None:
        if stamp in self._sent:
            self._latency[stamp] = (at - self._start - self._sent[stamp]) * 1e3
            self._last_answered = max(self._last_answered, stamp)

    def _drops(self) -> dict[str, int]:
        stats = self._exchange.stats
        return {why: int(getattr(stats, f"dropped_{why}")) for why in REASONS}

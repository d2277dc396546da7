"""Send images to the node at a camera's rate for a given time, and measure it meanwhile."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from rclpy.publisher import Publisher
from sensor_msgs.msg import CameraInfo

from penumbra.bags import Bag, RawMessage
from penumbra.bags.messages import COMPRESSED_IMAGE, restamped
from penumbra.bundle import Bundle
from penumbra.replay.exchange import Exchange
from penumbra.replay.load_record import LoadRecord
from penumbra.replay.process import NodeProcess, node_topics
from penumbra.replay.process_usage import process_usage
from penumbra.replay.session import Session, Stopped

CAMERA_HZ = 10.0
SPARE = 1.5  # period of the images, in times of the answer
TRIED = 10  # images to measure that time
LATE = 5.0  # seconds after which a frame counts as lost ...
LATE_TIMES = 4  # ... or this many times the answer, if that is longer
REASONS = ("busy", "old", "rate", "invalid", "failed")

OnStatus = Callable[[float, str], None]


def soak(
    bag: Bag,
    image_topic: str | None,
    bundle: Bundle,
    node: NodeProcess,
    seconds: float,
    rate_hz: float | None,
    stop: threading.Event,
    on_start: Callable[[LoadRecord], None],
    on_status: OnStatus,
) -> LoadRecord:
    """Send the images of the bag in a loop; `stop` ends it early.

    `on_start` gets the record when the rate is known, `on_status` regularly the seconds and a line.
    """
    images = bag.image_topic(image_topic)
    names = node_topics(bag, images.name)
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
        on_start(record)
        _LoadTest(exchange, node, record, seconds, stop, on_status).run(
            _endless(bag, list(names)), images.name, cameras
        )
    return record


def _endless(bag: Bag, topics: list[str]) -> Iterator[RawMessage]:
    while True:
        yield from bag.raw(topics)


def next_due(due: float, now: float, period: float) -> float:
    """When to send the next image, after one that was `due` and went out at `now`.

    A small delay does not shift the rest. Images missed while the machine stood still are not sent
    later: no camera sends two at once.
    """
    return due + period if now < due + period else now + period


class _LoadTest:
    """Sends the images on time, and notes latency, losses and the usage of the process."""

    def __init__(
        self,
        exchange: Exchange,
        node: NodeProcess,
        record: LoadRecord,
        seconds: float,
        stop: threading.Event,
        on_status: OnStatus,
    ) -> None:
        self._exchange, self._node, self._record = exchange, node, record
        self._seconds, self._stop, self._on_status = seconds, stop, on_status
        self._late = max(LATE, LATE_TIMES * record.answer_ms / 1e3)
        self._pause = min(max(seconds / 1000, 0.1), 5.0)  # between two measurements of the process
        self._start = self._next_sample = time.monotonic()
        self._sent: dict[int, float] = {}  # by stamp: when
        self._latency: dict[int, float] = {}  # by stamp: milliseconds
        self._last_answered = 0
        exchange.on_answer = self._note

    def run(
        self, messages: Iterator[RawMessage], images: str, cameras: Mapping[str, Publisher]
    ) -> None:
        before = self._drops()
        try:
            self._send(messages, images, cameras)
            # Frames under way get their full time.
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

    def _send(
        self, messages: Iterator[RawMessage], images: str, cameras: Mapping[str, Publisher]
    ) -> None:
        period, due, end = 1 / self._record.rate_hz, self._start, self._start + self._seconds
        for recorded in messages:
            if recorded.topic != images:
                publisher = cameras[recorded.topic]
                publisher.publish(restamped(recorded.data, time.time_ns()))
                continue
            now = self._rest(min(due, end))
            if self._node.ended.is_set() and not self._stop.wait(1.0):
                # Not by Ctrl-C, which in a terminal also reaches the node: that sets `stop`.
                self._record.node_ended = True
                return
            if now >= end:
                return
            self._sent[self._exchange.send(recorded.data)] = now - self._start
            due = next_due(due, now, period)

    def _rest(self, due: float) -> float:
        """Receive answers and measure the process until `due`; return the time."""
        while True:
            self._exchange.session.rest(round(min(due, self._next_sample) * 1e9))
            now = time.monotonic()
            if now >= self._next_sample:
                self._next_sample = now + self._pause
                self._sample(now)
            if now >= due:
                return now

    def _sample(self, now: float) -> None:
        usage = process_usage(self._node.pid, now - self._start)
        if usage is not None:
            self._record.usage.append(usage)
            missing = sum(map(self._is_lost, self._exchange.under_way))
            latency = self._latency.get(self._last_answered, float("nan"))
            text = f"{usage.memory_mib:.0f} MiB, {latency:.0f} ms, {missing} lost"
            self._on_status(usage.seconds, text)

    def _is_lost(self, stamp: int) -> bool:
        """Whether a later frame was answered, or the time of this one is over."""
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

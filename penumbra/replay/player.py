"""Publish the messages of a bag, in real time or one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from builtin_interfaces.msg import Time
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock

from penumbra.bags.messages import SECOND
from penumbra.bags.reader import Bag, RawMessage, Topic
from penumbra.errors import PenumbraError
from penumbra.replay.session import Session, message_class

CLOCK_HZ = 40.0  # as `ros2 bag play --clock`


@dataclass(frozen=True)
class PlaybackSettings:
    """What to publish, on which topics, and how fast."""

    rate: float = 1.0
    loop: bool = False
    topics: tuple[str, ...] | None = None
    """None: all topics whose message type is installed."""
    remap: Mapping[str, str] = field(default_factory=dict)
    clock: bool = False
    best_effort: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise PenumbraError(f"--rate is {self.rate:g}: give a number above 0, 1 is real time")


class Player:
    """A publisher for each topic of a bag.

    All are reliable, independent of the recording: they also serve best-effort subscribers, while
    best effort loses large images. Latched topics stay latched.
    """

    def __init__(self, session: Session, bag: Bag, playing: PlaybackSettings) -> None:
        self._session = session
        self._playing = playing
        self.now_ns = 0
        """The time in the bag."""
        self.sent = 0
        for name in (*playing.remap, *(playing.topics or ())):
            bag.topic(name)
        self.publishers: dict[str, Publisher] = {}
        for name in playing.topics or bag.topics:
            self._advertise(bag, bag.topics[name])
        if not self.publishers:
            raise PenumbraError(f"nothing to publish in {bag.path}")
        self._clock = session.node.create_publisher(Clock, "/clock", 1) if playing.clock else None

    def name(self, topic: str) -> str:
        """The name under which a topic of the bag is published."""
        return self._playing.remap.get(topic, topic)

    def publish(self, recorded: RawMessage) -> None:
        """Send one message; its bytes stay unchanged."""
        self.now_ns = recorded.stamp_ns
        self.publishers[recorded.topic].publish(recorded.data)
        self.sent += 1

    def tick(self, now_ns: int) -> None:
        """Publish the time of the bag on /clock, if enabled."""
        if self._clock is not None:
            seconds, nanoseconds = divmod(now_ns, SECOND)
            self._clock.publish(Clock(clock=Time(sec=seconds, nanosec=nanoseconds)))

    def play(self, messages: Callable[[], Iterable[RawMessage]]) -> None:
        """Publish at the pace of the recording, by a steady clock.

        Where time in the bag runs backwards, it continues from there at once.
        """
        while True:
            pace: _Pace | None = None
            for recorded in messages():
                if pace is None:
                    pace = _Pace(self._playing.rate, recorded.stamp_ns)
                self._rest(pace.due(recorded.stamp_ns), pace)
                self.publish(recorded)
            if not self._playing.loop:
                return

    def _rest(self, due: int, pace: _Pace) -> None:
        if self._clock is not None:
            while (tick := pace.next_tick()) < due:
                self._session.rest(tick)
                self.tick(pace.bag_time(tick))
        self._session.rest(due)

    def _advertise(self, bag: Bag, topic: Topic) -> None:
        kind = message_class(topic.type)
        if kind is None:
            problem = f"{topic.name} holds {topic.type}, which is not installed here"
            if self._playing.topics is not None:
                raise PenumbraError(f"{problem}: source the workspace that provides it")
            bag.warn(f"{problem}: it is not published")
            return
        best_effort = self._playing.best_effort and not topic.latched
        profile = QoSProfile(
            depth=10,
            reliability=ReliabilityPolicy.BEST_EFFORT
            if best_effort
            else ReliabilityPolicy.RELIABLE,
            durability=DurabilityPolicy.TRANSIENT_LOCAL
            if topic.latched
            else DurabilityPolicy.VOLATILE,
        )
        publisher = self._session.node.create_publisher(kind, self.name(topic.name), profile)
        self.publishers[topic.name] = publisher


class _Pace:
    """Converts the time of a bag, which starts now, to that of the steady clock and back."""

    def __init__(self, rate: float, start_ns: int) -> None:
        self._rate = rate
        self._tick = time.monotonic_ns()
        self._anchor = start_ns, self._tick  # a time in the bag, and the same on the steady clock
        self._last = start_ns

    def due(self, stamp_ns: int) -> int:
        if stamp_ns < self._last:
            self._anchor = stamp_ns, self._steady(self._last)
        self._last = stamp_ns
        return self._steady(stamp_ns)

    def next_tick(self) -> int:
        tick = self._tick
        self._tick = max(tick, time.monotonic_ns()) + round(SECOND / CLOCK_HZ)
        return tick

    def bag_time(self, steady_ns: int) -> int:
        start, then = self._anchor
        return start + round((steady_ns - then) * self._rate)

    def _steady(self, stamp_ns: int) -> int:
        start, then = self._anchor
        return then + round((stamp_ns - start) / self._rate)

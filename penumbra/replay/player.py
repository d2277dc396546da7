"""Publish the messages of a bag, in time or one after the other."""

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
    """What to publish, where, and how fast."""

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

    Reliable ones, whatever was recorded: they serve best-effort subscribers as well, while best
    effort loses large images. Latched topics stay latched.
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
        """What a topic of the bag is called on the way out."""
        return self._playing.remap.get(topic, topic)

    def publish(self, recorded: RawMessage) -> None:
        """Send one message; its bytes go out as they are."""
        self.now_ns = recorded.stamp_ns
        self.publishers[recorded.topic].publish(recorded.data)
        self.sent += 1

    def tick(self, now_ns: int) -> None:
        """Tell everybody the time in the bag, if asked for."""
        if self._clock is not None:
            seconds, nanoseconds = divmod(now_ns, SECOND)
            self._clock.publish(Clock(clock=Time(sec=seconds, nanosec=nanoseconds)))

    def play(self, messages: Callable[[], Iterable[RawMessage]]) -> None:
        """Publish in the rhythm of the recording, by a steady clock.

        Where time in the bag runs backwards, it goes on from there at once.
        """
        while True:
            pace = _Pace(self._playing.rate)
            for recorded in messages():
                due = pace.due(recorded.stamp_ns)
                self._rest(due, pace)
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
                raise PenumbraError(f"{problem}: source the workspace that has it")
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
    """Steady time of a moment in the bag, and back."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._anchor: tuple[int, int] | None = None  # a time in the bag, and when that is
        self._last = 0
        self._tick = 0

    def due(self, stamp_ns: int) -> int:
        if self._anchor is None:
            now = time.monotonic_ns()
            self._anchor = stamp_ns, now
            self._tick = now
        elif stamp_ns < self._last:
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

"""Send the next frame when the node has answered the last: none is dropped, at any speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from rclpy.duration import Duration
from rclpy.qos import ReliabilityPolicy
from rclpy.topic_endpoint_info import TopicEndpointInfo

from penumbra.bags.messages import SECOND, header_stamp
from penumbra.bags.reader import Bag, RawMessage
from penumbra.errors import PenumbraError
from penumbra.replay.player import Player
from penumbra.replay.recorder import Recorder
from penumbra.replay.session import Session, message_class

_AFTER_STAMP = 12  # bytes: encapsulation, seconds and nanoseconds
MEETING = 5.0  # seconds for mutual discovery, once one side knows the other
Answers = dict[str, bytes]
OnAnswer = Callable[[RawMessage, Answers], None]


@dataclass(frozen=True)
class LockstepSettings:
    """Which topics answer the frames, and how long to wait."""

    answers: tuple[str, ...] = ("/penumbra/prediction",)
    """Topics on which the node publishes once for each frame, with the frame's stamp."""
    frames: str | None = None
    """The topic of the frames in the bag; None: the only image topic."""
    patience: float = 30.0
    """Seconds for an answer; then the frame is sent a second and last time."""
    ready: float = 60.0
    """Seconds for the node to appear."""


class LockstepPlayer:
    """Sends frames to one node and waits for each answer."""

    def __init__(self, session: Session, bag: Bag, player: Player, steps: LockstepSettings) -> None:
        self._session = session
        self._bag = bag
        self._player = player
        self._steps = steps
        self._frames = bag.image_topic(steps.frames)
        if self._frames.name not in player.publishers:
            raise PenumbraError(f"--lockstep needs {self._frames.name} among the topics to publish")
        self._publisher = player.publishers[self._frames.name]
        self._received: dict[int, Answers] = {}
        self._sent: dict[int | None, int] = {}  # time in the bag by the stamp of the frame
        self._recorder: Recorder | None = None
        self._regular: set[str] = set()  # recorded topics that carry the stamps of frames, ...
        self._arrived: set[str] = set()  # ... and those that arrived for the present frame
        self._last_content: dict[str, bytes] = {}
        self.answered = 0
        self.resent = 0

    def open(self, recorder: Recorder | None = None) -> None:
        """Wait for the node and for mutual discovery."""
        subscribers = self._publisher.get_subscription_count
        self._session.wait(
            lambda: subscribers() > 0 or bool(self._other_types()), self._steps.ready
        )
        if not subscribers():
            raise PenumbraError(self._no_subscriber())
        for topic in self._steps.answers:
            if not self._session.wait(partial(self._session.has_publishers, topic), MEETING):
                raise PenumbraError(
                    f"the frames have a subscriber, but nobody publishes {topic}: is it the topic"
                    " of the node's answers (--answer)?"
                )
            self._subscribe(topic, self._session.publishers_of(topic))
        if recorder is not None:
            recorder.stamp = lambda header: self._sent.get(header, self._player.now_ns)
            recorder.on_message = self._note
            self._recorder = recorder
            recorder.discover()
        self._session.make_known(self._steps.answers, MEETING)
        self._warn_of_loss()

    def play(self, messages: Iterable[RawMessage], on_answer: OnAnswer | None = None) -> None:
        """Publish all messages in their order, each frame after the answer to the last one."""
        for recorded in messages:
            self._player.tick(recorded.stamp_ns)
            self._player.publish(recorded)
            if recorded.topic == self._frames.name:
                answers = self._answers(recorded)
                if self._recorder is not None:
                    self._await_others(self._recorder)
                self.answered += 1
                if on_answer is not None:
                    on_answer(recorded, answers)
            elif self._is_new(recorded):
                # The camera calibration has to arrive before its image. Fast DDS acknowledges with
                # its heartbeat, up to three seconds later.
                patience = Duration(seconds=self._steps.patience)
                self._player.publishers[recorded.topic].wait_for_all_acked(patience)

    def _is_new(self, recorded: RawMessage) -> bool:
        """Whether it differs from the last message of its topic in more than the stamp."""
        content = recorded.data[_AFTER_STAMP:]
        before = self._last_content.get(recorded.topic)
        self._last_content[recorded.topic] = content
        return content != before

    def _answers(self, frame: RawMessage) -> Answers:
        stamp = header_stamp(frame.data)
        self._received = {stamp: {}}
        self._arrived = set()
        self._sent[stamp] = frame.stamp_ns

        def complete() -> bool:
            if not self._publisher.get_subscription_count():
                raise PenumbraError(
                    f"the node ended before it answered frame {self.answered + 1}: see its log"
                )
            return len(self._received[stamp]) == len(self._steps.answers)

        for attempt in range(2):
            if attempt:
                self.resent += 1
                self._player.publish(frame)
            if self._session.wait(complete, self._steps.patience):
                return self._received[stamp]
        missing = [name for name in self._steps.answers if name not in self._received[stamp]]
        raise PenumbraError(
            f"no answer on {', '.join(missing)} to frame {self.answered + 1} of {self._frames.name}"
            f" (stamp {stamp / SECOND:.6f} s), sent twice and waited {self._steps.patience:g} s"
            " each time: see the node's log; --patience waits longer"
        )

    def _await_others(self, recorder: Recorder) -> None:
        """Wait also for topics that are only recorded, if they came with an earlier frame.

        The node keeps only its latest message of a topic. A lost one (large images) is resent only
        if the next frame has not replaced it by then.
        """
        if not self.answered:  # the topics of the first frame are expected for all
            recorder.settle()
        if self._session.wait(lambda: self._regular <= self._arrived, self._steps.patience):
            return
        missing = sorted(self._regular - self._arrived)
        self._bag.warn(f"frame {self.answered + 1} has no {', '.join(missing)} in the recording")
        self._regular -= set(missing)  # it may not be published any more

    def _note(self, topic: str, header: int | None) -> None:
        if header in self._received:
            self._arrived.add(topic)
            self._regular.add(topic)

    def _subscribe(self, topic: str, publishers: Sequence[TopicEndpointInfo]) -> None:
        kind = message_class(publishers[0].topic_type)
        if kind is None:
            raise PenumbraError(f"{topic} holds {publishers[0].topic_type}, not installed here")

        def take(data: bytes) -> None:
            # Ignores answers to an abandoned frame, and the second answer to a frame sent twice.
            self._received.get(header_stamp(data), {}).setdefault(topic, data)

        self._session.subscribe(topic, kind, publishers, take)

    def _other_types(self) -> list[str]:
        """Other message types that are subscribed on the topic of the frames."""
        name = self._player.name(self._frames.name)
        ends = self._session.node.get_subscriptions_info_by_topic(name)
        return sorted({end.topic_type for end in ends} - {self._frames.type})

    def _no_subscriber(self) -> str:
        name = self._player.name(self._frames.name)
        others = self._other_types()
        if others:
            return (
                f"the frames of the bag are {self._frames.type}, but the node on {name} expects"
                f" {', '.join(others)}: write the bag with that type, or set the node to this one"
            )
        return (
            f"no subscriber of {self._frames.type} on {name} within {self._steps.ready:g} s:"
            f" start the node, or give its topic with --remap {self._frames.name}:=TOPIC"
        )

    def _warn_of_loss(self) -> None:
        name = self._player.name(self._frames.name)
        for end in self._session.node.get_subscriptions_info_by_topic(name):
            if end.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT:
                self._bag.warn(
                    f"{end.node_name} subscribes to {name} by best effort, which may lose large"
                    " images: set its input to reliable"
                )

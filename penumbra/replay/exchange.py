"""Send images to a node in another process and receive its answers over DDS.

Measurements of the node from outside use this: it subscribes to all raw outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image

from penumbra.bags.messages import header_stamp, restamped
from penumbra.errors import PenumbraError
from penumbra.replay.process import NODE, NodeProcess
from penumbra.replay.session import Session
from penumbra.vehicle.node.outputs import OUTPUTS
from penumbra_msgs.msg import FrameStats, OodAlert

RAW = ("prediction", "uncertainty", "confidence", "disparity", "disparity/std")
START = 120.0  # seconds until the first answer: a TensorRT engine may have to be built
PATIENCE = 60.0  # seconds for each further answer
_AGAIN = 2.0  # seconds until the first image is sent again: the node may not have received it
_DEPTH = 10  # of the queues

OnAnswer = Callable[[int, float], None]


class Exchange:
    """Gives every image a unique stamp; it is answered when all outputs with that stamp arrived.

    `on_answer` is called with the stamp and the time of arrival (`time.monotonic`).
    """

    def __init__(
        self,
        session: Session,
        node: NodeProcess,
        task: str,
        cameras: Sequence[str] = ("",),
        compressed: bool = False,
    ) -> None:
        self.session = session
        self.on_answer: OnAnswer = lambda stamp, at: None
        self.under_way: dict[int, set[str]] = {}  # outputs still missing, by the stamp of the image
        self._node = node
        self._last_stamp = 0
        self._stats = b""
        kinds: dict[str, type] = {o.topic: Image for o in OUTPUTS if task in o.tasks}
        kinds = {name: kind for name, kind in kinds.items() if name in RAW}
        kinds |= {"stats": FrameStats, "ood": OodAlert}
        qos = QoSProfile(depth=_DEPTH)
        self._publishers: dict[str, Publisher] = {}
        self._expected: dict[str, set[str]] = {}
        for camera in cameras:
            prefix = f"{NODE}/{camera}".rstrip("/")
            self._expected[camera] = {f"{prefix}/{name}" for name in kinds}
            for name, kind in kinds.items():
                topic = f"{prefix}/{name}"
                take = partial(self._take, topic)
                session.node.create_subscription(kind, topic, take, qos, raw=True)
            to = f"{prefix}/image/compressed" if compressed else f"{prefix}/image"
            what = CompressedImage if compressed else Image
            self._publishers[camera] = session.node.create_publisher(what, to, qos)

    @property
    def stats(self) -> FrameStats:
        """The node's latest statistics."""
        return deserialize_message(self._stats, FrameStats) if self._stats else FrameStats()

    def send(self, image: bytes, camera: str = "") -> int:
        """Publish a serialised image with the present time; return its stamp."""
        stamp = self._last_stamp = max(time.time_ns(), self._last_stamp + 1)
        self.under_way[stamp] = set(self._expected[camera])
        self._publishers[camera].publish(restamped(image, stamp))
        return stamp

    def ask(self, image: bytes, camera: str = "", patience: float = PATIENCE) -> float:
        """Send one image, wait for its answer, and return the seconds it took."""
        start = time.monotonic()
        stamp = self.send(image, camera)
        if not self.session.wait(lambda: self._is_answered(stamp), patience):
            raise PenumbraError(f"an image was not answered within {patience:g} s")
        return time.monotonic() - start

    def open(self, image: bytes) -> None:
        """Send to every camera until it answers: discovery is complete and the engine runs."""
        for camera in self._publishers:
            deadline = time.monotonic() + START
            sent: list[int] = []
            while not self._any_answered(sent):
                if time.monotonic() > deadline:
                    raise PenumbraError(f"no answer of the node within {START:.0f} s")
                sent.append(self.send(image, camera))
                self.session.wait(partial(self._any_answered, sent), _AGAIN)
        # Some answers to the first images may be lost: not every output had discovered us.
        self.under_way.clear()

    def _any_answered(self, stamps: list[int]) -> bool:
        return any(map(self._is_answered, stamps))

    def _is_answered(self, stamp: int) -> bool:
        if self._node.ended.is_set():
            raise PenumbraError("the node ended unexpectedly")
        return stamp not in self.under_way

    def _take(self, topic: str, data: bytes) -> None:
        stamp = header_stamp(data)
        if topic.endswith("/stats"):
            self._stats = data
        missing = self.under_way.get(stamp)
        if missing is None:
            return
        missing.discard(topic)
        if not missing:
            del self.under_way[stamp]
            self.on_answer(stamp, time.monotonic())

"""Receives the images of one camera: checks, drops and counts them, and keeps the latest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rclpy.node import Node
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage, Image

from penumbra.vehicle import conversions
from penumbra.vehicle.conversions import ConversionError
from penumbra.vehicle.monitor import HOLDS, Fact
from penumbra.vehicle.node import qos
from penumbra.vehicle.node.frame_counts import Counts
from penumbra.vehicle.node.logs import LOG_PERIOD
from penumbra.vehicle.node.mailbox import Mailbox
from penumbra.vehicle.node.parameters import Values

if TYPE_CHECKING:
    from rclpy.impl.rcutils_logger import RcutilsLogger


@dataclass(frozen=True)
class Arrived:
    """An image message, its arrival time (steady clock) and its age then (node's clock)."""

    message: Image | CompressedImage
    at: float
    age: float

    def age_at(self, now: float) -> float:
        """The age at time `now` of the steady clock, which goes on if the node's clock stops."""
        return self.age + now - self.at

    @property
    def stamp(self) -> int:
        """The stamp in nanoseconds."""
        return _nanoseconds(self.message)


class Intake:
    """Keeps the latest valid image. Callbacks only check its header and put it in a mailbox.

    An invalid image never enters the mailbox, where it would replace a valid one.
    """

    def __init__(
        self, node: Node, log: RcutilsLogger, counts: Counts, live: Callable[[], Values]
    ) -> None:
        self._node, self._log, self._counts, self._live = node, log, counts, live
        self._mailbox: Mailbox[Arrived] = Mailbox()
        self._subscription: Subscription | None = None
        self._due = 0.0  # time from which the rate limit accepts the next image
        self._last_stamp: int | None = None  # nanoseconds
        self._disorder: tuple[float, str] | None = None  # steady time and reason
        self._refusal: tuple[float, str] | None = None  # likewise

    @property
    def topic(self) -> str:
        """The full name of the topic; empty before `open`."""
        return "" if self._subscription is None else str(self._subscription.topic_name)

    def open(self, topic: str) -> None:
        """Subscribe."""
        values = self._live()
        kind: type = Image
        if values["compressed"]:
            topic, kind = f"{topic}/compressed", CompressedImage
        self._subscription = self._node.create_subscription(
            kind, topic, self._receive, qos.profile(values, "input")
        )
        self._log.info(f"waiting for images on {self.topic}")

    def close(self) -> None:
        """End the subscription, and wake up the waiting thread."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
        self._mailbox.close()

    def wait(self) -> bool:
        """Wait for an image; False once closed."""
        return self._mailbox.wait()

    def fact(self, now: float, limit: float) -> Fact:
        """STALE for `limit` seconds after the stamps of the images went back."""
        if self._disorder is not None and now - self._disorder[0] <= limit:
            return Fact.stale(self._disorder[1])
        return HOLDS

    def freshness(self, arrived: Arrived, now: float) -> Fact:
        """STALE if the image is older than `max_age`."""
        age, limit = arrived.age_at(now), self._live()["max_age"]
        if 0 < limit < age:
            return Fact.stale(f"the image is {age:.1f} s old (max_age {limit:g} s)")
        return self.fact(now, self._live()["ood.stale_after"])

    def refusal(self, now: float, limit: float) -> str | None:
        """Why the latest image was refused; None if that was more than `limit` seconds ago."""
        if self._refusal is None or now - self._refusal[0] > limit:
            return None
        return self._refusal[1]

    def note_refusal(self, now: float, reason: str) -> None:
        """Remember why an image was refused, for the reason of STALE."""
        self._refusal = now, reason

    def take(self) -> Arrived | None:
        """The latest image; None if there is none, or if it has become too old."""
        arrived = self._mailbox.take()
        if arrived is None or self._is_old(arrived.age_at(time.monotonic()), self._live()):
            return None
        return arrived

    def _receive(self, message: Image | CompressedImage) -> None:
        now, values, counts = time.monotonic(), self._live(), self._counts
        try:
            limit = values["max_megapixels"] * 1e6
            if isinstance(message, CompressedImage):
                conversions.check_compressed_image(message, limit)
            else:
                conversions.check_image(message, limit)
            arrived = Arrived(message, now, self._age(message))
            self._check_stamp(arrived, values)
        except ConversionError as error:
            with counts.lock:
                counts.add_arrival(now)
                counts.add_drop("invalid", error, error.reason)
            self.note_refusal(now, str(error))
            self._log.error(f"dropped an image: {error}", throttle_duration_sec=LOG_PERIOD)
            return
        with counts.lock:
            counts.add_arrival(now)
        if self._is_old(arrived.age, values):
            return
        with counts.lock:
            if self._is_too_soon(now, values["rate_limit"]):
                counts.dropped["rate"] += 1
            elif self._mailbox.put(arrived) is not None:
                counts.dropped["busy"] += 1

    def _age(self, message: Image | CompressedImage) -> float:
        now: int = self._node.get_clock().now().nanoseconds
        return float(now - _nanoseconds(message)) / 1e9

    def _check_stamp(self, arrived: Arrived, values: Values) -> None:
        """Refuse an image from the future, or from before the last one.

        Images after one that went back are accepted: a recording may begin again. `fact` is STALE
        for a while, for ever if stamps keep going back.
        """
        lead = values["max_lead"]
        if arrived.age < -lead:
            raise ConversionError(
                "stamp",
                f"its stamp is {-arrived.age:.3g} s in the future (max_lead {lead:g} s): "
                "synchronise the clocks; for a recording set use_sim_time",
            )
        last, self._last_stamp = self._last_stamp, arrived.stamp
        if last is not None and arrived.stamp < last:
            back = f"the stamps of the images went back by {(last - arrived.stamp) / 1e9:.3g} s"
            self._disorder = arrived.at, back
            raise ConversionError("stamp", f"{back}: check the camera's clock")

    def _is_old(self, age: float, values: Values) -> bool:
        """Whether `max_age` is exceeded; counts the image as dropped if so."""
        if not 0 < values["max_age"] < age:
            return False
        with self._counts.lock:
            self._counts.dropped["old"] += 1
        text = (
            f"an image that is {age:.3g} s old (max_age {values['max_age']:g} s): check the "
            "camera's clock; for a recording set use_sim_time, or max_age 0"
        )
        self.note_refusal(time.monotonic(), text)
        self._log.warning(f"dropped {text}", throttle_duration_sec=LOG_PERIOD)
        return True

    def _is_too_soon(self, now: float, rate_limit: float) -> bool:
        """Whether the rate limit drops this image."""
        if rate_limit <= 0:
            return False
        period = 1 / rate_limit
        self._due = min(self._due, now + period)  # a new limit applies immediately
        if now < self._due:
            return True
        # Relative to the due time, not to now: otherwise jitter of arrivals lowers the rate.
        self._due = (self._due if now - self._due < period else now) + period
        return False


def _nanoseconds(message: Image | CompressedImage) -> int:
    stamp = message.header.stamp  # may be negative, for which rclpy's Time raises
    return int(stamp.sec) * 10**9 + int(stamp.nanosec)

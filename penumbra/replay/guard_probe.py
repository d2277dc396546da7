"""The guard in a process of its own, and a record of its decisions with their times.

The oracle of fault tests: whatever happens to the perception node, `GuardProbe` tells when the
guard called it not safe.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import Bool, Float32

from penumbra.errors import PenumbraError
from penumbra.replay import child
from penumbra.replay.alert_source import Behaviour
from penumbra.vehicle.node import qos
from penumbra.vehicle.node.guard_parameters import guard_defaults

GUARD = "/penumbra_guard"
PATIENCE = 60.0  # seconds; only a failing test waits that long
MARGIN = 0.2  # seconds that a reaction may take over the time-outs
AnyChild = TypeVar("AnyChild", bound="_Child")


def longest_reaction(stale_after: float, heartbeat: float) -> float:
    """The largest permitted time from a fault to safe = false."""
    return stale_after + 2 * heartbeat + MARGIN


class _Child:
    """A process of this package, which never outlives this one; its log is kept."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            child.command(module, *arguments),
            stdin=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self: AnyChild) -> AnyChild:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()  # also ends a stopped process
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._log.close()

    def log(self) -> str:
        """What the process has logged so far."""
        self._log.seek(0)
        return self._log.read()


class AlertSource(_Child):
    """The stand-in of the perception node; see alert_source.py."""

    def __init__(self, heartbeat: float = 0.25) -> None:
        super().__init__("penumbra.replay.alert_source", str(heartbeat))

    def behave(self, behaviour: Behaviour) -> None:
        """Change the behaviour from now on."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{behaviour.value}\n")
        self.process.stdin.flush()


@dataclass(frozen=True)
class GuardMessage:
    """A decision as it arrived; `at` is the steady time."""

    at: float
    safe: bool


class GuardProbe(_Child):
    """Starts the guard with these parameters, and records what it publishes, in a thread.

    Use it as a context manager, in a private ROS domain.
    """

    def __init__(self, **parameters: Any) -> None:
        self.values = {**guard_defaults(), **parameters}
        words = [w for name, value in parameters.items() for w in ("-p", f"{name}:={value}")]
        super().__init__("penumbra.vehicle.node.guard_node", "--ros-args", *words)
        self.messages: list[GuardMessage] = []
        self.speed_limits: list[float] = []
        self.reasons: list[str] = []
        self._news = threading.Condition()
        self._context = Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = rclpy.create_node("guard_probe", context=self._context)
        profile = qos.watched_alerts(self.values["period"])
        self.node.create_subscription(Bool, f"{GUARD}/safe", self._take, profile)
        self.node.create_subscription(
            Float32, f"{GUARD}/speed_limit", self._take_speed_limit, profile
        )
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._take_reasons, 10)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._closing = False
        self._thread.start()

    def __exit__(self, *error: Any) -> None:
        self._closing = True
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)
        super().__exit__(*error)

    @property
    def limit(self) -> float:
        """The largest permitted time from a fault to safe = false, with these parameters."""
        return longest_reaction(self.values["stale_after"], self.values["heartbeat"])

    @property
    def safe(self) -> bool | None:
        """The present decision; None before the first, and if the guard has fallen silent."""
        last = self.messages[-1] if self.messages else None
        silence = qos.MISSED_HEARTBEATS * self.values["period"] + MARGIN
        return last.safe if last is not None and time.monotonic() - last.at <= silence else None

    def wait(self, safe: bool, seconds: float = PATIENCE) -> float:
        """Wait until the guard has said `safe` after this call; returns the steady time of that."""
        start = time.monotonic()
        return self._wait(
            lambda: next((m.at for m in self._since(start) if m.safe is safe), None),
            seconds,
            f"safe = {safe}",
        )

    def reaction(self, since: float, seconds: float = PATIENCE) -> float:
        """Seconds from `since`, the steady time of a fault, until the guard was not safe.

        Counts to the first decision "not safe" after the last "safe".
        """

        def turned() -> float | None:
            found = self._since(since)
            trusted = [number for number, m in enumerate(found) if m.safe]
            rest = found[trusted[-1] + 1 :] if trusted else found
            return rest[0].at - since if rest else None

        return self._wait(turned, seconds, "safe = False")

    def until(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        """Wait until a condition on what was received holds."""
        self._wait(lambda: time.monotonic() if condition() else None, seconds, what)

    def stays_unsafe(self, seconds: float) -> bool:
        """Whether the guard says nothing but "not safe" for so long."""
        start = time.monotonic()
        with self._news:
            return not self._news.wait_for(
                lambda: any(m.safe for m in self._since(start)), timeout=seconds
            )

    def _since(self, start: float) -> list[GuardMessage]:
        found = []
        for message in reversed(self.messages):
            if message.at < start:
                break
            found.append(message)
        return found[::-1]

    def _wait(self, get: Callable[[], float | None], seconds: float, what: str) -> float:
        with self._news:
            self._news.wait_for(
                lambda: get() is not None or self.process.poll() is not None, seconds
            )
            found = get()
        if found is None:
            state = self.process.poll()
            ended = "" if state is None else f", which ended with exit code {state}"
            raise PenumbraError(
                f"no {what} from the guard{ended} within {seconds:g} s; the last reason was "
                f"{self.reasons[-1] if self.reasons else 'not told'!r}; its log:\n{self.log()}"
            )
        return found

    def _spin(self) -> None:
        while not self._closing:
            self._executor.spin_once(timeout_sec=0.05)
            with self._news:  # also to notice the end of the process
                self._news.notify_all()

    def _take(self, message: Bool) -> None:
        self.messages.append(GuardMessage(time.monotonic(), message.data))

    def _take_speed_limit(self, message: Float32) -> None:
        self.speed_limits.append(message.data)

    def _take_reasons(self, message: DiagnosticArray) -> None:
        mine = f"{GUARD.lstrip('/')}: "
        self.reasons += [s.message for s in message.status if s.name.startswith(mine)]

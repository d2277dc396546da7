"""The perception node in its own process, and a peer in this process that talks to it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import Image

from penumbra_msgs.msg import FrameStats, OodAlert

TIMEOUT = 60.0  # seconds; only a failing test waits that long
RELIABLE = QoSProfile(depth=1000)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
STUB_NODE = Path(__file__).with_name("stub_node.py")


class NodeProcess:
    """A running `perception_node` with parameters, whose log is read continuously."""

    def __init__(self, *program: str, **parameters: Any) -> None:
        # The tests' images stand still, and they change parameters.
        settings = {
            "diagnostics.min_input_rate": 0.0,
            "threads": 1,
            "frozen_after": 0.0,
            "safety.lock": False,
            **parameters,
        }
        given = [f"-p{name}:={_yaml(value)}" for name, value in settings.items()]
        program = program or ("-m", "penumbra.vehicle.node.perception_node")
        self.process = subprocess.Popen(
            [sys.executable, *program, "--ros-args", *(a for p in given for a in ("-p", p[2:]))],
            env={**os.environ, "RCUTILS_LOGGING_BUFFERED_STREAM": "0"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            with self._news:
                self.log.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self.log.append("")
            self._news.notify_all()

    def wait_for(self, pattern: str) -> str:
        """Wait for a log line that matches, and return the first one."""

        def found() -> str | None:
            return next((line for line in self.log if re.search(pattern, line)), None)

        with self._news:
            self._news.wait_for(lambda: found() or self.log[-1:] == [""], TIMEOUT)
        line = found()
        assert line is not None, f"no {pattern!r} in the log:\n" + "\n".join(self.log)
        return line

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        return code

    def assert_clean(self) -> None:
        """Assert that the log has no traceback and no defect."""
        text = "\n".join(self.log)
        assert "Traceback" not in text and "defect" not in text, text


def resident(pid: int) -> int:
    """Resident memory of the process in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


@contextlib.contextmanager
def running(*program: str, **parameters: Any) -> Iterator[NodeProcess]:
    """Run a node, which must survive the block and then exit cleanly."""
    node = NodeProcess(*program, **parameters)
    try:
        yield node
        assert node.process.poll() is None, "\n".join(node.log)
        assert node.end() == 0, "\n".join(node.log)
        node.assert_clean()
    finally:
        if node.process.poll() is None:
            node.process.kill()
        node.process.wait()


class Peer:
    """A test node: publishes images, collects outputs, requests transitions and parameters."""

    def __init__(self) -> None:
        self._context = rclpy.Context()
        rclpy.init(context=self._context)
        self.node = rclpy.create_node("peer", context=self._context)
        self._executor = rclpy.executors.SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self.received: dict[str, list[Any]] = {}
        self._publishers: dict[str, Any] = {}
        self._clients: dict[str, Any] = {}

    def close(self) -> None:
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)

    def wait(self, until: Callable[[], Any], what: str) -> Any:
        """Spin until `until` returns a true value, and return it."""
        deadline = time.monotonic() + TIMEOUT
        while not (result := until()):
            assert time.monotonic() < deadline, f"{what} did not arrive in {TIMEOUT:.0f} s"
            self._executor.spin_once(timeout_sec=0.05)
        return result

    def spin(self, seconds: float) -> None:
        """Run callbacks for at most this long."""
        self._executor.spin_once(timeout_sec=seconds)

    def collect(self, kind: type, *topics: str, qos: QoSProfile = RELIABLE) -> None:
        """Keep every message of these topics in `received`."""
        for topic in topics:
            self.received[topic] = []
            self.node.create_subscription(kind, topic, self.received[topic].append, qos)

    def matched(self, *topics: str) -> None:
        """Wait until these topics, by default all collected ones, have a publisher."""
        for topic in topics or self.received:
            self.wait(lambda t=topic: self.node.count_publishers(t), f"a publisher of {topic}")

    def publisher(self, topic: str = "/penumbra/image", kind: type = Image) -> Any:
        """A publisher, once its topic has a subscriber."""
        if topic not in self._publishers:
            self._publishers[topic] = self.node.create_publisher(kind, topic, RELIABLE)
            self.wait(self._publishers[topic].get_subscription_count, f"a subscriber of {topic}")
        return self._publishers[topic]

    def image(self, pixels: np.ndarray, frame_id: str = "camera", encoding: str = "bgr8") -> Image:
        """An image message, stamped now."""
        message = Image(
            height=pixels.shape[0],
            width=pixels.shape[1],
            encoding=encoding,
            step=pixels.strides[0],
            data=pixels.tobytes(),
        )
        message.header.frame_id = frame_id
        message.header.stamp = self.node.get_clock().now().to_msg()
        return message

    def until_all(self, send: Callable[[], None]) -> None:
        """Send until every topic has delivered a message, i.e. discovery is complete."""
        while not all(self.received.values()):
            send()
            before = sum(map(len, self.received.values()))
            self.wait(
                lambda before=before: sum(map(len, self.received.values())) > before, "any output"
            )

    def stats(self, topic: str = "/penumbra/stats") -> list[FrameStats]:
        return self.received[topic]

    def until_processed(self, pixels: np.ndarray, topic: str = "/penumbra/image") -> Image:
        """Send an image repeatedly until one is processed; returns that message."""
        name = topic.rpartition("/")[0]
        publisher = self.publisher(topic)
        sent: list[Image] = []

        def done() -> Image | None:
            stamps = {_stamp(s) for s in self.received[f"{name}/stats"] if s.processed}
            answered = [image for image in sent if _stamp(image) in stamps]
            if not answered and (not sent or len(sent) < 1000):
                sent.append(self.image(pixels))
                publisher.publish(sent[-1])
            return answered[0] if answered else None

        return self.wait(done, f"a result on {name}/stats")

    def call(self, kind: type, service: str, request: Any) -> Any:
        if service not in self._clients:
            self._clients[service] = self.node.create_client(kind, service)
            self.wait(self._clients[service].service_is_ready, service)
        future = self._clients[service].call_async(request)
        self.wait(future.done, f"an answer of {service}")
        return future.result()

    def change(self, label: str, node: str = "/penumbra") -> bool:
        request = ChangeState.Request()
        request.transition.label = label
        return self.call(ChangeState, f"{node}/change_state", request).success

    def state(self, node: str = "/penumbra") -> str:
        answer = self.call(GetState, f"{node}/get_state", GetState.Request())
        return answer.current_state.label

    def set(self, node: str = "/penumbra", **values: Any) -> list[str]:
        """Set parameters; returns a reason each, empty on success. `__` is a dot in a name."""
        parameters = [
            Parameter(name.replace("__", "."), value=value).to_parameter_msg()
            for name, value in values.items()
        ]
        request = SetParameters.Request(parameters=parameters)
        results = self.call(SetParameters, f"{node}/set_parameters", request).results
        return ["" if result.successful else result.reason or "refused" for result in results]

    def alerts(self, *topics: str) -> None:
        self.collect(OodAlert, *(topics or ("/penumbra/ood",)), qos=LATCHED)


def with_tests_on_the_path() -> dict[str, str]:
    """Environment of a child process that imports test helpers."""
    here, rest = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, rest]))}


def _stamp(message: Any) -> tuple[int, int]:
    return message.header.stamp.sec, message.header.stamp.nanosec


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'

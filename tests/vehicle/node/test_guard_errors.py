"""Whatever a callback of the guard raises, the guard goes on, and is not safe."""

from __future__ import annotations

import pytest
import rclpy
from perception import TIMEOUT
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import Bool

from penumbra.vehicle.guard_decision import Restriction
from penumbra.vehicle.node import qos
from penumbra.vehicle.node.guard_node import GuardNode


@pytest.fixture
def context(ros_domain):
    context = rclpy.Context()
    rclpy.init(context=context)
    yield context
    rclpy.shutdown(context=context)


@pytest.mark.parametrize("broken", ["_ros_time", "count_publishers", "_decide", "_tick"])
def test_an_error_in_a_callback_is_not_safe(context, monkeypatch, broken):
    guard = GuardNode(context=context)
    said: list[bool] = []
    guard.create_subscription(Bool, "~/safe", lambda m: said.append(m.data), qos.alerts(0.05))
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(guard)

    def fail(*_, **__):
        raise RuntimeError("planted")

    monkeypatch.setattr(guard, broken, fail)
    if broken == "_tick":  # the timer holds the method itself
        (timer,) = guard.timers
        timer.callback = fail
    (watch,) = guard._decision.watches
    watch.restriction = Restriction.NONE  # as if it had been safe
    errors = []
    while False not in said:
        try:
            executor.spin_once(timeout_sec=TIMEOUT)
        except RuntimeError as error:  # as in `run_node`
            errors.append(error)
            guard.after_error(error)
    assert errors and said[-1] is False
    assert watch.restriction is Restriction.STOP
    assert "RuntimeError: planted" in watch.reason
    monkeypatch.undo()
    executor.shutdown()
    guard.destroy_node()


def test_an_error_while_publishing_does_not_end_the_guard(context, monkeypatch, capsys):
    guard = GuardNode(context=context)
    broken = RuntimeError("no middleware")

    def fail():
        raise broken

    monkeypatch.setattr(guard, "_publish", fail)
    guard.after_error(broken)
    assert "cannot publish: RuntimeError: no middleware" in capsys.readouterr().err
    monkeypatch.undo()
    guard.destroy_node()


def test_the_last_word_is_not_safe(context):
    guard = GuardNode(context=context)
    node = rclpy.create_node("consumer", context=context)
    said: list[bool] = []
    node.create_subscription(Bool, "/penumbra_guard/safe", lambda m: said.append(m.data), 10)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(guard)
    executor.add_node(node)
    while not said:
        executor.spin_once(timeout_sec=TIMEOUT)
    (watch,) = guard._decision.watches
    watch.restriction = Restriction.NONE
    guard._publish()
    executor.remove_node(guard)
    guard.destroy_node()
    while True not in said or said[-1]:
        executor.spin_once(timeout_sec=TIMEOUT)
    executor.shutdown()
    node.destroy_node()

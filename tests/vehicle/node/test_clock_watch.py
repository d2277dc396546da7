"""The watch of the node's clock, on a real ROS clock."""

from __future__ import annotations

import pytest
from rclpy.clock import ROSClock
from rclpy.time import Time

from penumbra.vehicle.monitor import HOLDS, Level
from penumbra.vehicle.node.clock_watch import ClockWatch


@pytest.fixture
def clock():
    """Simulated time."""
    clock = ROSClock()
    clock._set_ros_time_is_active(True)
    return clock


def set_to(clock: ROSClock, seconds: float) -> None:
    clock.set_ros_time_override(Time(nanoseconds=round(seconds * 1e9), clock_type=clock.clock_type))


def test_a_clock_that_was_never_read_or_never_came_is_stale(clock):
    watch = ClockWatch(clock)
    assert watch.fact(0.0, 1.0).level is Level.STALE
    watch.update(0.0)
    assert "no /clock arrives" in watch.fact(0.0, 1.0).reason


def test_simulated_time_may_run_at_any_speed_but_not_stop_or_go_back(clock):
    watch = ClockWatch(clock)
    for step, simulated in enumerate([10.0, 10.01, 15.0, 15.1]):
        set_to(clock, simulated)
        watch.update(step * 0.1)
    assert watch.fact(0.3, 1.0) is HOLDS
    watch.update(1.4)
    assert "has stopped for 1.1 s" in watch.fact(1.4, 1.0).reason
    set_to(clock, 15.2)
    watch.update(1.5)
    assert watch.fact(1.5, 1.0) is HOLDS
    set_to(clock, 5.0)
    watch.update(1.6)
    assert "jumped by -10.2 s" in watch.fact(1.6, 1.0).reason
    set_to(clock, 5.1)
    watch.update(2.7)
    assert watch.fact(2.7, 1.0) is HOLDS


def test_the_system_clock_is_compared_with_the_steady_clock():
    watch = ClockWatch(ROSClock())
    watch.update(0.0)
    watch.update(0.0001)
    assert watch.fact(0.1, 1.0) is HOLDS
    watch.update(30.0)  # the steady clock claims half a minute, the system clock a moment
    assert "the system clock jumped by -30 s" in watch.fact(30.0, 1.0).reason

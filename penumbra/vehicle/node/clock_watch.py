"""Watches the node's clock, by which the age of images is measured."""

from __future__ import annotations

from dataclasses import dataclass

from rclpy.clock import ROSClock

from penumbra.vehicle.monitor import HOLDS, Fact

LARGEST_STEP = 0.5  # seconds by which the system clock may differ from the steady clock at once


@dataclass(frozen=True)
class _Reading:
    steady: float
    clock: float
    simulated: bool


class ClockWatch:
    """Whether the clock advances and was not set back; updated by a steady timer.

    The system clock is compared with the steady clock. Simulated time has a speed of its own: it
    must come, advance, and not go back.
    """

    def __init__(self, clock: ROSClock) -> None:
        self._clock = clock
        self._last: _Reading | None = None
        self._advanced = 0.0  # steady time of the last advance
        self._jump: tuple[float, str] | None = None  # steady time and reason

    def update(self, now: float) -> None:
        """Read the clock; `now` is the steady time."""
        time = self._clock.now().nanoseconds / 1e9
        reading = _Reading(now, time, self._clock.ros_time_is_active)
        last, self._last = self._last, reading
        if last is None or last.simulated is not reading.simulated:
            self._advanced, self._jump = now, None
            return
        step = reading.clock - last.clock
        if step:
            self._advanced = now
        if not reading.simulated:
            step -= reading.steady - last.steady
        elif step > 0:  # simulated time may run at any speed
            step = 0.0
        if step < 0 if reading.simulated else abs(step) > LARGEST_STEP:
            name = "simulated time" if reading.simulated else "the system clock"
            self._jump = now, f"{name} jumped by {step:+.3g} s"

    def fact(self, now: float, limit: float) -> Fact:
        """STALE while the clock stands still, and for `limit` seconds after a jump."""
        last = self._last
        if last is None:
            return Fact.stale("the clock was not read yet")
        if last.simulated and last.clock == 0:
            return Fact.stale("use_sim_time is set, but no /clock arrives: publish it, or unset it")
        if now - self._advanced > limit:
            name = "simulated time" if last.simulated else "the system clock"
            return Fact.stale(f"{name} has stopped for {now - self._advanced:.1f} s")
        if self._jump is not None and now - self._jump[0] <= limit:
            return Fact.stale(self._jump[1])
        return HOLDS

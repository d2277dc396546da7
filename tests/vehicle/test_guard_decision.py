"""The guard's decision: nothing but new OKs in a row is safe, and nothing unusual stays safe."""

from __future__ import annotations

import random

import pytest

from penumbra.vehicle.guard_decision import (
    SECOND,
    AlertFault,
    AlertWatch,
    GuardDecision,
    GuardSettings,
    Restriction,
)
from penumbra.vehicle.monitor import Level

NONE, SLOW, STOP = Restriction.NONE, Restriction.SLOW, Restriction.STOP
FRAME = 0.1  # seconds
EPOCH = 1_700_000_000  # of the ROS clock, at steady time 0


class Drive:
    """A watch, and the time that passes for it; ROS time runs with steady time unless shifted."""

    def __init__(self, **settings):
        self.now = 0.0
        self.shift = 0.0
        self.settings = GuardSettings(**settings)
        self.watch = AlertWatch("ood", self.settings, self.now)
        self.watch.publishers = 1

    @property
    def clock(self) -> int:
        return round((EPOCH + self.now + self.shift) * SECOND)

    def frames(self, level=Level.OK, count=1, stamp=None, lag=0.05, pause=FRAME) -> Restriction:
        """Alerts about new images, `lag` seconds after their stamps, or with one stamp."""
        for _ in range(count):
            self.rest(pause)
            own = self.clock - round(lag * SECOND) if stamp is None else stamp
            self.watch.alert(int(level), own, self.clock, self.now)
            self.watch.check(self.clock, self.now)
        return self.watch.restriction

    def rest(self, seconds: float) -> Restriction:
        """Time passes, with a check every 50 ms."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(end, self.now + 0.05)
            self.watch.check(self.clock, self.now)
        return self.watch.restriction


@pytest.fixture
def clear() -> Drive:
    """A drive that has become safe."""
    drive = Drive()
    assert drive.frames(count=20) is NONE
    return drive


def test_it_starts_at_stop():
    drive = Drive()
    assert drive.watch.restriction is STOP
    assert drive.rest(10) is STOP
    assert GuardDecision([], GuardSettings(), 0.0).restriction is STOP


def test_ten_new_oks_are_safe_and_nine_are_not():
    drive = Drive(stale_after=0.5)
    # The first one may be a repetition of an old one: nothing is known to compare it with.
    assert drive.frames(count=10) is STOP
    assert "9 of 10 new OKs" in drive.watch.reason
    assert drive.frames() is NONE
    assert drive.watch.reason == "OK"


def test_oks_within_a_moment_are_not_enough():
    drive = Drive()
    assert drive.frames(count=50, pause=0.01) is STOP
    assert drive.frames(count=60, pause=0.01) is NONE  # over a second, which is the time-out
    assert drive.frames(Level.ALERT) is STOP
    assert drive.frames(count=50, pause=0.01) is STOP  # counted from the last fault


def test_the_count_starts_again_after_a_fault(clear):
    assert clear.frames(Level.ALERT) is STOP
    assert clear.frames(count=9) is STOP
    assert clear.frames(Level.STALE) is STOP
    assert clear.frames(count=9) is STOP
    assert clear.frames(count=2) is NONE


@pytest.mark.parametrize("level", [Level.ALERT, Level.STALE, Level.STARTING, 5, 9, 255, -1])
def test_levels_that_stop(clear, level):
    assert clear.frames(level) is STOP
    assert clear.watch.faults[AlertFault.LEVEL] == 1
    assert clear.frames(level, count=30) is STOP


def test_warn_slows_down_and_full_speed_needs_new_oks(clear):
    assert clear.frames(Level.WARN) is SLOW
    assert clear.frames(count=9) is SLOW
    assert clear.frames(count=2) is NONE


def test_warn_never_leads_out_of_stop():
    drive = Drive()
    assert drive.frames(Level.WARN, count=100) is STOP
    assert drive.frames(count=9) is STOP
    assert drive.frames(Level.WARN) is STOP
    assert drive.frames(count=9) is STOP


def test_warn_can_stop():
    drive = Drive(warn_stops=True)
    assert drive.frames(count=20) is NONE
    assert drive.frames(Level.WARN) is STOP


def test_silence_stops(clear):
    assert clear.rest(0.5) is NONE
    assert clear.rest(0.1) is STOP
    assert clear.watch.reason == "no alert for 0.60 s"


def test_a_repeated_alert_proves_life_for_the_time_out_and_no_longer(clear):
    stamp = clear.clock
    assert clear.frames(stamp=stamp) is NONE
    assert clear.frames(stamp=stamp, count=10) is NONE
    assert clear.frames(stamp=stamp) is STOP
    assert "no alert about a new image" in clear.watch.reason


def test_repeated_oks_are_never_counted():
    drive = Drive(stale_after=100.0, max_age=0.0)
    drive.frames()
    stamp = drive.clock
    assert drive.frames(stamp=stamp, count=500) is STOP
    assert drive.watch.fresh_oks == 1


def test_an_ok_about_an_image_of_before_the_stale_is_not_new(clear):
    stamp = clear.clock - SECOND // 20
    assert clear.frames(Level.STALE) is STOP
    assert clear.frames(stamp=stamp) is STOP
    assert clear.watch.fresh_oks == 0


def test_a_stale_alert_is_stamped_later_than_the_next_image_and_does_not_disturb(clear):
    clear.frames(Level.STALE, lag=0.0)
    clear.frames(lag=0.12, pause=0.05)  # taken before, judged after
    assert clear.watch.fresh_oks == 1


def test_of_two_alerts_about_one_image_the_worse_holds(clear):
    stamp = clear.clock
    clear.frames(Level.ALERT, stamp=stamp, pause=0.01)
    assert clear.frames(Level.OK, stamp=stamp, pause=0.01) is STOP
    stamp = clear.clock
    clear.frames(Level.OK, stamp=stamp, pause=0.01)
    oks = clear.watch.fresh_oks
    assert clear.frames(Level.WARN, stamp=stamp, pause=0.01) is STOP
    assert (oks, clear.watch.fresh_oks) == (1, 0)


@pytest.mark.parametrize("lag, fine", [(-0.4, True), (-0.6, False), (1.4, True), (1.6, False)])
def test_age_and_lead(lag, fine):
    drive = Drive()
    drive.frames(count=30, lag=lag)
    assert (drive.watch.restriction is NONE) is fine


def test_an_image_that_grows_old_stops_before_the_time_out():
    drive = Drive()
    assert drive.frames(count=30, lag=1.4) is NONE
    drive.frames(stamp=drive.clock - round(1.4 * SECOND), pause=0.01)
    assert drive.rest(0.05) is NONE
    assert drive.rest(0.1) is STOP
    assert "old" in drive.watch.reason


def test_no_limit_of_age_for_recordings():
    assert Drive(max_age=0.0).frames(count=30, lag=1e8) is NONE


@pytest.mark.parametrize("stamp", [None, 0, -1])
def test_invalid_stamps_stop(clear, stamp):
    clear.rest(FRAME)
    clear.watch.alert(int(Level.OK), stamp, clear.clock, clear.now)
    assert clear.watch.restriction is STOP
    unlimited = Drive(max_age=0.0)  # where age does not tell
    unlimited.watch.alert(int(Level.OK), stamp, unlimited.clock, unlimited.now)
    assert "without a valid stamp" in unlimited.watch.reason


def test_stamps_that_run_backwards_stop(clear):
    stamp = clear.clock
    for step in range(20):
        assert clear.frames(stamp=stamp - step * 1000, pause=0.01) is (STOP if step else NONE)


@pytest.mark.parametrize("jump", [-3600, -2, 2, 3600])
def test_a_clock_that_jumps_stops(clear, jump):
    clear.shift = jump
    assert clear.rest(0.05) is STOP
    assert clear.frames(count=9) is STOP
    assert clear.frames(count=3) is NONE  # with the new time


@pytest.mark.parametrize("count", [0, 2, 3])
def test_none_or_several_publishers_stop(clear, count):
    clear.watch.publishers = count
    assert clear.frames(count=30) is STOP
    clear.watch.publishers = 1
    assert clear.frames(count=9) is STOP
    assert clear.frames(count=2) is NONE


def test_a_flood_stops_and_memory_stays_bounded(clear):
    assert clear.frames(count=1000, pause=0.001) is STOP
    assert len(clear.watch._recent) <= clear.settings.max_rate
    assert clear.watch.faults[AlertFault.FLOOD] == 1


@pytest.mark.parametrize("fault", AlertFault)
def test_any_reported_fault_stops(clear, fault):
    clear.watch.fault(fault, "why", clear.now)
    assert clear.watch.restriction is STOP
    assert clear.watch.reason == "why"
    clear.watch.fault(fault, "why", clear.now)
    assert clear.watch.faults == {fault: 1}  # once for as long as it lasts


def both(decision: GuardDecision, now: float, *levels: Level) -> Restriction:
    clock = round((EPOCH + now) * SECOND)
    for watch, level in zip(decision.watches, levels, strict=True):
        watch.publishers = 1
        watch.alert(int(level), clock, clock, now)
    decision.check(clock, now)
    return decision.restriction


def test_the_most_restricted_camera_decides():
    decision = GuardDecision(["front", "left"], GuardSettings(), 0.0)
    for step in range(20):
        restriction = both(decision, step / 10, Level.OK, Level.OK)
    assert restriction is NONE and decision.reason == "OK"
    assert both(decision, 2.0, Level.OK, Level.WARN) is SLOW
    assert decision.reason == "left: WARN"
    assert both(decision, 2.1, Level.ALERT, Level.OK) is STOP
    assert decision.reason == "front: ALERT"
    assert both(decision, 2.2, Level.ALERT, Level.STALE) is STOP
    assert decision.reason == "front: ALERT; left: STALE"


def test_a_guard_that_was_stopped_trusts_nothing_from_before():
    decision = GuardDecision(["front"], GuardSettings(), 0.0)
    for step in range(20):
        both(decision, step / 10, Level.OK)
    assert decision.restriction is NONE
    assert both(decision, 2.9, Level.OK) is STOP
    assert "did not run for 1.00 s" in decision.reason


def test_random_histories_are_safe_only_after_enough_oks_in_a_row():
    """The rule itself, written down a second time and held against the watch."""
    chance = random.Random(0)
    seen = {NONE: 0, SLOW: 0, STOP: 0}
    for _ in range(300):
        drive = Drive(stale_after=0.5)
        in_a_row, judged = -1, Level.OK  # the first sets the base
        for _ in range(80):
            kind = chance.choices(["ok", "repeat", "warn", "bad", "gap"], [90, 6, 1, 1, 1])[0]
            if kind == "ok":
                drive.frames()
                in_a_row, judged = in_a_row + 1, Level.OK
            elif kind == "repeat" and drive.watch._stamp is not None:
                drive.frames(judged, stamp=drive.watch._stamp, pause=0.01)
                in_a_row = in_a_row if judged is Level.OK else 0
            elif kind == "warn":
                drive.frames(Level.WARN)
                in_a_row, judged = 0, Level.WARN
            elif kind == "bad":
                bad = chance.choice([Level.ALERT, Level.STALE, Level.STARTING, 7])
                drive.frames(bad)
                in_a_row, judged = 0, Level.ALERT if bad is Level.ALERT else judged
            elif kind == "gap":
                drive.rest(0.7)
                in_a_row = 0
            seen[drive.watch.restriction] += 1
            if drive.watch.restriction is NONE:
                assert in_a_row >= 10
    assert min(seen.values()) > 100

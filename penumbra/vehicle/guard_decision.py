"""From the alerts of the perception node to a decision: may the vehicle drive, and how fast.

Without ROS. "Clear" is a conclusion, never a default: a watch starts at STOP, whatever is unusual
leads back to STOP at once, and only several new OKs in a row lead out of it.

Two clocks are used. `now` is the steady time in seconds, by which silence is measured: nobody can
set it. `clock` is the ROS time in nanoseconds, by which the age of an image is measured.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from penumbra.vehicle.monitor import Level

SECOND = 1_000_000_000  # nanoseconds
RATE_WINDOW = 1.0  # seconds over which the rate of alerts is counted


class Restriction(IntEnum):
    """What the alerts demand of the vehicle; the larger one prevails."""

    NONE = 0
    SLOW = 1
    STOP = 2


class AlertFault(IntEnum):
    """Why a watch went to STOP."""

    START = 0  # no decision since the start of the guard
    LEVEL = 1  # ALERT, STALE, STARTING, or a level that is not defined
    SILENCE = 2  # no alert in time, by the guard's own clock
    DEADLINE = 3  # likewise, by the middleware
    LIVELINESS = 4  # the publisher does not assert that it is alive
    FROZEN = 5  # alerts arrive, but none about a new image
    STAMP = 6  # from the future, too old, backwards or invalid
    PUBLISHERS = 7  # none, or more than one
    FLOOD = 8
    LOST = 9  # the middleware lost an alert
    INCOMPATIBLE = 10  # the publisher offers less than the guard requests
    STALL = 11  # the guard itself did not run
    ERROR = 12  # a callback of the guard raised an exception


@dataclass(frozen=True)
class GuardSettings:
    """When alerts are trusted; times in seconds."""

    silence: float = 0.5  # without any alert
    stale_after: float = 1.0  # without an alert about a new image, by the steady clock
    max_age: float = 1.5  # of the newest judged image, by its stamp; 0: any
    max_lead: float = 0.5  # of a stamp over the clock
    fresh_oks: int = 10  # in a row, to leave STOP or SLOW
    max_rate: float = 200.0  # alerts per second
    warn_stops: bool = False


class AlertWatch:
    """Watches the alerts of one camera."""

    def __init__(self, name: str, settings: GuardSettings, now: float) -> None:
        self.name = name
        self.restriction = Restriction.STOP
        self.faults: Counter[AlertFault] = Counter()  # that interrupted OKs
        self.fresh_oks = 0  # in a row
        self.level: Level | None = None  # of the last alert
        self.publishers = 0  # that may be alive
        self._settings = settings
        self._reason = "no alert has arrived yet"
        self._hint = ""  # why no alert may arrive
        self._interrupted = now
        self._arrived: float | None = None
        self._advanced: float | None = None  # time of the last alert about a new image
        self._stamp: int | None = None  # of the newest judged image
        self._recent: deque[float] = deque()

    @property
    def reason(self) -> str:
        """Why the restriction holds, in one line."""
        if self.restriction is Restriction.NONE:
            return "OK"
        oks = f"{self.fresh_oks} of {self._settings.fresh_oks} new OKs since"
        return f"{self._reason} ({oks})" if self.fresh_oks else self._reason

    def alert(self, level: int, stamp: int | None, clock: int, now: float) -> None:
        """Take an alert; `stamp` is that of its header in nanoseconds, None if it is invalid."""
        self._arrived = now
        if self._is_flood(now):
            text = f"more than {self._settings.max_rate:g} alerts per second"
            self.fault(AlertFault.FLOOD, text, now)
            return
        try:
            self.level = Level(level)
        except ValueError:
            self.level = None
            self.fault(AlertFault.LEVEL, f"undefined level {level}", now)
            return
        if self.level in (Level.OK, Level.WARN, Level.ALERT):
            self._judge(self.level, stamp, clock, now)
        else:  # of no image: the stamp is the time of the node, and may be later than an image's
            self.fault(AlertFault.LEVEL, self.level.name, now)

    def fault(self, fault: AlertFault, reason: str, now: float) -> None:
        """Go to STOP; the count of new OKs starts again."""
        if self.restriction is not Restriction.STOP or self.fresh_oks:
            self.faults[fault] += 1  # once, not for every check while it lasts
        self.restriction = Restriction.STOP
        self._reason = reason
        self._interrupt(now)

    def incompatible(self, reason: str, now: float) -> None:
        """A publisher from which nothing can arrive; told for as long as nothing does."""
        self._hint = f": {reason}"
        self.fault(AlertFault.INCOMPATIBLE, reason, now)

    def check(self, clock: int, now: float) -> None:
        """Apply what needs no alert: the passing of time, and the number of publishers."""
        settings = self._settings
        if self.publishers == 0:
            self.fault(AlertFault.PUBLISHERS, "no publisher", now)
        elif self.publishers > 1:
            text = f"{self.publishers} publishers: one may be an impostor"
            self.fault(AlertFault.PUBLISHERS, text, now)
        elif self._arrived is None:
            self.fault(AlertFault.START, f"no alert has arrived yet{self._hint}", now)
        elif now - self._arrived > settings.silence:
            text = f"no alert for {now - self._arrived:.2f} s{self._hint}"
            self.fault(AlertFault.SILENCE, text, now)
        elif self._advanced is not None and now - self._advanced > settings.stale_after:
            if self._is_judged:
                text = f"no alert about a new image for {now - self._advanced:.2f} s"
                self.fault(AlertFault.FROZEN, text, now)
        elif self._stamp is not None and self._is_judged:
            self._check_stamp(self._stamp, clock, now)

    @property
    def _is_judged(self) -> bool:
        """Whether the last alert was about an image; STALE and STARTING say more than its age."""
        return self.level in (Level.OK, Level.WARN, Level.ALERT)

    def _judge(self, level: Level, stamp: int | None, clock: int, now: float) -> None:
        """Take an alert about an image; a repeated one proves life, but is no new OK."""
        if stamp is None or stamp <= 0:
            self.fault(AlertFault.STAMP, "an alert without a valid stamp", now)
            return
        before, self._stamp = self._stamp, stamp
        if before is not None and stamp < before:
            text = f"stamps went back by {(before - stamp) / SECOND:.3g} s"
            self.fault(AlertFault.STAMP, text, now)
            return
        if not self._check_stamp(stamp, clock, now):
            return
        if before is None or stamp > before:
            self._advanced = now
        if level is Level.ALERT or (level is Level.WARN and self._settings.warn_stops):
            self.fault(AlertFault.LEVEL, level.name, now)
        elif level is Level.WARN:
            self._warn(now)
        elif before is not None and stamp > before:
            self._count_ok(now)

    def _check_stamp(self, stamp: int, clock: int, now: float) -> bool:
        """Whether the newest image is neither too old nor from the future."""
        age = (clock - stamp) / SECOND
        if age < -self._settings.max_lead:
            self.fault(AlertFault.STAMP, f"a stamp {-age:.3g} s in the future", now)
        elif self._settings.max_age and age > self._settings.max_age:
            self.fault(AlertFault.STAMP, f"the newest judged image is {age:.3g} s old", now)
        else:
            return True
        return False

    def _warn(self, now: float) -> None:
        """WARN slows down; it never leads out of STOP."""
        if self.restriction is not Restriction.STOP:
            self.restriction, self._reason = Restriction.SLOW, Level.WARN.name
        self._interrupt(now)

    def _count_ok(self, now: float) -> None:
        self.fresh_oks += 1
        # Many OKs within a moment prove little: they must also span the time-out.
        lasting = now - self._interrupted >= self._settings.stale_after
        if self.fresh_oks >= self._settings.fresh_oks and lasting:
            self.restriction = Restriction.NONE

    def _interrupt(self, now: float) -> None:
        self.fresh_oks, self._interrupted = 0, now

    def _is_flood(self, now: float) -> bool:
        """Count an alert; whether there were too many in the last second."""
        self._recent.append(now)
        while now - self._recent[0] > RATE_WINDOW:
            self._recent.popleft()
        if len(self._recent) <= self._settings.max_rate * RATE_WINDOW:
            return False
        self._recent.popleft()  # bounded, however long the flood
        return True


class GuardDecision:
    """The decision over all cameras: that of the most restricted one."""

    def __init__(self, names: Sequence[str], settings: GuardSettings, now: float) -> None:
        self.watches = [AlertWatch(name, settings, now) for name in names]
        self._stall = settings.silence
        self._checked = now

    @property
    def restriction(self) -> Restriction:
        """The largest of all cameras; STOP if there is none."""
        return max((watch.restriction for watch in self.watches), default=Restriction.STOP)

    @property
    def reason(self) -> str:
        """Why, in one line: the reasons of the cameras that have the largest restriction."""
        worst = [watch for watch in self.watches if watch.restriction is self.restriction]
        if self.restriction is Restriction.NONE:
            return "OK"
        return "; ".join(f"{watch.name}: {watch.reason}" for watch in worst)

    def check(self, clock: int, now: float) -> None:
        """Check all cameras; to be called regularly, which is checked, too.

        A process that was stopped finds old alerts in its queue, which all seem to arrive now.
        """
        paused, self._checked = now - self._checked, now
        for watch in self.watches:
            watch.check(clock, now)
        if paused > self._stall:
            self.fault(AlertFault.STALL, f"the guard did not run for {paused:.2f} s", now)

    def fault(self, fault: AlertFault, reason: str, now: float) -> None:
        """A fault that concerns all cameras."""
        for watch in self.watches:
            watch.fault(fault, reason, now)

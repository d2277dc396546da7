"""Reaction times of the guard: from a fault of the perception node to safe = false.

A stand-in of the node with its quality of service and heartbeat, the guard, and the observer are
three processes. A fault is injected at a random moment, and only while the guard says safe.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tqdm import tqdm

from penumbra.replay.alert_source import Behaviour
from penumbra.replay.domain import private_domain
from penumbra.replay.guard_probe import AlertSource, GuardProbe

LEAST = 30  # faults of each kind
KILL, STOP = "killed (SIGKILL)", "stopped (SIGSTOP)"
COMMANDED = {
    "silent, but running": Behaviour.SILENT,
    "repeats the last OK": Behaviour.FROZEN,
    "publishes STALE": Behaviour.STALE,
    "publishes ALERT": Behaviour.ALERT,
}


@dataclass(frozen=True)
class ReactionTimes:
    """Seconds from a fault to the receipt of safe = false in a third process."""

    fault: str
    injected: int
    median: float
    largest: float
    limit: float

    @property
    def in_time(self) -> bool:
        """Whether none took longer than permitted."""
        return self.largest <= self.limit


def measure(repetitions: int, seed: int = 0) -> list[ReactionTimes]:
    """Inject every kind of fault `repetitions` times, but at least 30 times."""
    count = max(repetitions, LEAST)
    moments = random.Random(seed)
    found: dict[str, list[float]] = {}
    with private_domain(), GuardProbe() as guard:
        with AlertSource() as source:
            for name in (*COMMANDED, STOP):
                found[name] = [
                    _fault(guard, source, name, moments)
                    for _ in tqdm(range(count), desc=name, disable=None, leave=False)
                ]
        found[KILL] = []
        for _ in tqdm(range(count), desc=KILL, disable=None, leave=False):
            with AlertSource() as victim:
                found[KILL].append(_fault(guard, victim, KILL, moments))
        limit = guard.limit
    return [
        ReactionTimes(name, len(times), round(median(times), 4), round(max(times), 4), limit)
        for name, times in found.items()
    ]


def reaction_table(lines: Sequence[ReactionTimes]) -> str:
    """Markdown, as in docs/fail-safe.md."""
    rows = [
        "| the perception node | faults | median [s] | largest [s] | permitted [s] |",
        "| --- | --- | --- | --- | --- |",
    ]
    for line in lines:
        largest = f"{line.largest:.3f}{'' if line.in_time else ', too late'}"
        rows.append(
            f"| {line.fault} | {line.injected} | {line.median:.3f} | {largest} | {line.limit:.2f} |"
        )
    return "\n".join(rows)


def _fault(guard: GuardProbe, source: AlertSource, name: str, moments: random.Random) -> float:
    """Inject one fault at a random moment of the heartbeat, and end it; the reaction time."""
    guard.wait(safe=True)
    time.sleep(moments.uniform(0, guard.values["heartbeat"]))
    start = time.monotonic()
    if name == KILL:
        source.process.kill()
    elif name == STOP:
        source.process.send_signal(signal.SIGSTOP)
    else:
        source.behave(COMMANDED[name])
    reaction = guard.reaction(start)
    if name == STOP:
        source.process.send_signal(signal.SIGCONT)
    elif name != KILL:
        source.behave(Behaviour.OK)
    return reaction

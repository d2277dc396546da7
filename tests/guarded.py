"""The guard as the oracle of fault tests: what happened, and how soon it was not safe any more.

with GuardProbe(topics="/penumbra/ood") as guard:
    guard.wait(safe=True)
    fault = time.monotonic()
    break_something()
    assert_stops(guard, fault)
"""

from __future__ import annotations

from penumbra.replay.alert_source import Behaviour
from penumbra.replay.guard_probe import AlertSource, GuardProbe, longest_reaction

__all__ = ["AlertSource", "Behaviour", "GuardProbe", "assert_stops", "longest_reaction"]


def assert_stops(guard: GuardProbe, since: float, stays: float = 0.5) -> float:
    """The guard is not safe within the permitted time, and stays so; returns the seconds it took.

    `since` is the steady time of the fault, `stays` how long the guard is watched afterwards.
    """
    reaction = guard.reaction(since)
    assert reaction <= guard.limit, f"{reaction:.2f} s; the guard says {guard.reasons[-1:]}"
    assert guard.stays_unsafe(stays), f"safe again; the guard says {guard.reasons[-1:]}"
    return reaction

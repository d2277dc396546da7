"""Whether the figures are within what the bundle's manifest promises.

The reference is a sample, so a figure is held against the tolerance plus the reference's own noise
(`figures`): never silently, both are shown. Where that noise is as large as the tolerance leaves
room, nothing has been shown: the check is undecided, which is no success.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["held", "missed", "undecided", "not asked"]


@dataclass(frozen=True)
class Check:
    """One figure: `limit` is the tolerance with the noise allowed for."""

    name: str
    figure: float
    noise: float
    tolerance: float | None
    limit: float | None
    verdict: Verdict

    @property
    def is_good(self) -> bool:
        return self.verdict in ("held", "not asked")


def checked(figures: Mapping[str, float], tolerances: Mapping[str, float]) -> list[Check]:
    """All that can be asked of a bundle; `tolerances` is `monte_carlo` of its manifest."""
    checks = []
    if "label_agreement" in figures:
        # noise: the share of labels that the reference itself would change
        noise = figures["label_agreement_noise"]
        checks.append(_check("label_agreement", figures, tolerances, noise, most=False))
    noise = figures["std_relative_error_noise"]
    checks.append(_check("std_relative_error", figures, tolerances, noise, most=True))
    noise = 1 - figures["spearman_attainable"]
    checks.append(_check("spearman", figures, tolerances, noise, most=False))
    return checks


def _check(
    name: str, figures: Mapping[str, float], tolerances: Mapping[str, float], noise: float,
    most: bool,
) -> Check:  # fmt: skip
    """`most`: the tolerance is an upper bound; otherwise a lower bound of at most 1."""
    figure, tolerance = figures[name], tolerances.get(name)
    if tolerance is None:
        return Check(name, figure, noise, None, None, "not asked")
    # |a - b| ≤ |a - truth| + |truth - b|: the distance to the truth is within the tolerance if the
    # distance to the reference is within the sum.
    limit = tolerance + noise if most else tolerance - noise
    room = tolerance if most else 1 - tolerance

    def within(bound: float) -> bool:  # False for a figure that is not a number
        return figure <= bound if most else figure >= bound

    if within(tolerance):
        verdict: Verdict = "held"
    elif not within(limit):
        verdict = "missed"
    else:
        verdict = "held" if noise < room else "undecided"
    return Check(name, figure, noise, tolerance, limit, verdict)

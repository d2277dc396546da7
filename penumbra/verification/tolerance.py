"""Whether the figures are within the tolerances of the bundle's manifest.

The reference is a sample, so a figure is compared with the tolerance plus the noise of the
reference; both are shown. Where that noise is as large as the room that the tolerance leaves, the
check is undecided, which is not a success.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from penumbra.verification.figures import NOISE

Verdict = Literal["held", "missed", "undecided", "not asked"]


@dataclass(frozen=True)
class Check:
    """One figure against its tolerance; `limit` is the tolerance with the noise allowed for."""

    name: str
    figure: float
    noise: float
    tolerance: float | None
    limit: float | None
    verdict: Verdict

    @property
    def is_good(self) -> bool:
        """Whether the tolerance is held, or none is stated."""
        return self.verdict in ("held", "not asked")


def checked(figures: Mapping[str, float], tolerances: Mapping[str, float]) -> list[Check]:
    """All checks of a bundle; `tolerances` is `monte_carlo` of its manifest."""
    checks = []
    if "label_agreement" in figures:
        # noise: the share of labels that the reference itself would change
        checks.append(_check("label_agreement", figures, tolerances, is_upper_bound=False))
    checks.append(_check("std_relative_error", figures, tolerances, is_upper_bound=True))
    checks.append(_check("spearman", figures, tolerances, is_upper_bound=False))
    return checks


def _check(
    name: str, figures: Mapping[str, float], tolerances: Mapping[str, float], is_upper_bound: bool
) -> Check:
    """A lower bound is at most 1."""
    figure, noise, tolerance = figures[name], NOISE[name](figures), tolerances.get(name)
    if tolerance is None:
        return Check(name, figure, noise, None, None, "not asked")
    # |a - b| ≤ |a - truth| + |truth - b|: the distance to the truth is within the tolerance if the
    # distance to the reference is within the sum.
    limit = tolerance + noise if is_upper_bound else tolerance - noise
    room = tolerance if is_upper_bound else 1 - tolerance

    def within(bound: float) -> bool:  # False for NaN
        return figure <= bound if is_upper_bound else figure >= bound

    if within(tolerance):
        verdict: Verdict = "held"
    elif not within(limit):
        verdict = "missed"
    else:
        verdict = "held" if noise < room else "undecided"
    return Check(name, figure, noise, tolerance, limit, verdict)

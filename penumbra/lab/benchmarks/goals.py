"""The goals of all benchmarks, and the table that compares measurements with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penumbra.bundle import Bundle

# By key of a goal: the measured number, or why there is none.
Measured = Mapping[str, "float | str"]

NOT_MEASURED = "not yet measured"


@dataclass(frozen=True)
class Goal:
    """One line of the table."""

    key: str
    what: str
    limit: float
    at_least: bool = False
    unit: str = ""  # "": a ratio

    @property
    def text(self) -> str:
        """The limit, as in the table."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}".strip()

    def reached(self, value: float) -> bool:
        """Whether a measured value meets the goal."""
        return value >= self.limit if self.at_least else value <= self.limit


# Kinds of networks: the shipped bundle of each, and its name in the table.
SHIPPED = {
    "class": "segnet-camvid-class",
    "encdec": "segnet-camvid-encdec",
    "monodepth": "monodepth-kitti",
}
_NAMES = {"class": "SegNet class", "encdec": "SegNet encdec", "monodepth": "Monodepth"}
# Forms of the variance, and their permitted cost relative to the network without variance.
_COSTS = {
    "class": {"diagonal": 1.05, "class covariance": 1.3},
    "encdec": {"diagonal": 1.5, "fast": 1.8, "truthful": 3.0},
    "monodepth": {"diagonal": 1.05},
}
_SAMPLED_EAGER = {"class": 10, "encdec": 17, "monodepth": 8}
_SAMPLED = {"class": 15, "encdec": 30, "monodepth": 12}


def _of_kind(kind: str) -> list[Goal]:
    name = _NAMES[kind]
    return [
        *(
            Goal(f"{kind}/{form}", f"{name}, {form}: propagated / deterministic, same runner", most)
            for form, most in _COSTS[kind].items()
        ),
        *(
            Goal(
                f"{kind}/{form}/sampled",
                f"{name}, {form}: MC-50 (prefix computed once) / propagated, both PyTorch eager",
                _SAMPLED_EAGER[kind],
                at_least=True,
            )
            for form in _COSTS[kind]
        ),
        Goal(
            f"{kind}/sampled",
            f"{name}: MC-50 in PyTorch / one frame on the CPU runner",
            _SAMPLED[kind],
            at_least=True,
        ),
        Goal(
            f"{kind}/eager",
            f"{name}: PyTorch eager / CPU runner, both propagated",
            1.5,
            at_least=True,
        ),
    ]


GOALS = {
    goal.key: goal
    for goal in [
        *(goal for kind in SHIPPED for goal in _of_kind(kind)),
        Goal("late", "six convolutions, dropout before the last: propagated / plain, PyTorch", 1.1),
        Goal("early, jacobian", "the same, dropout in front, first-order ReLU, PyTorch", 2.3),
        Goal("early, OpenVINO", "the same, dropout in front, moment ReLU, OpenVINO", 2.2),
        Goal("early, ONNX Runtime", "the same, dropout in front, moment ReLU, ONNX Runtime", 2.2),
        Goal("node", "node end to end / bare model of about 100 ms, 480x360", 1.05),
        Goal("node, overhead", "node's overhead, 480x360, median", 4, unit="ms"),
        Goal("pixels", "growth with the pixels: slope in log-log", 1.05),
        Goal("multiply-adds", "growth with the multiply-adds: slope in log-log", 1.05),
        Goal("cameras", "two cameras / one camera on one engine, frames per second", 0.95, True),
        Goal("encdec/memory", "SegNet encdec: peak memory, propagated / deterministic", 2.0),
        Goal("fleet", "verifying bags on Ray: two workers of one thread / one, speed", 1.7, True),
    ]
}


def network_kind(bundle: Bundle) -> str:
    """The kind of a bundle's network, by which goals are set; other kinds have no goals."""
    variant = bundle.variant
    architecture = variant["architecture"]
    return variant["dropout"] if architecture == "segnet" else architecture


def variance_form(bundle: Bundle) -> str:
    """The form of a bundle's variance, as in the keys of the goals."""
    variance = bundle.variant["variance"]
    if variance == "diagonal":
        return variance
    if variance.endswith("fast"):
        return "fast"
    # Depth has no class covariance: its gains are folded into the weights and cost nothing.
    return {"encdec": "truthful", "class": "class covariance"}.get(network_kind(bundle), "diagonal")


def with_goals(measured: Measured) -> dict[str, float | str]:
    """The measurements that have a goal, in the order of the goals."""
    return {key: measured[key] for key in GOALS if key in measured}


def goal_table(measured: Measured, keys: Iterable[str] = GOALS) -> str:
    """Markdown, as in docs/benchmarks.md."""
    lines = ["| what | goal | measured | reached |", "| --- | --- | --- | --- |"]
    for goal in map(GOALS.__getitem__, keys):
        value = measured.get(goal.key, NOT_MEASURED)
        if isinstance(value, str):
            cells = value, "–"
        else:
            digits = 3 if value < 10 else 1
            shown = f"{value:.{digits}f} {goal.unit}".strip()
            cells = shown, "yes" if goal.reached(value) else "no"
        lines.append(f"| {goal.what} | {goal.text} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)

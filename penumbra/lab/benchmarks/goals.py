"""What is to be reached, in one place, and the table that holds what was measured against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penumbra.bundle import Bundle

# What a measurement found under the key of a goal: a number, or why there is none.
Measured = Mapping[str, "float | str"]

NOT_YET = "not yet measured"


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
        return f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}".strip()

    def reached(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


# Kinds of networks: the shipped bundle of each, and what a user calls it.
SHIPPED = {
    "class": "segnet-camvid-class",
    "encdec": "segnet-camvid-encdec",
    "monodepth": "monodepth-kitti",
}
_NAMES = {"class": "SegNet class", "encdec": "SegNet encdec", "monodepth": "Monodepth"}
# Forms of the variance, and what each may cost over the network without any.
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
    """The kind by which goals are set; an error never, but perhaps a kind without goals."""
    variant = bundle.variant
    architecture = variant["architecture"]
    return variant["dropout"] if architecture == "segnet" else architecture


def variance_form(bundle: Bundle) -> str:
    """Which form of the variance a bundle has, by the name that its cost is known by."""
    variance = bundle.variant["variance"]
    if variance == "diagonal":
        return variance
    if variance.endswith("fast"):
        return "fast"
    # Depth has no classes: gains are all that a calibration adds there, and they cost nothing.
    return {"encdec": "truthful", "class": "class covariance"}.get(network_kind(bundle), "diagonal")


def known(measured: Measured) -> dict[str, float | str]:
    """What there is a goal for, in the order of the goals."""
    return {key: measured[key] for key in GOALS if key in measured}


def table(measured: Measured, keys: Iterable[str] = GOALS) -> str:
    """In Markdown, as docs/benchmarks.md has it; what is missing was not yet measured."""
    lines = ["| what | goal | measured | reached |", "| --- | --- | --- | --- |"]
    for goal in map(GOALS.__getitem__, keys):
        value = measured.get(goal.key, NOT_YET)
        if isinstance(value, str):
            cells = value, "–"
        else:
            digits = 3 if value < 10 else 1
            shown = f"{value:.{digits}f} {goal.unit}".strip()
            cells = shown, "yes" if goal.reached(value) else "no"
        lines.append(f"| {goal.what} | {goal.text} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)

"""The table of goals, and the same table in the documentation."""

from pathlib import Path

import pytest
import tiny_bundles

from penumbra.bundle import load_bundle
from penumbra.lab.benchmarks.goals import (
    GOALS,
    NOT_MEASURED,
    goal_table,
    network_kind,
    variance_form,
)
from penumbra.share import config_folder

PAGE = Path(__file__).parents[3] / "docs" / "benchmarks.md"


def cells(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def test_numbers_are_compared_and_reasons_are_shown():
    measured = {"cameras": 0.949, "pixels": 1.05, "class/sampled": 15.0, "node, overhead": 4.01}
    measured["encdec/fast"] = "not measured: no bundle in this form"
    rows = {row[0]: row[1:] for row in cells(goal_table(measured))}
    assert rows[GOALS["cameras"].what] == ["≥ 0.95", "0.949", "no"]
    assert rows[GOALS["pixels"].what] == ["≤ 1.05", "1.050", "yes"]
    assert rows[GOALS["class/sampled"].what] == ["≥ 15", "15.0", "yes"]
    assert rows[GOALS["node, overhead"].what] == ["≤ 4 ms", "4.010 ms", "no"]
    assert rows[GOALS["encdec/fast"].what][1:] == [measured["encdec/fast"], "–"]
    assert rows[GOALS["multiply-adds"].what][1:] == [NOT_MEASURED, "–"]
    assert len(rows) == len(GOALS) + 2  # head and rule


def test_the_page_has_the_table_that_is_printed():
    """Its numbers are from one run; rows, goals and verdicts must match the code."""
    head = "| what | goal | measured | reached |"
    shown = PAGE.read_text().partition(head)[2].partition("\n\n")[0]
    rows = {row[0]: row[1:] for row in cells(shown) if row[0] != "---"}
    assert list(rows) == [goal.what for goal in GOALS.values()]
    for goal in GOALS.values():
        limit, value, reached = rows[goal.what]
        assert limit == goal.text
        number = value.split()[0].replace(".", "", 1).isdigit()
        expected = ("yes" if goal.reached(float(value.split()[0])) else "no") if number else "–"
        assert reached == expected, goal.what


@pytest.mark.parametrize(
    "name, kind, form",
    [
        ("segnet-street", "encdec", "diagonal"),
        ("segnet-camvid-class", "class", "class covariance"),
        ("segnet-camvid-encdec", "encdec", "truthful"),
    ],
)
def test_every_shipped_bundle_has_goals(name, kind, form):
    bundle = load_bundle(config_folder() / "models" / name)
    assert (network_kind(bundle), variance_form(bundle)) == (kind, form)
    assert f"{kind}/{form}" in GOALS


def test_depth_has_one_form_with_or_without_gains(tmp_path):
    arguments = {"dropout": "final", "rate": 0.2, "width": 0.25}
    model = {"entry_point": "monodepth", "reference": None, "arguments": arguments}
    for variance in ("diagonal", "calibrated"):
        rules = {"relu": "moment", "softmax": "jacobian", "variance": variance}
        bundle = tiny_bundles.depth(tmp_path / variance, model=model, rules=rules)
        assert f"{network_kind(bundle)}/{variance_form(bundle)}" == "monodepth/diagonal"

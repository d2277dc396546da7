"""OK is a conclusion: it takes every condition, and a score."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from penumbra.bundle import OutputSpec
from penumbra.vehicle.monitor import (
    HOLDS,
    Cause,
    CauseVerdict,
    Conditions,
    Direction,
    Fact,
    Level,
    Monitor,
    MonitorSettings,
    conclude,
)
from penumbra.vehicle.monitor.frozen import FrozenImage
from penumbra.vehicle.output_check import OutputError, check_outputs
from penumbra.vehicle.repeated_output import RepeatedOutput

ROOT = Path(__file__).resolve().parents[2]
GOOD = CauseVerdict(Cause.UNCERTAINTY, Level.OK, 0.1, 0.5, Direction.ABOVE, "")
CONDITIONS = [field.name for field in fields(Conditions)]


def test_all_conditions_and_a_good_score_are_ok():
    causes = conclude(Conditions.assumed(), [GOOD])
    assert {cause.level for cause in causes} == {Level.OK}


@pytest.mark.parametrize("name", CONDITIONS)
def test_an_unknown_condition_is_not_ok(name):
    causes = conclude(replace(Conditions.assumed(), **{name: None}), [GOOD])
    assert (causes[0].level, causes[0].reason) == (Level.STALE, f"{name} is unknown")


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("level", [level for level in Level if level is not Level.OK])
def test_a_condition_that_does_not_hold_decides(name, level):
    causes = conclude(replace(Conditions.assumed(), **{name: Fact(level, "why")}), [GOOD])
    assert (causes[0].level, causes[0].reason) == (level, "why")
    assert causes[0].cause is (Cause.CAMERA if name == "camera" else Cause.INPUT)


def test_without_a_score_nothing_is_ok():
    assert conclude(Conditions.assumed(), [])[0].level is Level.STALE
    assert conclude(Conditions(), [GOOD])[0].level is Level.STALE


def test_ok_is_the_least_urgent_and_stale_the_most():
    order = sorted(Level, key=lambda level: level.urgency)
    assert order[0] is Level.OK and order[-1] is Level.STALE


@pytest.mark.parametrize("score", [math.nan, math.inf])
@pytest.mark.parametrize("threshold", [0.5, None])
def test_a_non_finite_score_is_never_ok(score, threshold):
    monitor = Monitor(MonitorSettings(threshold, threshold))
    monitor.start(0.0)
    values = np.full((4, 4), score, np.float32)
    assert monitor.judge(values, 0.0, Conditions.assumed()).level is not Level.OK


def test_a_frozen_image_thaws_with_the_next_new_one():
    frozen = FrozenImage()
    assert frozen.update(1, 0.0, 1.0) is HOLDS
    assert frozen.update(1, 0.9, 1.0) is HOLDS
    assert frozen.update(1, 1.0, 1.0).level is Level.STALE
    assert frozen.update(1, 5.0, 0.0) is HOLDS  # no limit
    assert frozen.update(2, 5.0, 1.0) is HOLDS


def spec(name: str, role: str, dtype: str = "float32") -> OutputSpec:
    return OutputSpec(name, dtype, (None, None), "", "1", False, role)


SPECS = [
    spec("labels", "prediction", "uint8"),
    spec("uncertainty", "uncertainty"),
    spec("confidence", "confidence"),
    spec("entropy", "map"),
]


def outputs(**changes):
    good = {
        "labels": np.zeros((2, 3), np.uint8),
        "uncertainty": np.full((2, 3), 0.1, np.float32),
        "confidence": np.full((2, 3), 0.9, np.float32),
        "entropy": np.zeros((2, 3), np.float32),
    }
    return good | changes


def test_good_outputs_pass():
    check_outputs(outputs(), SPECS, (2, 3), 4)


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("uncertainty", np.nan, "6 non-finite of 6"),
        ("entropy", np.inf, "non-finite"),  # also a map that is not judged
        ("uncertainty", -1.0, "negative"),
        ("uncertainty", 0.0, "0 in every pixel"),
        ("confidence", 1.1, "from 0 to 1"),
        ("labels", 4, "there are 4 classes"),
    ],
)
def test_values_out_of_range_are_refused(name, value, words):
    wrong = np.full_like(outputs()[name], value)
    with pytest.raises(OutputError, match=words):
        check_outputs(outputs(**{name: wrong}), SPECS, (2, 3), 4)


def test_a_disparity_that_is_infinite_or_negative_is_refused():
    specs = [spec("disparity", "prediction")]
    for value in (np.inf, -0.1):
        with pytest.raises(OutputError):
            check_outputs({"disparity": np.full((2, 3), value, np.float32)}, specs, (2, 3), 0)


def test_outputs_of_another_image_are_refused_and_those_of_the_same_are_not():
    repeated = RepeatedOutput()
    first, second = outputs(), outputs(uncertainty=np.full((2, 3), 0.2, np.float32))
    repeated.check(1, first)
    repeated.check(1, first)  # the same image again
    repeated.check(2, second)
    with pytest.raises(OutputError, match="an earlier image"):
        repeated.check(3, first)


def test_every_situation_in_the_documentation_has_its_test():
    text = (ROOT / "docs" / "fail-safe.md").read_text()
    (table,) = re.findall(r"<!-- situations -->\n(.*?)\n<!-- /situations -->", text, re.DOTALL)
    named = set(re.findall(r"`(test_\w+)`", table))
    files = (ROOT / "tests" / "vehicle" / "node").glob("test_fail_safe_*.py")
    tests = {name for file in files for name in re.findall(r"def (test_\d+_\w+)", file.read_text())}
    assert named == tests - {"test_5_every_fault_of_the_stub_has_a_row"}
    rows = {int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert rows == set(range(1, 13))

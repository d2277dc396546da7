"""Facts are written as JSON and read back, also those of earlier versions; times are in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from penumbra.verification.bag_verification import _speed
from penumbra.verification.facts import VerificationFacts
from penumbra.verification.overview import BagRow

# Written when the facts were a plain dictionary, with curves of three values.
OLD = Path(__file__).with_name("old_figures.json")


@pytest.fixture
def old():
    return json.loads(OLD.read_text())


def test_old_results_are_read_and_written_as_they_were(old):
    facts = VerificationFacts.from_dict(old)
    mark, warnings = old.pop("mark"), old.pop("warnings")
    assert (len(mark), warnings) == (64, [])
    # Through JSON: its keys are strings.
    assert json.loads(json.dumps(facts.to_dict())) == old
    assert VerificationFacts.from_dict(facts.to_dict()) == facts


def test_facts_of_an_old_result(old):
    facts = VerificationFacts.from_dict(old)
    assert not facts.passed
    assert [check.name for check in facts.checks] == [check["name"] for check in old["checks"]]
    assert facts.per_frame[1].time_s == pytest.approx(0.2)
    assert facts.per_frame[1].figures["spearman"] == old["per_frame"][1]["spearman"]
    assert facts.sparsification["propagated"].oracle == old["calibration"]["propagated"]["oracle"]
    assert facts.speed.monte_carlo_s[8] == old["speed"]["monte_carlo_s"]["8"]
    assert facts.bundle.gains == old["bundle"]["calibration"]
    row = BagRow.of(Path("a"), "a-1", facts, ["late"]).to_dict()
    assert row["verdict"] == "missed"
    assert row["figures"]["infer_ms"] == pytest.approx(old["speed"]["node_infer_s"] * 1e3)
    assert row["warnings"] == ["late"]
    assert "frames" not in BagRow.failed(Path("a"), "a-1", "damaged").to_dict()


@pytest.mark.parametrize("missing", ["bag", "figures", "per_frame", "speed"])
def test_incomplete_facts_are_an_error(old, missing):
    del old[missing]
    with pytest.raises(KeyError):
        VerificationFacts.from_dict(old)


def test_speed_leaves_out_the_first_frame_and_extrapolates_from_the_time_of_a_sample():
    times = [(900.0, 990.0), (20.0, 26.0), (40.0, 46.0), (25.0, 31.0)]
    frames = [SimpleNamespace(infer_ms=infer, total_ms=total) for infer, total in times]
    references = SimpleNamespace(samples=300, seconds_per_frame=lambda image: (0.5, 0.01))
    speed = _speed(SimpleNamespace(frames=frames), references, np.zeros((6, 8, 3), np.uint8))
    assert (speed.node_infer_s, speed.node_total_s) == pytest.approx((0.025, 0.031))
    assert speed.monte_carlo_s == pytest.approx({50: 1.0, 300: 3.5})
    assert speed.times_faster == pytest.approx({50: 40.0, 300: 140.0})
    assert (speed.height, speed.width) == (6, 8)
    alone = _speed(SimpleNamespace(frames=frames[:1]), references, np.zeros((6, 8, 3), np.uint8))
    assert alone.node_infer_s == pytest.approx(0.9)

"""The benchmark of the guard injects every kind of fault; the figures are not judged here."""

from __future__ import annotations

import json

import pytest

from penumbra.cli.main import main
from penumbra.replay import guard_benchmark
from penumbra.replay.guard_benchmark import ReactionTimes, reaction_table


@pytest.mark.slow
def test_every_kind_of_fault_is_injected(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(guard_benchmark, "LEAST", 1)
    file = tmp_path / "guard.json"
    assert main(["benchmark", "guard", "--repetitions", "1", "--json", str(file)]) == 0
    found = json.loads(file.read_text())["guard"]
    assert len(found) == 6
    assert {line["injected"] for line in found} == {1}
    assert all(0 < line["median"] == line["largest"] for line in found)
    assert capsys.readouterr().out.startswith("| the perception node |")


def test_a_late_reaction_is_named():
    lines = [ReactionTimes("stops", 30, 0.5, 0.6, 1.7), ReactionTimes("hangs", 30, 0.5, 1.8, 1.7)]
    assert [line.in_time for line in lines] == [True, False]
    rows = reaction_table(lines).splitlines()
    assert rows[2:] == [
        "| stops | 30 | 0.500 | 0.600 | 1.70 |",
        "| hangs | 30 | 0.500 | 1.800, too late | 1.70 |",
    ]

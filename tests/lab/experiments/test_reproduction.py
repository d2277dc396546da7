"""Experiments are found by their files, measured once, drawn and described each time."""

import json
import shutil
from types import ModuleType

import pytest

from penumbra.errors import PenumbraError
from penumbra.lab import experiments
from penumbra.lab.experiments.reporting import markdown, report, reproduction
from penumbra.lab.experiments.reporting.record import read_record
from penumbra.lab.experiments.reporting.report import write_report
from penumbra.lab.experiments.reporting.reproduction import reproduce
from penumbra.lab.figure_style import axes_grid


@pytest.fixture
def toy(monkeypatch):
    """An experiment that counts how often it is measured, in place of every other."""
    module = ModuleType("toy", "A toy.\n\nDetails.")
    module.NEEDS, module.measured = "toys", []

    def measure(setting):
        module.measured.append(setting.seed)
        return {"value": setting.seed + 0.5}

    def draw(result):
        figure, ((axes,),) = axes_grid(1, 1, (2, 2))
        axes.plot([0, result["value"]])
        return figure

    module.measure, module.draw = measure, draw
    module.table = lambda result: f"value {result['value']}"
    for user in (reproduction, report):
        monkeypatch.setattr(user, "load_experiment", lambda name: module)
    return module


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data" / "toys").mkdir(parents=True)
    return tmp_path / "data"


def test_every_file_is_a_complete_experiment():
    assert {"diagonal", "similar-cost", "synthetic", "uci"} <= set(experiments.names())
    for name in experiments.names():
        module = reproduction.load_experiment(name)
        assert module.NEEDS is None or isinstance(module.NEEDS, str)
        assert all(callable(getattr(module, part)) for part in ("measure", "draw", "table"))
        assert 10 < len(reproduction.experiment_title(name)) < 100


def test_stored_results_are_not_measured_again(toy, data, tmp_path):
    out = tmp_path / "out"
    (record,) = reproduce(["toy"], data, out)
    assert read_record(out / "toy" / "result.json") == record
    assert record.figures == {"value": 0.5}
    stored = json.loads((out / "toy" / "result.json").read_text())
    assert stored["figures"] == {"value": 0.5} and stored["seed"] == 0
    assert "bundles" not in stored
    figure = (out / "toy" / "figure.png").read_bytes()
    assert figure.startswith(b"\x89PNG")
    assert (out / "toy" / "table.md").read_text() == "value 0.5\n"
    (out / "toy" / "figure.png").unlink()
    reproduce(["toy"], data, out)
    assert toy.measured == [0]
    assert (out / "toy" / "figure.png").read_bytes() == figure  # drawn again, the same bytes
    reproduce(["toy"], data, out, seed=3)
    reproduce(["toy"], data, out, seed=3, again=True)
    assert toy.measured == [0, 3, 3]


def test_other_weights_are_measured_again(toy, data, tmp_path, small_bundle):
    bundle = tmp_path / "bundle"
    toy.BUNDLES = {"network": str(bundle)}
    for kind, times in (("encdec", 1), ("encdec", 1), ("class", 2), ("class", 2)):
        shutil.rmtree(bundle, ignore_errors=True)
        shutil.copytree(small_bundle(kind), bundle)
        reproduce(["toy"], data, tmp_path / "out")
        assert len(toy.measured) == times


def test_report_binds_everything(toy, data, tmp_path):
    records = reproduce(["toy"], data, tmp_path / "out", seed=7)
    text = write_report(tmp_path / "out", records).read_text()
    assert "penumbra reproduce all --data DIR --out DIR --seed 7" in text
    assert "## A toy\n\n![A toy](toy/figure.png)\n\nvalue 7.5" in text
    assert "torch 2" in text
    assert str(tmp_path) not in text


@pytest.fixture
def with_panel(toy):
    """The toy also has a panel."""
    toy.shown = []

    def panel(setting, result):
        toy.shown.append(setting.seed)
        return toy.draw(result)

    toy.panel = panel
    return toy


def test_a_panel_is_made_once_and_may_be_left_out(with_panel, data, tmp_path):
    out = tmp_path / "out"
    panel = out / "toy" / "panel.png"
    records = reproduce(["toy"], data, out, panels=False)
    assert not panel.exists()
    assert "`penumbra reproduce toy --data DIR --out DIR` writes `toy/panel.png`" in (
        write_report(out, records).read_text()
    )
    for _ in range(2):
        records = reproduce(["toy"], data, out)
    assert panel.read_bytes().startswith(b"\x89PNG")
    assert with_panel.shown == [0]  # made for the stored figures
    assert "](toy/panel.png)" in write_report(out, records).read_text()
    assert "](toy/panel.png)" not in write_report(out, records, panels=False).read_text()
    reproduce(["toy"], data, out, again=True)
    assert with_panel.shown == [0, 0]  # new figures, new panel


def test_a_missing_bundle_is_reported_before_anything_is_measured(toy, data, tmp_path):
    toy.BUNDLES = {"network": "segnet-street", "other": "no-such-bundle"}
    with pytest.raises(PenumbraError, match="^toy needs the bundle no-such-bundle: train and"):
        reproduce(["toy"], data, tmp_path)
    assert toy.measured == []


def test_missing_data_is_reported_before_anything_is_measured(toy, tmp_path):
    with pytest.raises(PenumbraError, match=r"--data is missing: toy needs toys/"):
        reproduce(["toy"], None, tmp_path)
    with pytest.raises(PenumbraError, match=r"toy needs toys/"):
        reproduce(["toy"], tmp_path, tmp_path)
    assert toy.measured == []


def test_a_broken_result_is_reported(toy, data, tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "result.json").write_text("{")
    with pytest.raises(PenumbraError, match="cannot read .*result.json.*--again"):
        reproduce(["toy"], data, tmp_path)


def test_markdown():
    table = markdown.rows(["a", "b"], [[1, "x"]])
    assert table == "| a | b |\n| --- | --- |\n| 1 | x |"
    assert markdown.with_error(3.128, 0.2249) == "3.13 ± 0.22"

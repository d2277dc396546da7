"""`penumbra reproduce` with the smallest experiment, and its error messages."""

import json

import pytest

from penumbra.cli.main import main
from penumbra.lab.experiments import synthetic


@pytest.fixture
def quick(monkeypatch):
    """The synthetic experiment with a hundredth of the work."""
    train = synthetic.train
    monkeypatch.setattr(synthetic, "train", lambda seed: train(seed, steps=20))
    curve = synthetic.convergence
    monkeypatch.setattr(synthetic, "convergence", lambda model, x: curve(model, x, (10, 30, 100)))


def test_synthetic_writes_result_figure_and_table(quick, tmp_path, capsys):
    assert main(["reproduce", "synthetic", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "mean standard deviation on [0, 20]" in printed
    folder = tmp_path / "synthetic"
    assert str(folder / "figure.png") in printed
    result = json.loads((folder / "result.json").read_text())
    assert result["seed"] == 0
    assert result["threads"] == 1
    assert len(result["figures"]["convergence"]["difference"]) == 3
    assert not (tmp_path / "REPORT.md").exists()  # only with `all`


def test_a_mistake_is_one_line(tmp_path, capsys):
    assert main(["reproduce", "uci", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "penumbra reproduce: --data is missing: uci needs uci/\n"
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "nothing", "--out", str(tmp_path)])
    assert "invalid choice: 'nothing'" in capsys.readouterr().err

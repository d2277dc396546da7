"""`penumbra evaluate segnet`: the figures, by each method of prediction."""

from __future__ import annotations

import json
from pathlib import Path

from penumbra.cli.main import main
from penumbra.offline.models import load_model, save_model
from penumbra.offline.models.segnet import SegNet

TINY = "--width 0.0625 --dropout-rate 0.2 --crop 64x32 --batch 4 --warmup 3 --threads 1 --rate 3e-3"


def training(folder: Path, data: Path, *more: str) -> list[str]:
    return ["train", "segnet", "--data", str(data), "--run", str(folder), *TINY.split(), *more]


def test_evaluate_prints_the_figures(blocks, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(training(run, blocks, "--steps", "1", "--withhold", "pedestrian,bicyclist")) == 0
    capsys.readouterr()
    words = ["evaluate", "segnet", str(run / "best"), "--data", str(blocks), "--split", "test"]
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["frames"] == 2 and result["method"] == "deterministic"
    assert len(result["classes"]) == 9 and "pedestrian" not in result["classes"]
    assert 0 <= result["mean_iou"] <= result["class_average"] <= 1
    assert main(words) == 0
    assert "mean iou" in capsys.readouterr().out


def test_evaluate_by_sampling_and_by_propagation(blocks, tmp_path, capsys):
    """With next to no dropout the three predictions are one; with some, each still answers."""
    run = tmp_path / "run"
    assert main(training(run, blocks, "--steps", "3")) == 0
    model = load_model(run / "best")
    for name, rate in (("faint", 1e-9), ("strong", 0.5)):
        other = SegNet(**(model.config | {"dropout": "class", "rate": rate}))
        other.load_state_dict(model.state_dict())
        save_model(other, tmp_path / name)
        results = []
        for method in ("deterministic", "monte-carlo", "propagated"):
            words = ["evaluate", "segnet", str(tmp_path / name), "--data", str(blocks), "--json"]
            capsys.readouterr()
            assert main([*words, "--method", method, "--samples", "3"]) == 0
            result = json.loads(capsys.readouterr().out)
            assert result["method"] == method and result.get("samples") in (None, 3)
            results.append(result["classes"])
        if name == "faint":
            assert results[0] == results[1] == results[2]

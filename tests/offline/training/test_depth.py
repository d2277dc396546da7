"""Training of depth: resumption, learning, invalid arguments, rendered pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from penumbra.bundle import DepthSpec
from penumbra.cli.main import main
from penumbra.offline.datasets.kitti import find_pairs
from penumbra.offline.evaluation.depth import depth_errors_of, depth_predictor
from penumbra.offline.models import load_model
from penumbra.offline.models.monodepth import Monodepth
from penumbra.offline.training.state import load_state

SCALE = DepthSpec(baseline_m=0.54, focal_per_width=721.5 / 1242, max_depth_m=80.0)
TINY = "--width 0.03125 --size 128x128 --batch 2 --warmup 2 --threads 1 --decay-steps 0 --known 1"


def begin(folder: Path, data: Path, *more: str) -> list[str]:
    words = ["train", "monodepth", "--data", str(data), "--run", str(folder)]
    return [*words, *TINY.split(), "--zoom", "1,1.2", "--grey", "0.5", *more]


@pytest.mark.slow
def test_a_run_in_two_parts_ends_with_the_same_weights(street_pairs, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(begin(whole, street_pairs, "--steps", "4")) == 0
    assert main(begin(parts, street_pairs, "--steps", "2")) == 0
    assert main(["train", "monodepth", "--run", str(parts), "--steps", "4"]) == 0
    one, two = load_state(whole), load_state(parts)
    assert one["step"] == two["step"] == 4
    for kind in ("model", "average"):
        for name, value in one[kind].items():
            assert torch.equal(value, two[kind][name]), f"{kind} {name}"
    model = load_model(whole / "last")
    assert model.config["depth"]["baseline_m"] == 0.54 and model.config["size"] == [128, 128]


@pytest.mark.slow
def test_training_reduces_the_error(street_pairs, tmp_path):
    """The error on the held-out pair and the loss decrease.

    Ten pairs and sixty steps of the narrowest network (measured: the loss from 3.9 to 3.2; with a
    wrong sign in the geometry it would not learn).
    """
    words = begin(tmp_path / "run", street_pairs, "--steps", "60", "--rate", "3e-3")
    more = ["--batch-norm", "--average", "0.8", "--validate-every", "30", "--log-every", "10"]
    assert main([*words, *more, "--grey", "0", "--zoom", "1,1"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
    untrained = Monodepth(width=1 / 32, size=(128, 128))
    held_out = find_pairs(street_pairs)[9:]
    before = depth_errors_of(depth_predictor(untrained.eval()), held_out, SCALE).summary()
    after = lines[-1]["validation"]
    assert after["abs_rel"] < before["abs_rel"] and after["a1"] > before["a1"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--size", "200x128"], "multiples of 128"),
        (["--encoder", "vit"], "unknown encoder 'vit'"),
        (["--zoom", "0.5,1"], "--zoom 0.5,1: give at least 1"),
        (["--baseline", "0.12"], "baseline of 0.540 m, --baseline is 0.12"),
        (["--validation", "{data}/left"], "no measured depth in"),
    ],
)
def test_invalid_arguments_are_named(street_pairs, tmp_path, capsys, more, text):
    words = begin(tmp_path / "run", street_pairs, "--steps", "1")
    more = [word.format(data=street_pairs) for word in more]
    assert main([*words, *more]) == 2
    assert text in capsys.readouterr().err


def test_without_data_the_error_names_both_options(tmp_path, capsys):
    assert main(["train", "monodepth", "--run", str(tmp_path / "run"), "--width", "0.03"]) == 2
    error = capsys.readouterr().err
    assert "--data FOLDER" in error and "--rendered N" in error


def test_bad_frames_stop_the_run_or_are_counted(street_pairs, tmp_path, capsys):
    for place in ("left", "right"):
        (tmp_path / place).mkdir()
        for file in (street_pairs / place).iterdir():
            (tmp_path / place / file.name).write_bytes(file.read_bytes())
    (tmp_path / "right" / "000003.png").write_bytes(b"rubbish")
    words = begin(tmp_path / "run", tmp_path, "--steps", "1")
    assert main(words) == 2
    assert "000003.png is not a complete" in capsys.readouterr().err
    assert main([*words, "--skip-bad"]) == 0
    output = capsys.readouterr()
    assert "skipped 1 of 10 frames" in output.out and "000003.png" in output.err


@pytest.mark.slow
def test_rendered_pairs_come_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENUMBRA_CACHE", str(tmp_path / "cache"))
    words = ["train", "monodepth", "--rendered", "10", "--run", "a", *TINY.split(), "--steps", "1"]
    assert main(words) == 0
    (folder,) = (tmp_path / "cache" / "rendered").iterdir()
    assert len(find_pairs(folder)) == 10
    assert (tmp_path / "cache" / "runs" / "a" / "state.pt").is_file()
    times = {file: file.stat().st_mtime_ns for file in folder.rglob("*.png")}
    assert main(["train", "monodepth", "--run", "a", "--steps", "2"]) == 0
    assert times == {file: file.stat().st_mtime_ns for file in folder.rglob("*.png")}

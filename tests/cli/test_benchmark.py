"""The benchmark's machinery; what it measures is judged by people, not by the suite."""

import json

import pytest
import tiny_bundles
import torch

from penumbra.cli.main import main
from penumbra.export import ExportOptions, export_bundle
from penumbra.models import save_model
from penumbra.models.segnet import SegNet


@pytest.mark.slow
def test_runner_compares_a_bundle_with_its_plain_network_and_with_sampling(tmp_path, capsys):
    torch.manual_seed(0)
    model = SegNet(["road", "sky", "car"], 0.0625, "class", 0.2).eval()
    save_model(model, tmp_path / "model")
    export_bundle(tmp_path / "model", tmp_path / "bundle", ExportOptions(64, 96))
    figures = tmp_path / "figures.json"
    words = f"--bundle {tmp_path / 'bundle'} --runner onnxruntime --size 96x64"
    how = f"--repetitions 2 --samples 3 --json {figures}"
    assert main(["benchmark", "runner", *words.split(), *how.split()]) == 0
    printed = capsys.readouterr().out
    assert "first frame" in printed
    result = json.loads(figures.read_text())
    assert result["first_frame"]["megabytes"] > 20  # Python and numpy alone
    pairs = {(line["over"], line["under"]): line["ratio"] for line in result["comparisons"]}
    assert ("propagated", "plain") in pairs
    assert ("PyTorch, MC-3", "propagated") in pairs
    # No figure is judged here, only that each pair was measured.
    assert all(0 < value < 1e4 for value in pairs.values())
    assert result["machine"]["threads"] == 0  # as the node has it: one per core
    assert "all threads" in result["first_frame"]["runner"]


def test_node_s_overhead_is_what_its_stages_add_up_to(tmp_path, capsys):
    bundle = tiny_bundles.depth(tmp_path / "depth")
    figures = tmp_path / "figures.json"
    words = f"--bundle {bundle.path} --runner onnxruntime --size 48x36 --repetitions 10"
    assert main(["benchmark", "node", *words.split(), "--json", str(figures)]) == 0
    assert "node's overhead" in capsys.readouterr().out
    node = json.loads(figures.read_text())["node"]
    stages = [node[f"{stage}_p50"] for stage in ("wait", "convert", "postprocess", "publish")]
    assert 0 < max(stages) < node["overhead_p50"] <= node["overhead_p99"]
    assert node["runner"].startswith("onnxruntime")


def test_runner_asks_for_a_bundle(capsys):
    assert main(["benchmark", "runner"]) != 0
    assert "--bundle is missing" in capsys.readouterr().err

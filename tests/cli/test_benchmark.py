"""Every benchmark runs and reports its figures; the suite does not judge them."""

import copy
import json

import pytest
import tiny_bundles
import torch
from exported_networks import network, street
from small_drives import write_png

from penumbra.bundle import MODEL, WEIGHTS, write_bundle
from penumbra.cli.main import main
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.offline.models import save_model
from penumbra.offline.models.segnet import SegNet


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
    assert ("propagated", "deterministic") in pairs
    assert ("PyTorch, MC-3", "propagated") in pairs
    assert ("PyTorch, MC-3", "PyTorch, propagated") in pairs
    assert ("plain diagonal", "deterministic") not in pairs  # the bundle is diagonal already
    # Goals of sampling are for 50 samples; these were three.
    assert set(result["measured"]) == {"class/diagonal", "class/eager"}
    assert "| SegNet class, diagonal: propagated / deterministic, same runner | ≤ 1.05 |" in printed
    # Only that each pair was measured.
    assert all(0 < value < 1e4 for value in pairs.values())
    assert result["machine"]["threads"] == 0  # one per core, as in the node
    assert "all threads" in result["first_frame"]["runner"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    save_model(network("encdec"), folder / "model")
    return export_bundle(folder / "model", folder / "bundle", ExportOptions(67, 101))


@pytest.fixture
def parity_of(exported, tmp_path, capsys):
    """`parity_of(model)` measures the exported graph as if it were that of `model`."""
    for seed in range(3):
        write_png(tmp_path / "images" / f"{seed}.png", street(80, 120, seed))

    def measure(model):
        save_model(model, tmp_path / "model")
        manifest = {k: v for k, v in exported.manifest.items() if k not in ("schema", "files")}
        contents = {MODEL: exported.model_file, WEIGHTS: tmp_path / "model" / WEIGHTS}
        write_bundle(tmp_path / "bundle", manifest, contents)
        words = f"--bundle {tmp_path / 'bundle'} --images {tmp_path / 'images'} --frames 2"
        figures = tmp_path / "figures.json"
        assert main(["benchmark", "parity", *words.split(), "--json", str(figures)]) == 0
        return json.loads(figures.read_text())["parity"], capsys.readouterr().out

    return measure


@pytest.mark.slow
def test_parity_of_a_graph_with_its_own_network(parity_of):
    found, printed = parity_of(network("encdec"))
    assert {(one["runner"], one["image"]) for one in found} == {
        (runner, image) for runner in ("onnxruntime", "openvino") for image in ("0.png", "1.png")
    }
    for one in found:
        assert (one["height"], one["width"]) == (67, 101)
        assert one["aligned"]["prediction"] >= 0.9999
        assert one["aligned"]["uncertainty"] >= 0.999
        assert one["windows"] > 10_000
        # Values of order one, sums of up to 4,608 rounded products: √4608 · 6e-8 = 4e-6.
        assert one["widest"] <= 1e-5
    assert "missed" not in printed


@pytest.mark.slow
def test_no_parity_of_a_graph_with_another_network(parity_of):
    """A thousandth more of the last layer: labels stay, the uncertainty of every pixel does not."""
    other = copy.deepcopy(network("encdec"))
    with torch.no_grad():
        other.classifier.weight *= 1.001
    found, printed = parity_of(other)
    for one in found:
        assert one["free"]["prediction"] > 0.99
        assert one["free"]["uncertainty"] < 0.5
        assert one["aligned"]["uncertainty"] < 0.5
    assert printed.count("missed") == len(found)


@pytest.mark.parametrize(
    "words, message",
    [
        ("", "--images is missing"),
        ("--images none --bundle none", "no bundle at none"),
        ("--images none --bundle none --frames 0", "--frames is 0"),
    ],
)
def test_mistakes_in_parity_are_reported(capsys, words, message):
    assert main(["benchmark", "parity", *words.split()]) != 0
    assert message in capsys.readouterr().err


def test_the_node_s_overhead_is_the_sum_of_its_stages(tmp_path, capsys):
    bundle = tiny_bundles.depth(tmp_path / "depth")
    figures = tmp_path / "figures.json"
    words = f"--bundle {bundle.path} --runner onnxruntime --size 48x36 --repetitions 10"
    assert main(["benchmark", "node", *words.split(), "--json", str(figures)]) == 0
    assert "node's overhead" in capsys.readouterr().out
    node = json.loads(figures.read_text())["node"]
    stages = [node[f"{stage}_p50"] for stage in ("wait", "convert", "postprocess", "publish")]
    assert 0 < max(stages) < node["overhead_p50"] <= node["overhead_p99"]
    assert node["runner"].startswith("onnxruntime")
    assert node["infer_p50"] < node["total_p50"] < node["round_trip_p50"]
    assert 0 < node["bare_p50"] <= node["bare_p99"]


def test_two_cameras_on_one_engine_are_compared_with_one(tmp_path, capsys):
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    figures = tmp_path / "figures.json"
    words = f"--bundle {bundle.path} --runner onnxruntime --repetitions 6 --size 48x36"
    how = f"--json {figures} --plot {tmp_path / 'plot.png'}"
    assert main(["benchmark", "cameras", *words.split(), *how.split()]) == 0
    found = json.loads(figures.read_text())["cameras"]
    assert found["rounds"] == 3
    assert found["runner"].startswith("onnxruntime")
    # Only that both were measured.
    assert found["one_camera_fps"] > 0 and found["two_cameras_fps"] > 0
    assert "| two cameras / one camera on one engine" in capsys.readouterr().out
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_memory_is_compared_with_the_network_without_noise(exported, tmp_path, capsys):
    figures = tmp_path / "figures.json"
    words = f"--bundle {exported.path} --runner onnxruntime --repetitions 1 --size 101x67"
    assert main(["benchmark", "memory", *words.split(), "--json", str(figures)]) == 0
    found = json.loads(figures.read_text())
    memory = found["memory"]
    assert memory["processes"] == 3
    # Python with numpy and the runtime is in both; the variance takes some memory, never gives it.
    assert 20 < memory["deterministic_mib"] < memory["propagated_mib"] < 2000
    assert found["measured"] == {"encdec/memory": memory["ratio"]}


def test_runner_asks_for_a_bundle(capsys):
    assert main(["benchmark", "runner"]) != 0
    assert "--bundle is missing" in capsys.readouterr().err

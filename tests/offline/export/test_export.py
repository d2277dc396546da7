"""`penumbra export`: the bundle it writes, and invalid arguments."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exported_networks import network, run, street

from penumbra.bundle import DepthSpec, InputSpec, load_bundle
from penumbra.cli.main import main
from penumbra.errors import PenumbraError
from penumbra.offline.datasets.camvid_classes import CLASSES
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.offline.export.classes import SEGNET_PALETTE, classes_with_colours
from penumbra.offline.models import save_model
from penumbra.offline.models.network import normalise
from penumbra.offline.models.segnet import SegNet
from penumbra.propagation import propagate
from penumbra.verification.parity import within


@pytest.fixture
def checkpoint(tmp_path):
    provenance = {"seed": 3, "data": "CamVid", "step": 7}
    return save_model(network("class"), tmp_path / "run" / "best", provenance).parent


@pytest.mark.slow
def test_from_the_command_line(checkpoint, tmp_path, capsys):
    out = tmp_path / "street"
    size = ["--height", "67", "--width", "101"]
    assert main(["export", str(checkpoint), "--out", str(out), *size, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    bundle = load_bundle(out)
    assert result["sha256"] == bundle.sha256
    assert (bundle.name, bundle.task, bundle.precision) == ("street", "segmentation", "fp32")
    assert bundle.input == InputSpec("image", 67, 101, "bgr")
    assert [c.name for c in bundle.classes] == list(CLASSES)
    assert [c.colour for c in bundle.classes] == list(SEGNET_PALETTE.values())
    assert bundle.weights_file.read_bytes() == (checkpoint / "weights.safetensors").read_bytes()
    variant = bundle.variant
    assert (variant["dropout"], variant["rate"], variant["relu"]) == ("class", 0.2, "moment")
    provenance = bundle.manifest["provenance"]
    assert (provenance["seed"], provenance["data"]) == (3, "CamVid")
    assert provenance["training"]["step"] == 7
    assert provenance["command"].startswith("penumbra export best --out street --height 67")
    found = run(bundle, street(67, 101))
    assert list(found) == [output.name for output in bundle.outputs]


@pytest.mark.slow
def test_channel_order(exported):
    image = street(67, 101)
    bgr = run(exported("class", height=67, width=101), image)
    flipped = np.ascontiguousarray(image[..., ::-1])
    rgb = run(exported("class", height=67, width=101, channel_order="rgb"), flipped)
    for name, value in bgr.items():
        assert np.array_equal(value, rgb[name])
    assert not np.array_equal(bgr["labels"], run(exported("class"), flipped)["labels"])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"height": 67, "width": 101}], ids=["dynamic", "fixed"])
def test_depth_is_computed_at_the_network_size_and_output_at_the_image_size(exported, options):
    bundle = exported("monodepth", **options)
    assert bundle.depth == DepthSpec(0.54, 0.58, 80.0)
    assert bundle.classes == []
    image = street(67, 101)
    found = run(bundle, image)
    model = network("monodepth")
    rgb = torch.from_numpy(image[..., ::-1].copy())[None]
    with torch.inference_mode():
        x = normalise(rgb, [0, 0, 0], [1, 1, 1])
        x = F.interpolate(x, (128, 256), mode="bilinear", align_corners=False)
        mean, std = (torch.tensor(model.config[k]).view(1, 3, 1, 1) for k in ("mean", "std"))
        result = propagate(model)((x - mean) / std)
        expected = {
            "disparity": F.interpolate(result.mean, (67, 101), mode="bilinear")[0, 0].numpy(),
            "uncertainty": F.interpolate(result.std, (67, 101), mode="bilinear")[0, 0].numpy(),
        }
    for name, value in expected.items():
        assert within(found[name], value, 1e-4, 1e-6) >= 0.999
    assert expected["uncertainty"].mean() > 1e-4  # not trivially zero
    assert found["frame_score"] == pytest.approx(expected["uncertainty"].mean(), rel=1e-4)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the size of the image is missing"),
        (["--dynamic", "--height", "360", "--width", "480"], "give --height and --width"),
        (["--height", "360"], "give both height and width"),
        (["--height", "4", "--width", "480"], "a height of 4 pixels"),
        (["--height", "360", "--width", "100000"], "a width of 100000 pixels"),
    ],
)
def test_invalid_sizes(checkpoint, tmp_path, capsys, arguments, message):
    command = ["export", str(checkpoint), "--out", str(tmp_path / "out"), *arguments]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.strip().count("\n") == 0
    assert not (tmp_path / "out").exists()


def test_no_checkpoint(tmp_path, capsys):
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "out"), "--dynamic"]) == 2
    assert "no model at" in capsys.readouterr().err


def test_a_model_without_noise_is_refused(tmp_path):
    save_model(SegNet(CLASSES, width=0.02, dropout="none"), tmp_path / "checkpoint")
    with pytest.raises(PenumbraError, match="no noise source"):
        export_bundle(tmp_path / "checkpoint", tmp_path / "out", ExportOptions(64, 64))
    assert not (tmp_path / "out").exists()


def test_colours():
    entries = classes_with_colours(["road", "snow", "sky", "dragon"])
    assert entries[0] == {"name": "road", "colour": [128, 64, 128]}
    assert entries[2] == {"name": "sky", "colour": [128, 128, 128]}
    colours = [tuple(entry["colour"]) for entry in classes_with_colours(map(str, range(40)))]
    assert len(set(colours)) == 40

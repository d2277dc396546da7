"""`penumbra fit-gains`, and the bundle of a network with gains: they are in its graph."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
import torch
from exported_networks import network, run, street
from safetensors.torch import save

from penumbra.bundle import load_bundle
from penumbra.cli.main import main
from penumbra.errors import PenumbraError
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.offline.export.frame import Scores
from penumbra.offline.export.walk import walk_of, walk_of_bundle, walk_of_checkpoint
from penumbra.offline.fitting.gains import GainFitOptions, fit_network_gains
from penumbra.offline.gains_file import (
    GAINS,
    VARIANCES,
    Change,
    GainFacts,
    StoredGains,
    load_gains,
    load_gains_of,
    save_gains,
)
from penumbra.offline.models import load_model, save_model
from penumbra.offline.models.network import normalise
from penumbra.propagation import propagate

QUICK = GainFitOptions(views=8, samples=12, steps=40, size=(64, 96))
SIZE = {"height": 64, "width": 96}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A network with several dropouts, with gains fitted on synthetic images."""
    folder = tmp_path_factory.mktemp("fitted")
    save_model(network("encdec"), folder)
    gains, facts = fit_network_gains(folder, [street(96, 128, seed) for seed in range(4)], QUICK)
    save_gains(folder, gains, facts)
    return folder


@pytest.mark.slow
def test_the_fit_improves_the_agreement_on_held_out_views(checkpoint):
    facts = load_gains(checkpoint).facts
    error, ratio = facts.std_relative_error, facts.std_ratio
    assert error.after < error.before
    assert abs(np.log(ratio.after)) < abs(np.log(ratio.before))
    assert facts.images == 4 and len(facts.images_sha256) == 64


@pytest.mark.slow
def test_the_graph_has_the_gains(checkpoint, tmp_path):
    bundle = export_bundle(checkpoint, tmp_path / "bundle", ExportOptions(**SIZE))
    stored = load_gains(checkpoint)
    gains, facts = stored.tensors, stored.facts
    assert load_bundle(bundle.path).manifest["gains"] == facts.to_json()
    assert bundle.variant["variance"] == "calibrated"
    assert (bundle.path / GAINS).read_bytes() == (checkpoint / GAINS).read_bytes()

    image = street(64, 96, seed=9)
    found = run(bundle, image)["uncertainty"]
    model = load_model(checkpoint)
    rgb = torch.from_numpy(np.ascontiguousarray(image[..., ::-1]))
    x = normalise(rgb[None], model.config["mean"], model.config["std"])
    with torch.inference_mode():
        walk = walk_of(model, "segnet", facts.relu, facts.softmax, gains)
        expected = walk(x)[1].std.mean(1)[0].numpy()
        without = walk_of(model, "segnet", facts.relu, facts.softmax)(x)[1].std.mean(1)[0]
    # A pooling may flip between equal values, which moves single pixels: nearly all must agree.
    assert np.mean(np.abs(found - expected) <= 1e-4 * expected + 1e-6) > 0.99
    assert abs(float(without.mean()) / expected.mean() - 1) > 0.05  # the gains do matter


@pytest.mark.slow
def test_a_checkpoint_is_propagated_with_its_gains(checkpoint, tmp_path):
    stored = load_gains(checkpoint)
    rules = stored.facts.relu, stored.facts.softmax
    save_model(load_model(checkpoint), tmp_path)  # the same weights without gains
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    expected = {
        checkpoint: walk_of(load_model(checkpoint), "segnet", *rules, stored.tensors),
        tmp_path: propagate(Scores(load_model(checkpoint))),
    }
    with torch.inference_mode():
        stds = [walk(x)[-1].std for walk in expected.values()]
        found = [walk_of_checkpoint(path, load_model(path))(x)[-1].std for path in expected]
    assert float((stds[0] - stds[1]).abs().mean() / stds[1].mean()) > 0.05  # the gains do matter
    torch.testing.assert_close(found, stds)


@pytest.mark.slow
def test_gains_can_be_ignored(checkpoint, tmp_path):
    bundle = export_bundle(checkpoint, tmp_path / "bundle", ExportOptions(**SIZE), use_gains=False)
    assert bundle.manifest["gains"] is None
    assert GAINS not in bundle.files
    assert bundle.variant["variance"] == "diagonal"


def test_fast_propagates_the_last_dropout_only():
    """The same as a network without the other dropouts."""
    model = network("encdec")
    last_only = network(("decoder3",))
    last_only.load_state_dict(model.state_dict())
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    fast, truthful, expected = (
        walk_of(one, "segnet", "moment", "moment", variance=how)
        for one, how in ((model, "fast"), (model, "truthful"), (last_only, "truthful"))
    )
    with torch.inference_mode():
        found, of_all, of_last = (walk(x)[1].std for walk in (fast, truthful, expected))
    torch.testing.assert_close(found, of_last)
    assert float(of_all.mean()) > 1.01 * float(found.mean())
    assert [type(layer).__name__ for layer in model.dropout.values()] == ["Dropout"] * 6


def test_fast_needs_several_dropouts_and_gains(tmp_path):
    with pytest.raises(PenumbraError, match="only one dropout.*--variance fast"):
        walk_of(network("class"), "segnet", "moment", "moment", variance="fast")
    save_model(network("encdec"), tmp_path)
    with pytest.raises(PenumbraError, match="no gains for '--variance fast'.*fit-gains.*--images"):
        export_bundle(tmp_path, tmp_path / "bundle", ExportOptions(**SIZE, variance="fast"))


@pytest.mark.slow
def test_a_checkpoint_can_have_gains_for_both_variances(checkpoint, tmp_path):
    save_model(load_model(checkpoint), tmp_path / "run")
    for how in VARIANCES:
        images = [street(96, 128, seed) for seed in range(2)]
        options = GainFitOptions(views=3, samples=4, steps=10, size=(64, 96), variance=how)
        save_gains(tmp_path / "run", *fit_network_gains(tmp_path / "run", images, options))
    image, costs = street(64, 96, seed=9), []
    for how, form in (("truthful", "calibrated"), ("fast", "calibrated, fast")):
        options = ExportOptions(**SIZE, variance=how)
        bundle = load_bundle(export_bundle(tmp_path / "run", tmp_path / how, options).path)
        assert bundle.variant["variance"] == form
        assert bundle.manifest["gains"]["variance"] == how
        assert load_gains(bundle.path, how).facts.variance == how
        again = load_bundle(export_bundle(bundle.path, tmp_path / f"{how}-again", options).path)
        assert again.manifest["gains"] == bundle.manifest["gains"]
        model = load_model(bundle.weights_file)
        rgb = torch.from_numpy(np.ascontiguousarray(image[..., ::-1]))
        x = normalise(rgb[None], model.config["mean"], model.config["std"])
        with torch.inference_mode():
            expected = walk_of_bundle(bundle, model)(x)[1].std.mean(1)[0].numpy()
        found = run(bundle, image)["uncertainty"]
        # A pooling may flip between equal values, which moves single pixels.
        assert np.mean(np.abs(found - expected) <= 1e-4 * expected + 1e-6) > 0.99
        costs.append(len(onnx.load(bundle.model_file).graph.node))
    assert costs[1] < costs[0]


@pytest.mark.slow
def test_from_the_command_line(tmp_path, capsys):
    save_model(network("encdec"), tmp_path / "run")
    (tmp_path / "images").mkdir()
    for number in range(2):
        cv2.imwrite(str(tmp_path / "images" / f"{number}.png"), street(200, 260, number))
    words = [
        "fit-gains",
        str(tmp_path / "run"),
        "--images",
        str(tmp_path / "images"),
        "--json",
    ]
    assert main([*words, "--views", "2", "--samples", "2", "--steps", "10"]) == 0
    printed = json.loads(capsys.readouterr().out)
    facts = load_gains(tmp_path / "run").facts
    assert printed == {"file": str(tmp_path / "run" / GAINS), **facts.to_json()}
    assert facts.views == 2 and facts.images == 2


@pytest.mark.slow
def test_a_bundle_is_exported_again(tmp_path, capsys):
    save_model(network("encdec"), tmp_path / "run")
    before = export_bundle(tmp_path / "run", tmp_path / "bundle", ExportOptions(**SIZE))
    (tmp_path / "images").mkdir()
    cv2.imwrite(str(tmp_path / "images" / "0.png"), street(200, 260))
    words = ["fit-gains", str(before.path), "--images", str(tmp_path / "images")]
    words += ["--views", "2", "--samples", "2", "--steps", "10", "--size", "128x96"]
    assert main([*words, "--scales", "1,1.2"]) == 0
    first = load_bundle(tmp_path / "bundle")
    assert main([*words, "--resume"]) == 0
    after = load_bundle(tmp_path / "bundle")
    assert after.sha256 != first.sha256
    assert load_gains(tmp_path / "bundle", "fast") is None
    assert after.name == before.name and after.input == before.input
    assert after.sha256 != before.sha256
    assert after.manifest["gains"]["views"] == 2
    assert GAINS in after.manifest["files"]


def test_a_failed_export_does_not_change_the_bundle(tmp_path, monkeypatch, capsys):
    save_model(network("encdec"), tmp_path / "run")
    before = export_bundle(tmp_path / "run", tmp_path / "bundle", ExportOptions(**SIZE))
    (tmp_path / "images").mkdir()
    cv2.imwrite(str(tmp_path / "images" / "0.png"), street(200, 260))

    def fails(*_, **__):
        raise PenumbraError("no space left")

    monkeypatch.setattr("penumbra.offline.export.export_bundle", fails)
    words = ["fit-gains", str(before.path), "--images", str(tmp_path / "images")]
    assert (
        main([*words, "--views", "2", "--samples", "2", "--steps", "10", "--size", "128x96"]) != 0
    )
    assert "no space left" in capsys.readouterr().err
    assert load_bundle(before.path).sha256 == before.sha256
    assert load_gains(before.path) is None


@pytest.mark.slow
def test_a_fit_resumes_from_existing_gains(checkpoint, tmp_path, capsys):
    save_model(load_model(checkpoint), tmp_path / "run")
    earlier = load_gains(checkpoint)
    (tmp_path / "images").mkdir()
    cv2.imwrite(str(tmp_path / "images" / "0.png"), street(200, 260))
    words = ["fit-gains", str(tmp_path / "run"), "--images", str(tmp_path / "images")]
    words += ["--views", "2", "--samples", "4", "--steps", "10", "--corrupted", "1", "--resume"]
    assert main(words) != 0
    assert "run has no gains to resume from" in capsys.readouterr().err
    save_gains(tmp_path / "run", earlier.tensors, earlier.facts)
    # With steps of no length the gains do not change, but for the level of the mean.
    assert main([*words, "--rate", "1e-12"]) == 0
    resumed = load_gains(tmp_path / "run")
    gains, facts = resumed.tensors, resumed.facts
    assert facts.started_from == earlier.facts and facts.corrupted == 1
    assert facts.std_relative_error.before < 0.7  # not that of a network without gains
    inner = next(name for name in gains if "classifier" not in name)
    torch.testing.assert_close(gains[inner], earlier.tensors[inner], rtol=1e-6, atol=0)


def test_facts_are_stored_and_read_again():
    first = GainFacts("moment", "moment", size=(64, 96), std_ratio=Change(0.5, 1.0))
    facts = GainFacts("moment", "moment", "fast", corrupted=0.5, images=3, started_from=first)
    stored = json.loads(json.dumps(facts.to_json()))
    assert GainFacts.from_json(stored) == facts
    assert stored["started_from"]["size"] == [64, 96]
    assert "views" not in stored and "views" not in stored["started_from"]


def test_files_with_the_older_names_are_read(tmp_path):
    """`calibration.safetensors`, with the keys of the first release."""
    old = {"relu": "moment", "softmax": "moment", "strange": 0.5, "pictures": 4,
           "pictures_sha256": "a", "began_with": {"relu": "moment", "pictures": 2}}  # fmt: skip
    for name, variance in (("calibration", "truthful"), ("calibration-fast", "fast")):
        header = {"penumbra": json.dumps(old | {"variance": variance})}
        gain = torch.full((1,), float(len(name)))
        (tmp_path / f"{name}.safetensors").write_bytes(save({"layer": gain}, metadata=header))
        found = load_gains(tmp_path, variance)
        assert found.facts.variance == variance and found.tensors["layer"] == len(name)
    facts = load_gains(tmp_path).facts
    assert (facts.corrupted, facts.images, facts.images_sha256) == (0.5, 4, "a")
    assert facts.started_from.images == 2
    save_gains(tmp_path, {"layer": torch.zeros(1)}, GainFacts())
    assert load_gains(tmp_path).file.name == GAINS  # the new name has priority


@pytest.mark.parametrize("name", ["segnet-camvid-class", "segnet-camvid-encdec"])
def test_gains_of_the_shipped_bundles_are_read(name):
    bundle = load_bundle(Path(__file__).parents[3] / "config" / "models" / name)
    gains = load_gains_of(bundle)
    assert gains.facts.images == 367 and gains.file.name in bundle.files
    assert gains.facts == GainFacts.from_json(bundle.manifest["gains"])


def test_an_invalid_file_of_gains_is_named(tmp_path):
    save_model(network("encdec"), tmp_path)
    (tmp_path / GAINS).write_bytes(b"not gains")
    with pytest.raises(PenumbraError, match="not a valid file of gains.*penumbra fit-gains"):
        export_bundle(tmp_path, tmp_path / "bundle", ExportOptions(**SIZE))


def test_invalid_arguments_are_reported_first(tmp_path, capsys):
    words = ["fit-gains", str(tmp_path), "--images", str(tmp_path / "nowhere")]
    assert main(words) != 0
    assert "nowhere: give a folder of images" in capsys.readouterr().err
    with pytest.raises(PenumbraError, match="at least 2, 2 and 10"):
        GainFitOptions(samples=1)
    with pytest.raises(PenumbraError, match="--corrupted is 1.5: give a share"):
        GainFitOptions(corrupted=1.5)
    with pytest.raises(PenumbraError, match="--size is 64x16: give 32x32"):
        GainFitOptions(size=(16, 64))
    with pytest.raises(PenumbraError, match="--scales is .*LEAST,MOST"):
        GainFitOptions(scales=(1.2, 0.8))
    words[-1] = str(tmp_path)
    assert main([*words, "--size", "64"]) == 2
    assert "--size '64': write it as WIDTHxHEIGHT" in capsys.readouterr().err
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(PenumbraError, match="--rate is .*above 0"):
            GainFitOptions(rate=rate)
    start = StoredGains({}, GainFacts(relu="jacobian"), tmp_path / GAINS)
    with pytest.raises(PenumbraError, match="fitted with relu='jacobian', not 'moment'"):
        fit_network_gains(tmp_path, [street(96, 128)], QUICK, start=start)
    with pytest.raises(PenumbraError, match="no images"):
        fit_network_gains(tmp_path, [], QUICK)

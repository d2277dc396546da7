"""`penumbra fit-gains`, and the bundle of a calibrated network: the gains are in its graph."""

from __future__ import annotations

import json

import cv2
import numpy as np
import onnx
import pytest
import torch
from exported_networks import network, run, street

from penumbra.bundle import load_bundle
from penumbra.cli.main import main
from penumbra.errors import PenumbraError
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.offline.export.frame import Scores
from penumbra.offline.export.walk import walk_of, walk_of_bundle, walk_of_checkpoint
from penumbra.offline.fitting.gains import GainFitOptions, fit_network_gains
from penumbra.offline.gains_file import GAINS, VARIANCES, load_gains, save_gains
from penumbra.offline.models import load_model, save_model
from penumbra.offline.models.network import normalise
from penumbra.propagation import propagate

QUICK = GainFitOptions(views=8, samples=12, steps=40, size=(64, 96))
SIZE = {"height": 64, "width": 96}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A network with dropout everywhere, calibrated on pictures of noise."""
    folder = tmp_path_factory.mktemp("calibrated")
    save_model(network("encdec"), folder)
    gains, facts = fit_network_gains(folder, [street(96, 128, seed) for seed in range(4)], QUICK)
    save_gains(folder, gains, facts)
    return folder


@pytest.mark.slow
def test_it_comes_nearer_to_monte_carlo_on_views_it_has_not_seen(checkpoint):
    _, facts = load_gains(checkpoint)
    error, ratio = facts["std_relative_error"], facts["std_ratio"]
    assert error["after"] < error["before"]
    assert abs(np.log(ratio["after"])) < abs(np.log(ratio["before"]))
    assert facts["pictures"] == 4 and len(facts["pictures_sha256"]) == 64


@pytest.mark.slow
def test_the_graph_has_the_gains(checkpoint, tmp_path):
    bundle = export_bundle(checkpoint, tmp_path / "bundle", ExportOptions(**SIZE))
    gains, facts = load_gains(checkpoint)
    assert load_bundle(bundle.path).manifest["gains"] == facts
    assert bundle.variant["variance"] == "calibrated"
    assert (bundle.path / GAINS).read_bytes() == (checkpoint / GAINS).read_bytes()

    image = street(64, 96, seed=9)
    found = run(bundle, image)["uncertainty"]
    model = load_model(checkpoint)
    rgb = torch.from_numpy(np.ascontiguousarray(image[..., ::-1]))
    x = normalise(rgb[None], model.config["mean"], model.config["std"])
    with torch.inference_mode():
        walk = walk_of(model, "segnet", facts["relu"], facts["softmax"], gains)
        expected = walk(x)[1].std.mean(1)[0].numpy()
        without = walk_of(model, "segnet", facts["relu"], facts["softmax"])(x)[1].std.mean(1)[0]
    # A pooling may flip between equal values, which moves single pixels: nearly all must agree.
    assert np.mean(np.abs(found - expected) <= 1e-4 * expected + 1e-6) > 0.99
    assert abs(float(without.mean()) / expected.mean() - 1) > 0.05  # the gains do matter


@pytest.mark.slow
def test_a_checkpoint_is_propagated_with_its_gains(checkpoint, tmp_path):
    gains, facts = load_gains(checkpoint)
    save_model(load_model(checkpoint), tmp_path)  # the same weights without any gains
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    expected = {
        checkpoint: walk_of(
            load_model(checkpoint), "segnet", facts["relu"], facts["softmax"], gains
        ),
        tmp_path: propagate(Scores(load_model(checkpoint))),
    }
    with torch.inference_mode():
        stds = [walk(x)[-1].std for walk in expected.values()]
        found = [walk_of_checkpoint(path, load_model(path))(x)[-1].std for path in expected]
    assert float((stds[0] - stds[1]).abs().mean() / stds[1].mean()) > 0.05  # the gains do matter
    torch.testing.assert_close(found, stds)


@pytest.mark.slow
def test_gains_may_be_left_out(checkpoint, tmp_path):
    bundle = export_bundle(checkpoint, tmp_path / "bundle", ExportOptions(**SIZE), calibrated=False)
    assert bundle.manifest["gains"] is None
    assert GAINS not in bundle.files
    assert bundle.variant["variance"] == "diagonal"


def test_fast_follows_the_last_dropout_only():
    """Behind a network of which all other dropouts were taken away, it finds the same."""
    model = network("encdec")
    last_only = network(("decoder3",))
    last_only.load_state_dict(model.state_dict())
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    fast, truthful, expected = (
        walk_of(one, "segnet", "moment", "moment", variance=how)
        for one, how in ((model, "fast"), (model, "truthful"), (last_only, "truthful"))
    )
    with torch.inference_mode():
        found, all_of_it, of_last = (walk(x)[1].std for walk in (fast, truthful, expected))
    torch.testing.assert_close(found, of_last)
    assert float(all_of_it.mean()) > 1.01 * float(found.mean())
    assert [type(layer).__name__ for layer in model.dropout.values()] == ["Dropout"] * 6


def test_fast_says_what_it_needs(tmp_path):
    with pytest.raises(PenumbraError, match="one dropout.*--variance fast"):
        walk_of(network("class"), "segnet", "moment", "moment", variance="fast")
    save_model(network("encdec"), tmp_path)
    with pytest.raises(PenumbraError, match="not calibrated for '--variance fast'.*--images"):
        export_bundle(tmp_path, tmp_path / "bundle", ExportOptions(**SIZE, variance="fast"))


@pytest.mark.slow
def test_a_checkpoint_is_offered_at_both_points(checkpoint, tmp_path):
    save_model(load_model(checkpoint), tmp_path / "run")
    for how in VARIANCES:
        pictures = [street(96, 128, seed) for seed in range(2)]
        options = GainFitOptions(views=3, samples=4, steps=10, size=(64, 96), variance=how)
        save_gains(tmp_path / "run", *fit_network_gains(tmp_path / "run", pictures, options))
    image, costs = street(64, 96, seed=9), []
    for how, told in (("truthful", "calibrated"), ("fast", "calibrated, fast")):
        options = ExportOptions(**SIZE, variance=how)
        bundle = load_bundle(export_bundle(tmp_path / "run", tmp_path / how, options).path)
        assert bundle.variant["variance"] == told
        assert bundle.manifest["gains"]["variance"] == how
        assert load_gains(bundle.path, how)[1]["variance"] == how
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
    (tmp_path / "pictures").mkdir()
    for number in range(2):
        cv2.imwrite(str(tmp_path / "pictures" / f"{number}.png"), street(200, 260, number))
    words = [
        "fit_network_gains",
        str(tmp_path / "run"),
        "--images",
        str(tmp_path / "pictures"),
        "--json",
    ]
    assert main([*words, "--views", "2", "--samples", "2", "--steps", "10"]) == 0
    told = json.loads(capsys.readouterr().out)
    _, facts = load_gains(tmp_path / "run")
    assert told == {"file": str(tmp_path / "run" / GAINS), **facts}
    assert facts["views"] == 2 and facts["pictures"] == 2


@pytest.mark.slow
def test_a_bundle_is_exported_again(tmp_path, capsys):
    save_model(network("encdec"), tmp_path / "run")
    before = export_bundle(tmp_path / "run", tmp_path / "bundle", ExportOptions(**SIZE))
    (tmp_path / "pictures").mkdir()
    cv2.imwrite(str(tmp_path / "pictures" / "0.png"), street(200, 260))
    words = ["fit_network_gains", str(before.path), "--images", str(tmp_path / "pictures")]
    words += ["--views", "2", "--samples", "2", "--steps", "10", "--size", "128x96"]
    assert main([*words, "--scales", "1,1.2"]) == 0
    first = load_bundle(tmp_path / "bundle")
    assert main([*words, "--go-on"]) == 0
    after = load_bundle(tmp_path / "bundle")
    assert after.sha256 != first.sha256
    assert load_gains(tmp_path / "bundle", "fast") is None
    assert after.name == before.name and after.input == before.input
    assert after.sha256 != before.sha256
    assert after.manifest["gains"]["views"] == 2
    assert GAINS in after.manifest["files"]


def test_a_bundle_stays_as_it_was_where_the_export_fails(tmp_path, monkeypatch, capsys):
    save_model(network("encdec"), tmp_path / "run")
    before = export_bundle(tmp_path / "run", tmp_path / "bundle", ExportOptions(**SIZE))
    (tmp_path / "pictures").mkdir()
    cv2.imwrite(str(tmp_path / "pictures" / "0.png"), street(200, 260))

    def fails(*_, **__):
        raise PenumbraError("no space left")

    monkeypatch.setattr("penumbra.offline.export.export_bundle", fails)
    words = ["fit_network_gains", str(before.path), "--images", str(tmp_path / "pictures")]
    assert (
        main([*words, "--views", "2", "--samples", "2", "--steps", "10", "--size", "128x96"]) != 0
    )
    assert "no space left" in capsys.readouterr().err
    assert load_bundle(before.path).sha256 == before.sha256
    assert load_gains(before.path) is None


@pytest.mark.slow
def test_it_goes_on_with_the_gains_that_are_there(checkpoint, tmp_path, capsys):
    save_model(load_model(checkpoint), tmp_path / "run")
    earlier = load_gains(checkpoint)
    (tmp_path / "pictures").mkdir()
    cv2.imwrite(str(tmp_path / "pictures" / "0.png"), street(200, 260))
    words = ["fit_network_gains", str(tmp_path / "run"), "--images", str(tmp_path / "pictures")]
    words += ["--views", "2", "--samples", "4", "--steps", "10", "--strange", "1", "--go-on"]
    assert main(words) != 0
    assert "run has no calibration to go on with" in capsys.readouterr().err
    save_gains(tmp_path / "run", *earlier)
    # Steps of no length: what is found is what it began with, but for the level of the mean.
    assert main([*words, "--rate", "1e-12"]) == 0
    gains, facts = load_gains(tmp_path / "run")
    assert facts["began_with"] == earlier[1] and facts["strange"] == 1
    assert facts["std_relative_error"]["before"] < 0.7  # not that of an uncalibrated network
    inner = next(name for name in gains if "classifier" not in name)
    torch.testing.assert_close(gains[inner], earlier[0][inner], rtol=1e-6, atol=0)


def test_a_broken_calibration_is_named(tmp_path):
    save_model(network("encdec"), tmp_path)
    (tmp_path / GAINS).write_bytes(b"not a calibration")
    with pytest.raises(PenumbraError, match="no whole calibration.*penumbra fit-gains"):
        export_bundle(tmp_path, tmp_path / "bundle", ExportOptions(**SIZE))


def test_mistakes_are_told_before_any_work(tmp_path, capsys):
    words = ["fit_network_gains", str(tmp_path), "--images", str(tmp_path / "nowhere")]
    assert main(words) != 0
    assert "nowhere: give one with pictures" in capsys.readouterr().err
    with pytest.raises(PenumbraError, match="at least 2, 2 and 10"):
        GainFitOptions(samples=1)
    with pytest.raises(PenumbraError, match="--strange is 1.5: give a share"):
        GainFitOptions(strange=1.5)
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
    with pytest.raises(PenumbraError, match="fitted with relu='jacobian', not 'moment'"):
        fit_network_gains(tmp_path, [street(96, 128)], QUICK, start=({}, {"relu": "jacobian"}))
    with pytest.raises(PenumbraError, match="no pictures"):
        fit_network_gains(tmp_path, [], QUICK)

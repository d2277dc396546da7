"""`penumbra build` as a user calls it."""

from __future__ import annotations

import json

import pytest
import tiny_bundles

from penumbra.cli.main import main

pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed")
FOR_ANOTHER_MACHINE = ["--backend", "tensorrt-rtx", "--compute-capability", "8.9", "--build-only"]


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    monkeypatch.setenv("PENUMBRA_CACHE", str(tmp_path / "cache"))
    return tiny_bundles.segmentation(tmp_path / "street")


def build(bundle, *options):
    return main(["build", str(bundle.path), *options])


def test_built_then_found(bundle, tmp_path, capsys):
    assert build(bundle, *FOR_ANOTHER_MACHINE) == 0
    [engine] = (tmp_path / "cache" / "engines").glob("*.engine")
    first = capsys.readouterr()
    assert first.out.startswith(f"{engine}: ")
    assert "built in" in first.out
    assert build(bundle, *FOR_ANOTHER_MACHINE) == 0
    assert "found in the cache" in capsys.readouterr().out


def test_json(bundle, tmp_path, capsys):
    options = [*FOR_ANOTHER_MACHINE, "--json", "--engine-cache-dir", str(tmp_path / "mine")]
    outcomes = []
    for extra in ([], [], ["--force"], ["--workspace-mb", "64"]):
        assert build(bundle, *options, *extra) == 0
        outcomes.append(json.loads(capsys.readouterr().out))
    [engine] = (tmp_path / "mine").glob("*.engine")
    assert [outcome["built"] for outcome in outcomes] == [True, False, True, False]
    assert {outcome["engine"] for outcome in outcomes} == {str(engine)}
    assert outcomes[-1]["bytes"] == engine.stat().st_size


def test_a_bundle_of_any_size_needs_one(tmp_path, bundle, capsys):
    anything = tiny_bundles.segmentation(tmp_path / "any", None, None)
    assert build(anything, *FOR_ANOTHER_MACHINE) == 2
    assert "set it (--size 480x360" in capsys.readouterr().err
    assert build(anything, *FOR_ANOTHER_MACHINE, "--size", "64x32") == 0
    assert "-64x32-" in capsys.readouterr().out
    assert build(anything, *FOR_ANOTHER_MACHINE, "--size", "wide") == 2
    assert "--size 'wide': write it as WIDTHxHEIGHT" in capsys.readouterr().err


def test_without_a_gpu_it_says_so_before_it_builds(bundle, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("penumbra.vehicle.runners.cuda.LIBRARY", "libcuda-of-nobody.so.1")
    assert build(bundle, "--backend", "tensorrt-rtx", "--compute-capability", "8.9") == 2
    error = capsys.readouterr().err
    assert "no CUDA driver on this machine" in error
    assert "--build-only" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "cache").exists()
    assert build(bundle, "--backend", "tensorrt-rtx", "--build-only") == 2
    assert "--compute-capability" in capsys.readouterr().err


@pytest.mark.gpu
def test_on_a_gpu_it_tries_the_engine(bundle, capsys):
    assert build(bundle, "--backend", "tensorrt-rtx", "--json") == 0
    assert json.loads(capsys.readouterr().out)["frame_ms"] > 0

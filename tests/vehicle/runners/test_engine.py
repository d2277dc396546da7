"""Engines are built by NVIDIA's compiler: once per key, and written atomically."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import fields, replace

import onnx
import pytest
import tiny_bundles
from cuda_stand_in import DEVICE_NAME, CudaStandIn
from onnx import TensorProto, helper

from penumbra.errors import PenumbraError
from penumbra.files import cache_folder
from penumbra.vehicle.runners import RunnerError, RunnerSettings, compiler, cuda, engine

RTX = "tensorrt-rtx"
trt = pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed")


@pytest.fixture
def bundle(tmp_path):
    return tiny_bundles.segmentation(tmp_path / "street")


@pytest.fixture
def settings(tmp_path):
    return RunnerSettings(engine_cache_dir=tmp_path / "engines")


@pytest.fixture
def needed(bundle, settings):
    return engine.find(bundle, RTX, settings, "8.9")


class Steps(list):
    """A progress callback that records its calls."""

    def __call__(self, fraction, phase):
        self.append((fraction, phase))


@pytest.mark.parametrize("make", [tiny_bundles.segmentation, tiny_bundles.depth])
@pytest.mark.parametrize("size", [(36, 48), (None, None)], ids=["fixed", "any size"])
def test_an_engine_is_built_once(tmp_path, settings, make, size):
    settings = replace(settings, image_size=(36, 48))
    needed = engine.find(make(tmp_path / "b", *size), RTX, settings, "8.9")
    assert not needed.built
    assert needed.build()
    assert needed.built
    # Without a GPU no engine is valid here, but the reason differs for a file that is not one.
    runtime = trt.Runtime(compiler.make_logger(trt))
    (_, reason), (_, of_nonsense) = map(runtime.get_engine_validity, (needed.read(), b"x" * 999))
    assert reason == 0 != of_nonsense
    before = needed.path.stat()
    steps = Steps()
    assert not needed.build(steps)
    assert steps == []
    assert needed.path.stat().st_mtime_ns == before.st_mtime_ns
    assert needed.build(steps, force=True)
    assert steps != []
    assert needed.path.stat().st_ino != before.st_ino
    assert sorted(needed.folder.iterdir()) == [needed.path, needed.record]


def test_progress_increases_to_one(needed):
    steps = Steps()
    needed.build(steps)
    fractions = [fraction for fraction, _ in steps]
    assert fractions == sorted(fractions)
    assert fractions[0] < 0.5
    assert fractions[-1] == 1.0


@pytest.mark.parametrize("field", [field.name for field in fields(engine.Key)])
def test_every_dependency_is_in_the_name(needed, field):
    other = {"height": 37, "width": 49, "recipe": 0}.get(field, "other")
    changed = replace(needed, key=replace(needed.key, **{field: other}))
    assert changed.path != needed.path
    assert needed.path == replace(needed, key=replace(needed.key)).path


def test_an_engine_of_another_key_is_not_found(tmp_path, bundle, settings, needed, monkeypatch):
    needed.build()
    other = tiny_bundles.depth(tmp_path / "other" / bundle.name)
    assert not engine.find(other, RTX, settings, "8.9").built
    assert not engine.find(bundle, RTX, settings, "8.6").built
    mixed = tiny_bundles.segmentation(tmp_path / "mixed" / bundle.name, precision="mixed")
    assert mixed.sha256 == bundle.sha256
    assert not engine.find(mixed, RTX, settings, "8.9").built
    assert engine.find(bundle, RTX, settings, "8.9").built
    monkeypatch.setattr(trt, "__version__", "9999.0")
    assert not engine.find(bundle, RTX, settings, "8.9").built


def test_the_cache_is_the_users(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("PENUMBRA_CACHE", str(tmp_path / "cache"))
    assert engine.find(bundle, RTX, capability="8.9").folder == tmp_path / "cache" / "engines"
    monkeypatch.delenv("PENUMBRA_CACHE")
    assert engine.find(bundle, RTX, capability="8.9").folder == cache_folder() / "engines"


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", [Stop, KeyboardInterrupt])
def test_an_interrupted_build_leaves_nothing(needed, kind):
    steps = Steps()

    def interrupt(fraction, phase):
        steps(fraction, phase)
        if fraction > 0.5:
            raise kind

    with pytest.raises(kind):
        needed.build(interrupt)
    assert list(needed.folder.iterdir()) == []
    complete = Steps()
    assert needed.build(complete)  # the lock is free
    # It was interrupted immediately: a complete build has many more steps after the middle.
    beyond = [[fraction for fraction, _ in taken if fraction > 0.5] for taken in (steps, complete)]
    assert len(beyond[0]) == 1 < len(beyond[1])


KILLED_BUILDER = """
import os, signal, sys
from pathlib import Path
from penumbra.bundle import load_bundle
from penumbra.vehicle.runners import RunnerSettings, engine

def kill(fraction, phase):
    if fraction > 0.5:
        os.kill(os.getpid(), int(sys.argv[3]))

# In a shell without job control, background processes ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings = RunnerSettings(engine_cache_dir=Path(sys.argv[2]))
engine.find(load_bundle(sys.argv[1]), "tensorrt-rtx", settings, "8.9").build(kill)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_build_leaves_nothing(bundle, needed, how):
    command = [sys.executable, "-c", KILLED_BUILDER, bundle.path, needed.folder, str(int(how))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -how, done.stderr
    assert list(needed.folder.iterdir()) == []
    assert needed.build()


def test_a_partial_file_of_a_killed_writer_is_removed(needed):
    needed.folder.mkdir()
    half = needed.folder / f".{needed.path.name}.4242"
    half.write_bytes(b"half")
    needed.build()
    assert sorted(needed.folder.iterdir()) == [needed.path, needed.record]


def test_two_builders_build_once(needed, caplog):
    """The first pauses until the second waits for it."""
    first_is_building, waiting = threading.Event(), threading.Event()
    built = {}

    def hold(fraction, phase):
        first_is_building.set()
        assert waiting.wait(60)

    class Waiting:
        def filter(self, record):
            if "another process is building" in record.getMessage():
                waiting.set()
            return True

    def second():
        assert first_is_building.wait(60)
        built["second"] = needed.build(lambda fraction, phase: pytest.fail("built twice"))

    watcher = Waiting()
    engine.log.addFilter(watcher)
    try:
        thread = threading.Thread(target=second)
        thread.start()
        built["first"] = needed.build(hold)
        thread.join()
    finally:
        engine.log.removeFilter(watcher)
    assert built == {"first": True, "second": False}


def test_a_size_is_required_and_must_match(tmp_path, bundle, settings):
    anything = tiny_bundles.segmentation(tmp_path / "any", None, None)
    with pytest.raises(PenumbraError, match="any accepts any image size, .* set it"):
        engine.find(anything, RTX, settings, "8.9")
    with pytest.raises(PenumbraError, match="height is 40, but street expects 36"):
        engine.find(bundle, RTX, replace(settings, image_size=(40, 48)), "8.9")
    with pytest.raises(PenumbraError, match="invalid image size 48x0"):
        engine.find(anything, RTX, replace(settings, image_size=(0, 48)), "8.9")


def test_an_unsupported_gpu(bundle, settings):
    with pytest.raises(PenumbraError, match="compute capability 3.5: choose from .*8.9"):
        engine.find(bundle, RTX, settings, "3.5").build()


def test_no_gpu_and_no_capability(bundle, settings, monkeypatch):
    monkeypatch.setattr(cuda, "LIBRARY", "libcuda-missing.so.1")
    with pytest.raises(RunnerError, match="no CUDA driver on this machine"):
        engine.find(bundle, RTX, settings)


def test_the_cache_is_made_for_its_owner_only(needed):
    needed.build()
    assert needed.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777], ids=oct)
def test_a_cache_that_others_may_write_to_is_refused(needed, mode):
    """Whoever writes to it could replace an engine together with its record."""
    needed.build()
    needed.folder.chmod(mode)
    assert not needed.built
    for use in (needed.read, needed.build):
        with pytest.raises(PenumbraError, match="others may write to the engine cache.*chmod 700"):
            use()
    needed.folder.chmod(0o755)  # readable by others, which is harmless
    assert needed.built


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_cache_of_another_user_is_refused(needed):
    needed.build()
    os.chown(needed.folder, 12345, 12345)
    for use in (needed.read, needed.build):
        with pytest.raises(PenumbraError, match=r"belongs to another user \(number 12345\)"):
            use()


def flip(file):
    """Change one bit in the middle of a file, which keeps its size."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def foreign(needed):
    """The engine of another key, with a record that matches its bytes."""
    record = json.loads(needed.record.read_text())
    record["key"]["model"] = "0" * 64
    needed.record.write_text(json.dumps(record))


def behind_a_link(needed):
    needed.path.rename(needed.folder / "elsewhere")
    needed.path.symlink_to(needed.folder / "elsewhere")


@pytest.mark.parametrize(
    "damage",
    [
        lambda needed: flip(needed.path),
        lambda needed: needed.path.write_bytes(b""),
        lambda needed: needed.record.unlink(),
        lambda needed: needed.record.write_text("[" * 100_000),
        lambda needed: needed.record.write_text('{"sha256": 1}'),
        foreign,
        behind_a_link,
    ],
    ids=["a bit", "empty", "no record", "no JSON", "no key", "foreign", "a link"],
)
def test_a_damaged_or_foreign_engine_is_built_again(needed, caplog, damage):
    needed.build()
    damage(needed)
    assert not needed.built
    with pytest.raises(PenumbraError, match="cannot read the engine .*run `penumbra build"):
        needed.read()
    caplog.clear()
    assert needed.build()
    assert len([r for r in caplog.records if "building it again" in r.getMessage()]) == 1
    assert needed.built and needed.read() == needed.path.read_bytes()
    assert not needed.path.is_symlink()


def test_the_bundle_must_be_the_one_of_the_key(tmp_path, needed):
    """A bundle that was replaced between the node and the process that builds."""
    other = tiny_bundles.depth(tmp_path / "other")
    with pytest.raises(PenumbraError, match="another bundle than before"):
        replace(needed, bundle=other).build()


def test_an_unwritable_cache(bundle, tmp_path):
    (tmp_path / "file").write_text("in the way")
    settings = RunnerSettings(engine_cache_dir=tmp_path / "file")
    with pytest.raises(PenumbraError, match="cannot use .* as the engine cache: .*PENUMBRA_CACHE"):
        engine.find(bundle, RTX, settings, "8.9").build()


def test_an_unknown_or_absent_backend(bundle, settings, monkeypatch):
    with pytest.raises(PenumbraError, match="unknown backend 'cudnn': choose from tensorrt"):
        engine.find(bundle, "cudnn", settings)
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # as if it were not installed
    with pytest.raises(RunnerError, match="tensorrt is not installed: apt install"):
        engine.find(bundle, "tensorrt", settings)


def test_a_graph_that_tensorrt_rejects_is_named(tmp_path, bundle, settings):
    """UINT8 inside the graph: ONNX allows it, ONNX Runtime runs it, TensorRT rejects it."""
    model = onnx.load(bundle.model_file)
    nodes = [node for node in model.graph.node if node.name not in ("make_best_map", "make_labels")]
    nodes.append(helper.make_node("Cast", ["best"], ["b"], name="too_early", to=TensorProto.UINT8))
    nodes.append(helper.make_node("Squeeze", ["b", "first"], ["labels"], name="make_labels"))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    refused = tiny_bundles.write_model(tmp_path / "refused", bundle, model.SerializeToString())
    needed = engine.find(refused, RTX, settings, "8.9")
    with pytest.raises(PenumbraError, match=r"rejects the graph of street: Cast too_early"):
        needed.build()
    assert list(needed.folder.iterdir()) == []


@pytest.mark.parametrize(
    "change", [{"dtype": "float32"}, {"shape": [36, 47]}, {"name": "etiquettes"}], ids=str
)
def test_outputs_must_match_the_manifest(tmp_path, bundle, settings, change):
    outputs = [dict(output) for output in bundle.manifest["outputs"]]
    outputs[0].update(change)
    lying = tiny_bundles.segmentation(tmp_path / "lying", outputs=outputs)
    with pytest.raises(PenumbraError, match=r"in the manifest, but .* in the graph"):
        engine.find(lying, RTX, settings, "8.9").build()


def test_tensorrt_uses_the_local_gpu_and_keeps_its_timings(bundle, settings, monkeypatch):
    """TensorRT needs a GPU even to build; TensorRT for RTX, with the same API, replaces it here."""
    monkeypatch.setattr(cuda, "driver_library", CudaStandIn)
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    needed = engine.find(bundle, "tensorrt", settings)
    assert (needed.key.capability, needed.key.gpu) == ("8.7", DEVICE_NAME)
    with pytest.warns(DeprecationWarning, match="no-ops in TensorRT-RTX"):
        assert needed.build()
    names = sorted(path.name for path in needed.folder.iterdir())
    assert names == [
        needed.path.name,
        needed.record.name,
        f"tensorrt-{trt.__version__}-Stand-in-GPU.timing",
    ]
    with pytest.raises(PenumbraError, match=r"\(compute capability 8.7\), not for 8.9"):
        engine.find(bundle, "tensorrt", settings, "8.9")


def test_fraction_of_nested_phases():
    outer, inner = compiler.Phase("outer", 4), compiler.Phase("inner", 2)
    assert compiler.fraction([]) == 0
    outer.complete(0)
    assert compiler.fraction([outer]) == 1 / 4
    inner.complete(0)
    assert compiler.fraction([outer, inner]) == (1 + 1 / 4) / 4  # half of half a step
    outer.parts = 1
    assert compiler.fraction([outer]) == (1 + 1 / 2) / 4  # finished: half a step
    assert compiler.fraction([outer, inner]) == (1 + 1 / 2 + 1 / 8) / 4  # and another has started
    outer.complete(3)
    assert compiler.fraction([outer]) == 1

"""ONNX Runtime and OpenVINO against the same formulas in numpy; `auto` among all runners."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_bundles
from onnx import numpy_helper

from penumbra.errors import PenumbraError
from penumbra.vehicle.runners import (
    RUNNERS,
    RunnerError,
    RunnerSelector,
    create,
    registry,
    selector,
)
from penumbra.vehicle.runners.base import Runner

CPU_RUNNERS = ["onnxruntime", "openvino"]


@pytest.fixture(params=CPU_RUNNERS)
def name(request):
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return request.param


@pytest.fixture
def bundle(tmp_path):
    return tiny_bundles.segmentation(tmp_path / "street")


def reference(bundle, image):
    """The tiny segmentation graph in float64."""
    model = onnx.load(bundle.model_file)
    weights = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "weights")
    padded = np.pad(image / 255, ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(0, 1))
    logits = np.einsum("hwcij,kcij->khw", windows, weights)
    p = np.exp(logits - logits.max(0))
    p /= p.sum(0)
    uncertainty = np.sqrt(p * (1 - p)).mean(0)
    return {
        "labels": p.argmax(0),
        "uncertainty": uncertainty,
        "confidence": p.max(0),
        "frame_score": uncertainty.mean(),
        "entropy": -(p * np.log(p)).sum(0),
    }


@pytest.mark.parametrize("size", [(36, 48), (None, None), (None, 48)], ids=str)
def test_results_match_the_formulas(tmp_path, name, size):
    bundle = tiny_bundles.segmentation(tmp_path / "b", *size)
    wanted = [output.name for output in bundle.outputs]
    sizes = {(36, 48), (size[0] or 35, size[1] or 21)}
    with create(name, bundle, wanted) as runner:
        assert runner.image_size == size
        for height, width in sizes:
            image = tiny_bundles.image(height, width)
            found, truth = runner.infer(image), reference(bundle, image)
            assert list(found) == wanted
            for output in bundle.outputs:
                assert found[output.name].dtype == output.dtype
                assert found[output.name].shape == truth[output.name].shape
            # The graph has no ties: the largest probabilities differ by more than rounding.
            np.testing.assert_array_equal(found.pop("labels"), truth["labels"])
            for output, array in found.items():
                # 27 products of order 0.1 and a softmax in float32: 6e-8 each, about 1e-6 in all.
                np.testing.assert_allclose(array, truth[output], rtol=2e-6, atol=1e-6)


def test_only_requested_outputs_are_returned(bundle, name):
    image = tiny_bundles.image()
    with create(name, bundle) as runner:
        everything = runner.infer(image)
    assert list(everything) == ["labels", "uncertainty", "confidence", "frame_score"]
    with create(name, bundle, ["confidence", "labels", "confidence"]) as runner:
        some = runner.infer(image)
    assert list(some) == ["confidence", "labels"]
    np.testing.assert_array_equal(some["labels"], everything["labels"])


def test_results_belong_to_the_caller(bundle, name):
    """Neither the next image nor the end of the runner changes returned arrays."""
    with create(name, bundle) as runner:
        results = [runner.infer(tiny_bundles.image(seed=seed)) for seed in range(3)]
        copies = [{k: v.copy() for k, v in result.items()} for result in results]
        for seed in range(3, 20):
            runner.infer(tiny_bundles.image(seed=seed))
    for result, copy in zip(results, copies, strict=True):
        for output, array in result.items():
            np.testing.assert_array_equal(array, copy[output])


def test_a_view_of_a_larger_image_is_accepted(bundle, name):
    large = tiny_bundles.image(72, 96)
    with create(name, bundle) as runner:
        view = runner.infer(large[::2, ::2])
        copy = runner.infer(large[::2, ::2].copy())
    np.testing.assert_array_equal(view["uncertainty"], copy["uncertainty"])


BAD_IMAGES = [
    (np.zeros((36, 48, 3), np.float32), "must be a numpy array of uint8, not float32"),
    (np.zeros((36, 48, 3), np.int8), "must be a numpy array of uint8, not int8"),
    ([[1, 2, 3]], "must be a numpy array of uint8, not list"),
    (None, "must be a numpy array of uint8, not NoneType"),
    (np.zeros((36, 48), np.uint8), "must be height x width x 3, not 36 x 48: convert it to bgr"),
    (np.zeros((36, 48, 4), np.uint8), "must be height x width x 3, not 36 x 48 x 4"),
    (np.zeros((1, 36, 48, 3), np.uint8), "must be height x width x 3, not 1 x 36 x 48 x 3"),
    (np.zeros((), np.uint8), "must be height x width x 3, not a scalar"),
    (np.zeros((0, 48, 3), np.uint8), r"is empty \(0 x 48 x 3\)"),
    (np.zeros((37, 48, 3), np.uint8), "is 48x37, street expects 48x36"),
    (np.zeros((36, 1, 3), np.uint8), "is 1x36, street expects 48x36"),
]


@pytest.mark.parametrize("image, message", BAD_IMAGES, ids=[m[:50] for _, m in BAD_IMAGES])
def test_a_bad_image_is_rejected_and_the_next_one_runs(bundle, name, image, message):
    with create(name, bundle) as runner:
        with pytest.raises(PenumbraError, match=message):
            runner.infer(image)
        runner.infer(tiny_bundles.image())


def test_a_graph_that_cannot_be_loaded_is_a_one_line_error(tmp_path, bundle, name):
    broken = tiny_bundles.write_model(tmp_path / "broken", bundle, b"\x32\x05hello")
    with pytest.raises(RunnerError, match="cannot load street") as caught:
        create(name, broken).activate()
    assert "\n" not in str(caught.value)


def test_a_graph_that_cannot_be_run_is_a_one_line_error(tmp_path, name):
    """The manifest allows any size, the graph does not; this shows only when it runs."""
    fixed = tiny_bundles.segmentation(tmp_path / "fixed")
    manifest = {"input": {**fixed.manifest["input"], "height": None, "width": None}}
    lying = tiny_bundles.segmentation(tmp_path / "lying", **manifest)
    with create(name, lying) as runner:
        with pytest.raises(RunnerError, match="cannot run lying") as caught:
            runner.infer(tiny_bundles.image(20, 20))
        assert "\n" not in str(caught.value)
        runner.infer(tiny_bundles.image())


def test_unknown_names(bundle):
    with pytest.raises(PenumbraError, match="no output 'depth': choose from labels, unc"):
        create("onnxruntime", bundle, ["labels", "depth"])
    with pytest.raises(PenumbraError, match="no output of street requested"):
        create("onnxruntime", bundle, [])
    with pytest.raises(PenumbraError, match="unknown runner 'cpu': choose from auto, tensorrt, "):
        RunnerSelector("cpu", bundle)
    with pytest.raises(PenumbraError, match="unknown runner 'auto': choose from tensorrt, "):
        create("auto", bundle)


@pytest.mark.parametrize("missing", CPU_RUNNERS)
def test_a_runner_that_is_not_installed(bundle, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RunnerError, match=f"{missing} is not installed: pip install {missing}"):
        create(missing, bundle).activate()


def test_the_number_of_threads_is_as_requested(bundle, name):
    with create(name, bundle, threads=1) as runner:
        assert runner.description.endswith("on CPU, 1 threads")
        runner.infer(tiny_bundles.image())


def test_openvino_compiles_for_the_first_sizes_and_once_for_all_others(tmp_path):
    pytest.importorskip("openvino")
    bundle = tiny_bundles.segmentation(tmp_path / "b", None, None)
    sizes = [(36, 48), (20, 30), (36, 48), (21, 30), (40, 64), (20, 30)]
    with create("openvino", bundle) as runner:
        (lane,) = runner.lanes
        compiled = []
        for size in sizes:
            image = tiny_bundles.image(*size)
            found, truth = runner.infer(image), reference(bundle, image)
            np.testing.assert_array_equal(found["labels"], truth["labels"])
            np.testing.assert_allclose(found["uncertainty"], truth["uncertainty"], rtol=2e-6)
            compiled.append(lane.compiled_for)
    first, second, rest = (36, 48), (20, 30), None
    assert compiled[:3] == [[first], [first, second], [first, second]]
    assert compiled[3:] == [[first, second, rest]] * 3


def test_openvino_compiles_in_advance_if_the_size_is_known(tmp_path):
    pytest.importorskip("openvino")
    fixed = tiny_bundles.segmentation(tmp_path / "fixed")
    any_size = tiny_bundles.segmentation(tmp_path / "any", None, None)
    with create("openvino", fixed) as runner:
        assert runner.lanes[0].compiled_for == [None]
    with create("openvino", any_size, image_size=(20, 30)) as runner:
        assert runner.lanes[0].compiled_for == [(20, 30)]
        runner.infer(tiny_bundles.image(20, 30))
        assert runner.lanes[0].compiled_for == [(20, 30)]


def test_openvino_sends_no_telemetry(bundle):
    """Its tools send an event over the network on import."""
    pytest.importorskip("openvino")
    code = """
import sys
import tiny_bundles
from penumbra.bundle import load_bundle
from penumbra.vehicle.runners import create
with create("openvino", load_bundle(sys.argv[1])) as runner:
    runner.infer(tiny_bundles.image())
print(sorted(n for n in sys.modules if "telemetry" in n or n.startswith("openvino.tools.")))
"""
    folder = str(Path(tiny_bundles.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, str(bundle.path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": folder},
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_auto_logs_the_runner_and_why_others_are_unavailable(bundle, monkeypatch, caplog):
    monkeypatch.setattr("penumbra.vehicle.runners.cuda.LIBRARY", "libcuda-missing.so.1")
    monkeypatch.setitem(sys.modules, "openvino", None)
    automatic = RunnerSelector("auto", bundle)
    with caplog.at_level(logging.INFO), automatic.start() as runner:
        assert runner.description.startswith("onnxruntime ")
        assert list(automatic.refused) == ["tensorrt", "tensorrt-rtx", "openvino"]
        assert automatic.refused["tensorrt"].startswith("no CUDA driver on this machine")
        assert automatic.refused["openvino"].startswith("openvino is not installed")
        image = tiny_bundles.image()
        with create("onnxruntime", bundle) as direct:
            for output, array in direct.infer(image).items():
                np.testing.assert_array_equal(runner.infer(image)[output], array)
        assert automatic.missing_engine() is None
    assert "runner: onnxruntime" in caplog.text
    assert "tensorrt is not available: no CUDA driver" in caplog.text
    with pytest.raises(RunnerError, match="is inactive"):
        runner.infer(image)


class Broken(Runner):
    """Has no known obstacle, but does not start."""

    name = "broken"

    def _open(self):
        raise self.error


# The TypeError is the one of TensorRT's bindings if the driver is too old.
@pytest.mark.parametrize(
    "error, reason",
    [
        (RunnerError("it broke"), "it broke"),
        (TypeError("factory function returned nullptr"), "TypeError('factory function returned "),
    ],
)
def test_auto_continues_if_a_runner_does_not_start(bundle, monkeypatch, error, reason):
    monkeypatch.setattr(Broken, "error", error, raising=False)
    monkeypatch.setitem(sys.modules, "broken_runner", sys.modules[__name__])
    choice = {"broken": ("broken_runner", "Broken"), "onnxruntime": RUNNERS["onnxruntime"]}
    for module in (registry, selector):
        monkeypatch.setattr(module, "RUNNERS", choice)
    automatic = RunnerSelector("auto", bundle)
    with automatic.start() as runner:
        assert list(automatic.refused) == ["broken"]
        assert automatic.refused["broken"].startswith(reason)
        assert runner.name == "onnxruntime"
    with pytest.raises(type(error), match=re.escape(str(error))):  # requested by name: no fallback
        RunnerSelector("broken", bundle).start()
    for module in (registry, selector):
        monkeypatch.setattr(module, "RUNNERS", {"broken": choice["broken"]})
    with pytest.raises(RunnerError, match=f"no runner works here. broken: {re.escape(reason)}"):
        RunnerSelector("auto", bundle).start()


class Slow(Runner):
    """A runner whose images wait until `go` is set."""

    name = "slow"

    def __init__(self, bundle, lanes):
        super().__init__(bundle)
        self.count, self.closed, self.most = lanes, 0, 0
        self.started = threading.Semaphore(0)
        self.go = threading.Event()
        self._lock, self._now = threading.Lock(), 0

    def _open(self):
        return [SlowLane(self) for _ in range(self.count)]

    def run(self, image):
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self.started.release()
        assert self.go.wait(60)
        with self._lock:
            self._now -= 1
        return {}

    def close(self):
        self.closed += 1


class SlowLane:
    def __init__(self, runner):
        self.run, self.close = runner.run, runner.close


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_images_run_concurrently_up_to_the_number_of_lanes(bundle, lanes):
    runner = Slow(bundle, lanes)
    runner.activate()
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(runner.infer(tiny_bundles.image())))
        for _ in range(3 * lanes)
    ]
    for thread in threads:
        thread.start()
    for _ in range(lanes):
        assert runner.started.acquire(timeout=60)
    runner.go.set()
    for thread in threads:
        thread.join()
    assert len(results) == 3 * lanes
    assert runner.most == lanes
    runner.deactivate()
    assert runner.closed == lanes
    runner.deactivate()  # has no effect
    assert runner.closed == lanes


def test_deactivate_waits_for_the_running_image_and_rejects_the_others(bundle):
    runner = Slow(bundle, 1)
    runner.activate()
    outcomes = {}

    def infer(key):
        try:
            outcomes[key] = runner.infer(tiny_bundles.image())
        except RunnerError as error:
            outcomes[key] = str(error)

    first = threading.Thread(target=infer, args=["first"])
    first.start()
    assert runner.started.acquire(timeout=60)
    second = threading.Thread(target=infer, args=["second"])
    second.start()
    ending = threading.Thread(target=runner.deactivate)
    ending.start()
    second.join(60)  # it never gets a lane, in whichever order the two threads run
    assert "is inactive" in outcomes["second"]
    assert runner.closed == 0
    runner.go.set()
    ending.join(60)
    first.join(60)
    assert outcomes["first"] == {}
    assert runner.closed == 1

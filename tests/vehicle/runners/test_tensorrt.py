"""The TensorRT runner on a stand-in for driver and runtime, and on a GPU if there is one."""

from __future__ import annotations

import logging
import sys
import threading

import numpy as np
import pytest
import tiny_bundles
from cuda_stand_in import DEVICE_NAME, CudaStandIn, tensorrt_stand_in

from penumbra.errors import PenumbraError
from penumbra.vehicle.runners import RunnerError, RunnerSettings, create, cuda, engine


@pytest.fixture
def bundle(tmp_path):
    return tiny_bundles.segmentation(tmp_path / "street")


@pytest.fixture
def settings(tmp_path):
    return RunnerSettings(engine_cache_dir=tmp_path / "engines")


@pytest.fixture
def driver(monkeypatch):
    """A simulated GPU."""
    stand_in = CudaStandIn()
    monkeypatch.setattr(cuda, "driver_library", lambda: stand_in)
    return stand_in


@pytest.fixture
def install(monkeypatch, driver, bundle, settings):
    """Install a TensorRT stand-in with the given behaviour, and cache the bundle's engine."""

    def put(**behaviour):
        monkeypatch.setitem(sys.modules, "tensorrt", tensorrt_stand_in(driver, **behaviour))
        needed = engine.find(bundle, "tensorrt", settings)
        needed.folder.mkdir(mode=0o700, exist_ok=True)
        needed.store(bundle.model_file.read_bytes())
        return needed

    return put


def expected(bundle, image, outputs=None):
    with create("onnxruntime", bundle, outputs, threads=1) as runner:
        return runner.infer(image)


def assert_equal(found, wanted):
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("behaviour", [{}, {"capturable": False}], ids=["graph", "no graph"])
def test_images_are_processed_on_the_gpu(install, driver, bundle, settings, behaviour):
    install(**behaviour)
    with create("tensorrt", bundle, settings=settings) as runner:
        graph = "no CUDA graph" if behaviour else "CUDA graph"
        assert runner.description == f"tensorrt 10.3.0 on {DEVICE_NAME}, 2 lanes, {graph}"
        first, second = tiny_bundles.image(seed=1), tiny_bundles.image(seed=2)
        results = [runner.infer(image) for image in (first, second, first)]
        assert_equal(results[0], expected(bundle, first))
        assert_equal(results[1], expected(bundle, second))
        assert_equal(results[2], results[0])
    assert driver.leftovers() == {}


def test_memory_is_allocated_once_and_a_frame_is_one_launch(install, driver, bundle, settings):
    install()
    with create("tensorrt", bundle, settings=settings, lanes=2) as runner:
        tensors = 1 + len(bundle.outputs)
        copied = 1 + sum(not output.optional for output in bundle.outputs)
        assert len(driver.memory) == 2 * tensors
        assert len(driver.pinned) == 2 * copied
        driver.calls.clear()
        for seed in range(5):
            runner.infer(tiny_bundles.image(seed=seed))
        frame = ["cuCtxSetCurrent", "cuGraphLaunch", "cuStreamSynchronize"]
        assert driver.calls == 5 * frame


def test_only_requested_outputs_are_downloaded(install, driver, bundle, settings):
    install(capturable=False)
    image = tiny_bundles.image()
    wanted = ["uncertainty", "entropy"]
    with create("tensorrt", bundle, wanted, settings, lanes=1) as runner:
        driver.calls.clear()
        assert_equal(runner.infer(image), expected(bundle, image, wanted))
        assert driver.count("cuMemcpyDtoHAsync_v2") == 2
        assert driver.count("cuMemcpyHtoDAsync_v2") == 1


def test_two_images_run_concurrently(install, driver, bundle, settings):
    """Each thread waits inside `synchronize` for the other one."""
    install()
    images = [tiny_bundles.image(seed=seed) for seed in range(2)]
    results = {}
    with create("tensorrt", bundle, settings=settings, lanes=2) as runner:
        meeting = threading.Barrier(2, timeout=60)
        driver.before["cuStreamSynchronize"] = meeting.wait
        threads = [
            threading.Thread(target=lambda n=n: results.update({n: runner.infer(images[n])}))
            for n in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del driver.before["cuStreamSynchronize"]
    for number, image in enumerate(images):
        assert_equal(results[number], expected(bundle, image))


def test_it_can_be_activated_again(install, driver, bundle, settings):
    install()
    runner = create("tensorrt", bundle, settings=settings)
    for _ in range(3):
        runner.activate()
        runner.infer(tiny_bundles.image())
        runner.deactivate()
        assert driver.leftovers() == {}
    with pytest.raises(RunnerError, match="is inactive"):
        runner.infer(tiny_bundles.image())


STEPS = [
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuStreamCreate",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuStreamSynchronize",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_failed_activation_raises_and_releases_everything(
    install, driver, bundle, settings, step
):
    install()
    runner = create("tensorrt", bundle, settings=settings)
    driver.failures[step] = 2
    with pytest.raises(RunnerError, match=f"CUDA error 2 in {step}: stand-in error 2; free GPU"):
        runner.activate()
    assert not runner.active
    assert driver.leftovers() == {}
    del driver.failures[step]
    with runner:
        runner.infer(tiny_bundles.image())


@pytest.mark.parametrize("step", ["cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags"])
def test_without_a_graph_it_still_runs(install, driver, bundle, settings, step, caplog):
    install()
    driver.failures[step] = 801
    image = tiny_bundles.image()
    with caplog.at_level(logging.INFO), create("tensorrt", bundle, settings=settings) as runner:
        assert_equal(runner.infer(image), expected(bundle, image))
    assert f"no CUDA graph: CUDA error 801 in {step}" in caplog.text
    assert driver.leftovers() == {}


def test_an_invalidated_capture_is_discarded(install, driver, bundle, settings, caplog):
    """The driver reports at the end of the capture that other work invalidated it."""
    install()

    def invalidate():
        for stream in driver.streams.values():
            stream.spoilt = True

    driver.before["cuStreamEndCapture"] = invalidate
    image = tiny_bundles.image()
    with caplog.at_level(logging.INFO), create("tensorrt", bundle, settings=settings) as runner:
        assert_equal(runner.infer(image), expected(bundle, image))
    assert "no CUDA graph: CUDA error 901 in cuStreamEndCapture" in caplog.text
    assert driver.leftovers() == {}


def test_an_error_during_inference_raises_and_a_restart_recovers(install, driver, bundle, settings):
    install()
    image = tiny_bundles.image()
    runner = create("tensorrt", bundle, settings=settings)
    runner.activate()
    driver.failures["cuStreamSynchronize"] = 700
    with pytest.raises(RunnerError, match="CUDA error 700 in cuStreamSynchronize"):
        runner.infer(image)
    del driver.failures["cuStreamSynchronize"]
    runner.deactivate()
    with runner:
        assert_equal(runner.infer(image), expected(bundle, image))


def test_releasing_a_broken_gpu_does_not_raise(install, driver, bundle, settings, caplog):
    install()
    runner = create("tensorrt", bundle, settings=settings)
    runner.activate()
    for step in ("cuGraphExecDestroy", "cuMemFree_v2", "cuStreamDestroy_v2"):
        driver.failures[step] = 700
    runner.deactivate()
    assert "while releasing the GPU: CUDA error 700" in caplog.text
    assert not runner.active
    assert driver.leftovers().keys() == {"memory", "streams", "graphs"}  # the rest is released


@pytest.mark.parametrize(
    "behaviour, message",
    [
        ({"contexts": 0}, "cannot create an execution context"),
        ({"contexts": 1}, "cannot create an execution context"),
        ({"starts": False}, "cannot start the engine"),
    ],
)
def test_a_failure_of_tensorrt_raises(install, driver, bundle, settings, behaviour, message):
    install(**behaviour)
    with pytest.raises(RunnerError, match=message):
        create("tensorrt", bundle, settings=settings).activate()
    assert driver.leftovers() == {}


def test_a_damaged_engine_names_the_command_that_rebuilds_it(install, driver, bundle, settings):
    install().store(b"not an engine")
    with pytest.raises(
        RunnerError, match=r"cannot load the engine .* \(cannot deserialise .*--force"
    ):
        create("tensorrt", bundle, settings=settings).activate()
    assert driver.leftovers() == {}


def test_an_image_of_another_size_is_rejected(install, bundle, settings):
    install()
    with (
        create("tensorrt", bundle, settings=settings) as runner,
        pytest.raises(PenumbraError, match="is 50x36, street expects 48x36"),
    ):
        runner.infer(tiny_bundles.image(36, 50))


def test_a_missing_engine_is_known_before_activation(install, bundle, settings):
    needed = install()
    runner = create("tensorrt", bundle, settings=settings)
    assert runner.missing_engine() is None
    needed.path.unlink()
    assert runner.missing_engine() == needed


def test_a_missing_driver_is_a_one_line_error(bundle, settings):
    if _has_driver():
        pytest.skip("this machine has a CUDA driver")
    with pytest.raises(RunnerError) as caught:
        create("tensorrt-rtx", bundle, settings=settings).activate()
    assert str(caught.value).startswith("no CUDA driver on this machine")
    assert "\n" not in str(caught.value)


def _has_driver() -> bool:
    try:
        cuda.driver_library()
    except RunnerError:
        return False
    return True


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt-rtx"])
@pytest.mark.parametrize("make", [tiny_bundles.segmentation, tiny_bundles.depth])
def test_a_real_gpu_agrees_with_onnxruntime(tmp_path, settings, backend, make):
    bundle = make(tmp_path / "real")
    obstacle = create(backend, bundle, settings=settings).obstacle(settings)
    if obstacle is not None:
        pytest.skip(obstacle)
    image = tiny_bundles.image(seed=5)
    wanted = expected(bundle, image)
    with create(backend, bundle, settings=settings) as runner:
        for found in (runner.infer(image), runner.infer(image)):
            for name, array in wanted.items():
                if array.dtype == np.uint8:  # ties depend on rounding
                    assert np.mean(found[name] != array) < 1e-3
                else:
                    # 27 products of order one, summed in another order: about 1e-6 of the value.
                    np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)

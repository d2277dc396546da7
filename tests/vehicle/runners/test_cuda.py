"""The driver's functions through ctypes: arguments and errors, tested on a stand-in."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from cuda_stand_in import DEVICE_NAME, CudaStandIn

from penumbra.vehicle.runners import RunnerError, cuda
from penumbra.vehicle.runners.cuda import Cuda, CudaError


@pytest.fixture
def driver():
    return CudaStandIn()


@pytest.fixture
def gpu(driver):
    gpu = Cuda(library=driver)
    gpu.open()
    yield gpu
    gpu.close()
    assert driver.leftovers() == {}


def test_name_and_capability(gpu):
    assert (gpu.name, gpu.capability) == (DEVICE_NAME, "8.7")


def test_upload_and_download(gpu):
    """Copies run in order, and only when the stream is synchronised."""
    stream = gpu.create_stream()
    source = gpu.allocate_pinned((3, 5), np.dtype(np.float32))
    target = gpu.allocate_pinned((3, 5), np.dtype(np.float32))
    address = gpu.allocate(source.nbytes)
    source[:] = np.arange(15).reshape(3, 5)
    target[:] = -1
    gpu.upload(address, source, stream)
    gpu.download(target, address, stream)
    assert (target == -1).all()
    gpu.synchronize(stream)
    np.testing.assert_array_equal(target, source)
    gpu.free(address)
    gpu.free_pinned(source)
    gpu.free_pinned(target)
    gpu.destroy_stream(stream)


def test_a_graph_repeats_the_captured_work(gpu):
    stream = gpu.create_stream()
    buffer = gpu.allocate_pinned((), np.dtype(np.float32))
    address = gpu.allocate(4)
    gpu.begin_capture(stream)
    gpu.upload(address, buffer, stream)
    gpu.download(buffer, address, stream)
    graph = gpu.end_capture(stream)
    for value in (1, 2):
        buffer[...] = value
        gpu.launch(graph, stream)
        gpu.synchronize(stream)
        assert buffer == value
    gpu.destroy_graph(graph)
    gpu.free(address)
    gpu.free_pinned(buffer)
    gpu.destroy_stream(stream)


def test_another_thread_must_make_the_gpu_current(gpu):
    outcome = []

    def work(prepare):
        try:
            prepare()
            gpu.free(gpu.allocate(8))
            outcome.append("done")
        except CudaError as error:
            outcome.append(error.code)

    for prepare in (lambda: None, gpu.make_current):
        thread = threading.Thread(target=work, args=[prepare])
        thread.start()
        thread.join()
    assert outcome == [201, "done"]


def test_a_failed_call_is_a_one_line_error(driver, gpu):
    driver.failures["cuMemAlloc_v2"] = 2
    with pytest.raises(
        CudaError, match="CUDA error 2 in cuMemAlloc_v2: stand-in error 2; free GPU"
    ):
        gpu.allocate(8)
    driver.failures["cuMemAlloc_v2"] = 719
    with pytest.raises(CudaError, match="CUDA error 719 in cuMemAlloc_v2: .*activate the runner"):
        gpu.allocate(8)


@pytest.mark.parametrize(
    "prepare, message",
    [
        (lambda d: setattr(d, "devices", 0), "the CUDA driver finds no GPU"),
        (lambda d: d.failures.update(cuInit=100), "the CUDA driver finds no GPU"),
        (lambda d: d.failures.update(cuInit=999), "CUDA error 999 in cuInit"),
        (lambda d: delattr(d, "cuGraphLaunch"), r"driver is too old \(it has no cuGraphLaunch\)"),
    ],
    ids=["none", "no device", "broken", "old"],
)
def test_an_unusable_driver(driver, prepare, message):
    prepare(driver)
    with pytest.raises(RunnerError, match=message):
        Cuda(library=driver)


@pytest.mark.parametrize("number", [-1, 1])
def test_an_invalid_gpu_number(driver, number):
    with pytest.raises(RunnerError, match=f"no GPU number {number}: choose from 0 to 0"):
        Cuda(number, driver)


def test_no_driver(monkeypatch):
    monkeypatch.setattr(cuda, "LIBRARY", "libcuda-missing.so.1")
    with pytest.raises(RunnerError) as caught:
        Cuda()
    assert str(caught.value) == (
        "no CUDA driver on this machine (libcuda-missing.so.1 cannot be loaded): install "
        "NVIDIA's driver, or use the runner onnxruntime"
    )


@pytest.mark.gpu
def test_a_real_driver_has_every_function():
    gpu = Cuda()
    assert gpu.name
    assert float(gpu.capability) >= 5

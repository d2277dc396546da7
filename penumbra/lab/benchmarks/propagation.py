"""The cost of variance propagation relative to the plain network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from penumbra.lab.timing import interleaved, ratio, torch_threads
from penumbra.offline.export.folding import fold_batch_norms
from penumbra.propagation import propagate

Session = Callable[[Path, Tensor], Callable[[], Any]]

CHANNELS, SIZE, LAYERS, CLASSES = 64, (96, 128), 6, 11


@dataclass(frozen=True)
class PropagationCost:
    """A propagated network relative to its plain form; `name` is the key of its goal."""

    name: str
    ratio: float
    plain: dict[str, float]
    propagated: dict[str, float]


def propagation_costs(repetitions: int, threads: int) -> list[PropagationCost]:
    """With dropout before the last layer, and with dropout before the first."""
    with torch_threads(threads):
        return _costs(repetitions, threads)


def _costs(repetitions: int, threads: int) -> list[PropagationCost]:
    torch.manual_seed(0)
    late = nn.Sequential(*_blocks(), nn.Dropout(0.2), _classifier()).eval()
    early = nn.Sequential(nn.Dropout(0.2), *_blocks(), _classifier()).eval()
    x = torch.rand(1, CHANNELS, *SIZE)
    return [
        _eager("late", late, x, "moment", repetitions),
        _eager("early, jacobian", early, x, "jacobian", repetitions),
        *(
            _exported(f"early, {runtime}", early, x, partial(session, threads=threads), repetitions)
            for runtime, session in (("OpenVINO", _openvino), ("ONNX Runtime", _onnxruntime))
        ),
    ]


def _blocks() -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        convolution = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(CHANNELS), nn.ReLU()]
    return layers


def _classifier() -> nn.Module:
    return nn.Conv2d(CHANNELS, CLASSES, 3, padding=1)


def _eager(name: str, model: nn.Module, x: Tensor, relu: str, repetitions: int) -> PropagationCost:
    propagated = propagate(model, relu=relu)
    with torch.inference_mode():
        return _cost(name, lambda: model(x), lambda: propagated(x), repetitions)


def _exported(
    name: str, model: nn.Module, x: Tensor, session: Session, repetitions: int
) -> PropagationCost:
    with TemporaryDirectory() as folder:
        plain = session(_onnx(model, x, Path(folder) / "plain.onnx"), x)
        walk = fold_batch_norms(propagate(model))
        propagated = session(_onnx(walk, x, Path(folder) / "propagated.onnx"), x)
    return _cost(name, plain, propagated, repetitions)


def _onnx(module: nn.Module, x: Tensor, file: Path) -> Path:
    torch.onnx.export(module, (x,), file, dynamo=True, verbose=False)
    return file


def _onnxruntime(file: Path, x: Tensor, threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)


def _openvino(file: Path, x: Tensor, threads: int) -> Callable[[], Any]:
    import openvino

    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})
    request = core.compile_model(core.read_model(file), "CPU").create_infer_request()
    return lambda: request.infer([x.numpy()])


def _cost(
    name: str, plain: Callable[[], Any], propagated: Callable[[], Any], repetitions: int
) -> PropagationCost:
    times = interleaved({"plain": plain, "propagated": propagated}, repetitions)
    return PropagationCost(
        name,
        ratio(times["propagated"], times["plain"]),
        times["plain"].facts(),
        times["propagated"].facts(),
    )

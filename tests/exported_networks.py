"""Networks with random weights that behave like trained ones, and what PyTorch says of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.bundle import Bundle
from penumbra.export.frame import Scores
from penumbra.models.monodepth import Monodepth
from penumbra.models.segnet import SegNet, normalise
from penumbra.propagation import propagate
from penumbra.training.camvid import CLASSES

WIDTH = 0.125


@functools.cache
def network(kind: str) -> nn.Module:
    """A network whose batch norms know the statistics of their inputs: activations of order one.

    Without that the noise of every layer would grow or vanish, and with it any difference. The
    shifts are moved a little, so that no bias is zero and some units are shut, as after training.
    """
    torch.manual_seed(0)
    if kind == "monodepth":
        model = Monodepth(width=WIDTH, batch_norm=True, size=(128, 256), rate=0.2)
    else:
        model = SegNet(CLASSES, width=WIDTH, dropout=kind, rate=0.2)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4, 3, 16, 24, generator=generator)
    images = F.interpolate(images, (128, 256), mode="bilinear")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain average
            nn.init.normal_(module.bias, std=0.3)
    model.train()
    with torch.no_grad():
        model(images)
    if kind != "monodepth":
        nn.init.normal_(model.classifier.bias, std=0.3)
    return model.eval()


def street(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colours with edges and fine noise, where no real picture is needed."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (6, 8, 3)).astype(np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).astype(float)
    return np.clip(image + random.normal(0, 6, image.shape), 0, 255).astype(np.uint8)


def run(bundle: Bundle, image: np.ndarray, extra: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """All outputs of a bundle by ONNX Runtime, and the values inside of it that `extra` names."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    model = onnx.load(bundle.model_file)
    for name in extra:
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {bundle.input.name: image}), strict=True))


def selections(bundle: Bundle) -> list[str]:
    """The names of the poolings' selections, encoder by encoder, in the graph of a SegNet."""
    graph = onnx.load(bundle.model_file).graph
    names = [n.output[0] for n in graph.node if n.name.split("_")[0] == "model.pool/Where"]
    integers = {
        v.name for v in graph.value_info if v.type.tensor_type.elem_type == onnx.TensorProto.INT32
    }
    return [name for name in names if name in integers]


@dataclass
class Flips:
    """Where a pooling chose another of (nearly) equal values than PyTorch."""

    forced: list[np.ndarray]  # phases 0 to 3 of each window, pooling by pooling
    windows: int = 0
    flipped: int = 0
    widest: float = 0.0  # the largest difference between the two choices, for values of order one

    def max_pool2d(self, x: Tensor, kernel_size: int, stride: int, return_indices: bool) -> tuple:
        """PyTorch's pooling, but with the other's choice, and a note of how they differ."""
        phases = torch.from_numpy(self.forced.pop(0)).long()
        rows = torch.arange(phases.shape[2])[:, None] * 2 + phases // 2
        columns = torch.arange(phases.shape[3]) * 2 + phases % 2
        forced = rows * x.shape[3] + columns
        largest, own = torch.max_pool2d(x, 2), F.max_pool2d_with_indices(x, 2)[1]
        chosen = x.flatten(2).gather(2, forced.flatten(2)).view_as(largest)
        gap = (largest - chosen) / (largest.abs() + 1)  # activations are of order one
        self.windows += own.numel()
        self.flipped += int((own != forced).sum())
        self.widest = max(self.widest, float(gap.max()))
        return largest, forced


@torch.inference_mode()
def reference(
    kind: str,
    image: np.ndarray,
    relu: str = "moment",
    flips: Flips | None = None,
    softmax: str = "jacobian",
) -> dict[str, np.ndarray]:
    """The same outputs by PyTorch's propagation of the network itself, written out once more."""
    model = network(kind)
    rgb = torch.from_numpy(image[..., ::-1].copy())[None]
    x = normalise(rgb, model.config["mean"], model.config["std"])
    with pytest.MonkeyPatch.context() as patch:
        if flips is not None:
            patch.setattr(F, "max_pool2d", flips.max_pool2d)
        logits, probabilities = propagate(Scores(model), relu=relu, softmax=softmax)(x)
    p = probabilities.mean[0].numpy()
    uncertainty = np.sqrt(probabilities.variance[0].numpy()).mean(0)
    return {
        "labels": p.argmax(0).astype(np.uint8),
        "uncertainty": uncertainty,
        "confidence": p.max(0),
        "frame_score": uncertainty.mean(),
        "entropy": -np.sum(p * np.log(np.maximum(p, 1e-38)), axis=0),
        "max_logit": logits.mean[0].numpy().max(0),
    }


def within(found: np.ndarray, expected: np.ndarray, relative: float, absolute: float) -> float:
    """The share of pixels that are within the tolerance."""
    return float(np.mean(np.abs(found - expected) <= relative * np.abs(expected) + absolute))

"""Networks with random weights that behave like trained ones, and their outputs in PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext

import cv2
import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from torch import nn

from penumbra.bundle import Bundle
from penumbra.offline.datasets.camvid_classes import CLASSES
from penumbra.offline.export.frame import Scores
from penumbra.offline.models.monodepth import Monodepth
from penumbra.offline.models.network import normalise
from penumbra.offline.models.segnet import SegNet
from penumbra.propagation import propagate
from penumbra.verification.parity import Choices

WIDTH = 0.125


@functools.cache
def network(kind: str | tuple[str, ...]) -> nn.Module:
    """A network whose batch norms have the statistics of their inputs: activations of order one.

    Otherwise the noise of every layer would grow or vanish, and with it any difference. The biases
    are random, so that none is zero and some units are inactive, as after training.
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
    """A synthetic image: smooth colours with edges and fine noise."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (6, 8, 3)).astype(np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).astype(float)
    return np.clip(image + random.normal(0, 6, image.shape), 0, 255).astype(np.uint8)


def run(bundle: Bundle, image: np.ndarray, extra: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """All outputs of a bundle by ONNX Runtime, and the inner values that `extra` names."""
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


@torch.inference_mode()
def reference(
    kind: str,
    image: np.ndarray,
    relu: str = "moment",
    flips: Choices | None = None,
    softmax: str = "jacobian",
) -> dict[str, np.ndarray]:
    """The same outputs by propagation in PyTorch, written independently."""
    model = network(kind)
    rgb = torch.from_numpy(image[..., ::-1].copy())[None]
    x = normalise(rgb, model.config["mean"], model.config["std"])
    with flips.applied() if flips is not None else nullcontext():
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

"""Exported propagated models (torch.export, and ONNX on ONNX Runtime) against eager PyTorch."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from function_models import Net
from torch import Tensor, nn

from penumbra.propagation import ExactMoments, Moments, propagate

# float32 along some twenty operations, with sums in another order.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


SLOW = pytest.mark.slow  # torch's conversion of some hundred nodes


class Small(nn.Module):
    """Every kind of rule that a segmentation or depth network needs."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.channels = nn.Dropout2d(0.2)
        self.first = nn.Conv2d(6, 8, 3, padding=1)
        self.relu, self.elu = nn.ReLU(), nn.ELU()
        self.pool = nn.MaxPool2d(2)
        self.elements = nn.Dropout(0.3)
        self.second = nn.Conv2d(8, 6, 3, padding=1)
        self.third = nn.Conv2d(12, 4, 1)

    def forward(self, x):
        x = self.stem(x)
        skip = self.norm(self.channels(x))
        x = self.pool(self.relu(self.first(skip)))
        x = self.elu(self.second(self.elements(x)))
        x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        x = self.third(torch.cat([x, skip], 1)) * 0.5
        return torch.sigmoid(x), x.softmax(1)


def model(**options: str) -> nn.Module:
    torch.manual_seed(0)
    net = Small()
    with torch.no_grad():
        net.norm.running_mean.uniform_(-1, 1)
        net.norm.running_var.uniform_(0.5, 2)
    return propagate(net.eval(), **options)


def flat(out: tuple[Moments, ...]) -> list[np.ndarray]:
    return [value.detach().numpy() for m in out for value in (m.mean, m.variance)]


FORMS = {  # the relu, smooth and max_pool options, and whether height and width are dynamic
    "first order": (("jacobian", "jacobian", "argmax"), False),
    "moments": (("moment", "moment", "argmax"), False),
    "moments, any size": (("moment", "jacobian", "argmax"), True),
}


@pytest.mark.parametrize(
    "name", [name if "moments" not in name else pytest.param(name, marks=SLOW) for name in FORMS]
)
def test_onnx_runtime_computes_what_eager_does(name, tmp_path):
    (relu, smooth, max_pool), dynamic = FORMS[name]
    options = {"relu": relu, "smooth": smooth, "max_pool": max_pool}
    walk = model(**options)
    x = torch.randn(1, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    shapes = None
    if dynamic:
        height, width = (torch.export.Dim(name, min=2, max=64) for name in ("h", "w"))
        shapes = (({2: 2 * height, 3: 2 * width},),)  # the walk's forward takes *inputs
    program = torch.onnx.export(
        walk, (x,), dynamo=True, dynamic_shapes=shapes, verbose=False,
        output_names=["mean_0", "variance_0", "mean_1", "variance_1"],
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [o.name for o in session.get_outputs()][1] == "variance_0"
    sizes = [(16, 24), (8, 12), (20, 16)] if dynamic else [(16, 24)]
    for size in sizes:
        x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
        results = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            expected = flat(walk(x))
        assert all((value >= 0).all() for value in results)
        for result, value in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, value, **CLOSE)


def test_torch_export_keeps_moments_as_outputs_and_as_inputs():
    walk = model()
    x = Moments(torch.randn(1, 3, 8, 8), torch.rand(1, 3, 8, 8))
    program = torch.export.export(walk, (x,))
    out = program.module()(x)
    assert isinstance(out[0], Moments)
    with torch.no_grad():
        expected = flat(walk(x))
    for result, value in zip(flat(out), expected, strict=True):
        np.testing.assert_allclose(result, value, **CLOSE)


def test_torch_export_keeps_exact_outputs():
    walk = propagate(Net(lambda net, x: (net.noise(x), 2 * x), noise=nn.Dropout(0.5)))
    x = torch.randn(2, 3)
    noisy, exact = torch.export.export(walk, (x,)).module()(x)
    assert not isinstance(noisy, ExactMoments)
    assert isinstance(exact, ExactMoments)
    assert torch.equal(exact.mean, 2 * x)
    assert torch.equal(exact.std, torch.zeros(2, 3))


def test_a_wrapper_of_plain_tensors_exports_as_well():
    """A model with the standard deviation as its single output."""

    class Std(nn.Module):
        def __init__(self, walk):
            super().__init__()
            self.walk = walk

        def forward(self, x: Tensor) -> Tensor:
            return self.walk(x)[1].std

    wrapped = Std(model())
    x = torch.randn(1, 3, 8, 8)
    program = torch.export.export(wrapped, (x,))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), wrapped(x), **CLOSE)

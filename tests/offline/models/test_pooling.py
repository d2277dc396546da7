"""The pooling functions against torch's operators, in both forms, with ties."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from penumbra.offline.models import pooling
from penumbra.offline.models.pooling import (
    MaxPool2x2,
    MaxUnpool2x2,
    gather_selected,
    scatter_selected,
    select_max,
)


def with_ties(seed: int, shape: tuple[int, ...], values: int = 3) -> Tensor:
    """Few distinct values, most of them zero: as after ReLU, nearly every window has a tie."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, values - 1, shape, generator=generator).relu().float()


@pytest.fixture(params=["native", "export"])
def form(request, monkeypatch):
    """Both forms run in eager mode, where they can be compared value by value."""
    monkeypatch.setattr(pooling, "_exporting", lambda: request.param == "export")
    return request.param


def torch_reference(mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
    """Pool, gather and unpool by nn.MaxPool2d's flat indices and nn.MaxUnpool2d."""
    pooled, indices = nn.MaxPool2d(2, return_indices=True)(mean)
    gathered = variance.flatten(2).gather(2, indices.flatten(2)).reshape(pooled.shape)
    unpool = nn.MaxUnpool2d(2)
    return pooled, gathered, unpool(pooled, indices), unpool(gathered, indices)


@pytest.mark.parametrize("shape", [(1, 1, 2, 2), (2, 3, 8, 6), (1, 5, 64, 32)])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_equals_torch_bit_for_bit_with_ties(form, shape, seed, layout):
    mean = with_ties(seed, shape).to(memory_format=layout)
    variance = torch.rand(shape, generator=torch.Generator().manual_seed(seed + 99))
    variance = variance.to(memory_format=layout)
    pooled, selection = select_max(mean)
    gathered = gather_selected(variance, selection)
    ours = (
        pooled,
        gathered,
        scatter_selected(pooled, selection),
        scatter_selected(gathered, selection),
    )
    for mine, theirs in zip(ours, torch_reference(mean, variance), strict=True):
        assert torch.equal(mine, theirs)


@given(st.lists(st.sampled_from([-1.5, 0.0, 2.0, float("-inf")]), min_size=4, max_size=4))
def test_every_pattern_of_ties_in_one_window_goes_to_the_first(window):
    x = torch.tensor(window).reshape(1, 1, 2, 2)
    places = torch.arange(4.0).reshape(1, 1, 2, 2)
    expected = float(np.argmax(window))  # numpy promises the first of equals
    with pytest.MonkeyPatch.context() as patch:
        for exporting in (False, True):
            patch.setattr(pooling, "_exporting", lambda exporting=exporting: exporting)
            _, selection = select_max(x)
            assert gather_selected(places, selection).item() == expected


@given(
    st.floats(-100, 100, width=32),
    st.lists(st.sampled_from([-1.0, -0.3, 0.0, 0.3, 1.0]), min_size=4, max_size=4),
)
def test_differences_within_rounding_are_ties(value, steps):
    places = torch.arange(4.0).reshape(1, 1, 2, 2)
    for size, clear in ((pooling.MARGIN / 4, False), (pooling.MARGIN * 8, True)):
        x = (value + (1 + abs(value)) * size * torch.tensor(steps)).reshape(1, 1, 2, 2)
        with pytest.MonkeyPatch.context() as patch:
            for exporting in (False, True):
                patch.setattr(pooling, "_exporting", lambda exporting=exporting: exporting)
                pooled, selection = select_max(x)
                assert pooled.item() == x.max().item()
                expected = int(np.argmax(steps)) if clear else 0
                assert gather_selected(places, selection).item() == expected


def test_infinite_values_leave_their_neighbours_zero(form):
    x = torch.tensor([[[[float("inf"), 1.0], [0.0, 2.0]]]])
    assert torch.equal(
        scatter_selected(*select_max(x)), torch.tensor([[[[float("inf"), 0.0], [0.0, 0.0]]]])
    )


def test_odd_sizes_are_refused():
    with pytest.raises(ValueError, match="even height and width"):
        select_max(torch.zeros(1, 1, 4, 5))


class MeanAndVariance(nn.Module):
    """What propagation does with the two modules: the same selection for mean and variance."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.unpool = MaxPool2x2(), MaxUnpool2x2()

    def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        pooled, selection = self.pool(mean)
        gathered = gather_selected(variance, selection)
        return pooled, gathered, self.unpool(pooled, selection), self.unpool(gathered, selection)


@pytest.mark.parametrize("traced", [False, True], ids=["module", "after torch.fx"])
def test_exported_graph_is_exact_and_has_no_operator_that_tensorrt_lacks(tmp_path, traced):
    # A plain trace must not freeze the native form.
    module = torch.fx.symbolic_trace(PoolUnpool()) if traced else MeanAndVariance()
    module.eval()
    inputs = tuple(torch.zeros(1, 2, 4, 6) for _ in range(1 if traced else 2))
    dynamic = tuple({2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC} for _ in inputs)
    file = tmp_path / "pooling.onnx"
    torch.onnx.export(module, inputs, dynamo=True, dynamic_shapes=dynamic, verbose=False).save(file)

    graph = onnx.load(file).graph
    assert not {"MaxPool", "MaxUnpool", "ScatterElements"} & {node.op_type for node in graph.node}
    session = onnxruntime.InferenceSession(file)
    names = [entry.name for entry in session.get_inputs()]
    for size in ((4, 6), (32, 18)):
        mean = with_ties(7, (1, 2, *size))
        variance = torch.rand(1, 2, *size, generator=torch.Generator().manual_seed(1))
        given_ = dict(zip(names, (mean.numpy(), variance.numpy()), strict=False))
        results = session.run(None, given_)
        expected = torch_reference(mean, variance)
        for mine, theirs in zip(results, expected[2:3] if traced else expected, strict=True):
            np.testing.assert_array_equal(mine, theirs.numpy())


class PoolUnpool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.unpool = MaxPool2x2(), MaxUnpool2x2()

    def forward(self, x: Tensor) -> Tensor:
        pooled, selection = self.pool(x)
        return self.unpool(pooled, selection)


def test_gradients_flow_to_the_selected_positions_only():
    x = with_ties(3, (1, 2, 8, 8)).requires_grad_()
    scatter_selected(*select_max(x)).sum().backward()
    reference = x.detach().clone().requires_grad_()
    pooled, indices = F.max_pool2d(reference, 2, return_indices=True)
    F.max_unpool2d(pooled, indices, 2).sum().backward()
    assert torch.equal(x.grad, reference.grad)
    assert x.grad.sum() == 2 * 16  # one position in each window

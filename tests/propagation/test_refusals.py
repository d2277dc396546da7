"""Errors of the walk, with the place: overwritten values, hidden noise, batch statistics."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from function_models import Net
from torch import nn

from penumbra.propagation import (
    ExactMoments,
    PropagationError,
    UnsupportedLayerError,
    UntraceableModelError,
    propagate,
)

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


def dropout(rate: float = 0.5) -> nn.Dropout:
    return nn.Dropout(rate)


# ---- values overwritten in place -----------------------------------------------------------------

FINE = {
    "a chain": lambda net, x: net.relu(net.noise(x)).add_(1).mul_(2),
    "an operator": lambda net, x: _increased(net.noise(x)),
    "only the shape is read": lambda net, x: _shape_afterwards(net.noise(x)),
    "a view of the result": lambda net, x: net.relu(net.noise(x)).view(-1),
    "in the prefix": lambda net, x: net.noise(net.relu(x + 0)),
    "noise in place": lambda net, x: net.relu(net.noise_in_place(x + 0)),
}
OVERWRITTEN = {
    "read later": lambda net, x: _read_after(x + 0, net.relu),
    "in the prefix": lambda net, x: net.noise(_read_after(x + 0, net.relu)),
    "after noise": lambda net, x: _read_after(net.noise(x), net.relu),
    "through a view": lambda net, x: _view_read(net.noise(x), net.relu),
    "through getitem": lambda net, x: _part_written(net.noise(x)),
    "through a transpose": lambda net, x: _transpose_written(net.noise(x)),
    "through switched-off dropout": lambda net, x: _dropped_written(net, x + 0),
    "before it is read as noise": lambda net, x: _exact_written(net, x + 0),
    "by add_": lambda net, x: _read_after(net.noise(x), lambda v: v.add_(1)),
    "by +=": lambda net, x: _read_after(net.noise(x), _increased),
    "by F.relu(inplace)": lambda net, x: _read_after(net.noise(x), lambda v: F.relu(v, True)),
    "by F.relu by name": lambda net, x: _read_after(
        net.noise(x), lambda v: F.relu(input=v, inplace=True)
    ),
    "by torch.relu_": lambda net, x: _read_after(net.noise(x), torch.relu_),
    "by dropout": lambda net, x: _read_after(x + 0, net.noise_in_place),
}


def _increased(v):
    v += 1
    return v


def _shape_afterwards(v):
    return torch.relu_(v).view(v.size(0), v.shape[1])


def _read_after(v, write):
    return write(v) + v


def _view_read(v, write):
    flat = v.flatten()
    return write(v).flatten() + flat


def _part_written(v):
    v[:, 0].add_(1)
    return v


def _transpose_written(v):
    v.T.relu_()
    return v


def _dropped_written(net, v):
    return net.relu(net.noise(v)) + v


def _exact_written(net, v):
    dropped = net.noise(v)
    return net.relu(v) + dropped


def in_place_net(function) -> Net:
    return Net(
        function, relu=nn.ReLU(inplace=True), noise=dropout(), noise_in_place=nn.Dropout(0.5, True)
    )


@pytest.mark.parametrize("name", FINE)
def test_overwriting_in_place_is_fine_if_the_old_value_is_not_read(name):
    out = propagate(in_place_net(FINE[name]), relu="jacobian")(X.clone())
    torch.testing.assert_close(out.mean, in_place_net(FINE[name])(X.clone()))
    assert (out.variance > 0).any()


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_an_overwritten_value_that_is_read_later_is_refused(name):
    message = "overwrites its input in place, and .* reads that input afterwards"
    with pytest.raises(PropagationError, match=message):
        propagate(in_place_net(OVERWRITTEN[name]))


# ---- errors with the place -----------------------------------------------------------------------


def test_a_layer_without_a_rule_is_named_with_its_place_and_the_way_out():
    model = nn.Sequential()
    model.add_module("encoder", nn.Sequential(dropout(), nn.Linear(3, 3)))
    model.add_module("decoder", nn.Sequential(nn.Linear(3, 3), nn.Softsign()))
    expected = (
        "layer 'decoder.1' (nn.Softsign): it has no rule, and its input is uncertain. Register "
        "one: @penumbra.propagation.rule(nn.Softsign) on a function"
    )
    with pytest.raises(UnsupportedLayerError, match=re.escape(expected)):
        propagate(model.eval())(X)


def test_a_function_without_a_rule_is_named_with_its_line():
    class Block(nn.Module):
        def forward(self, x):
            return x.cumsum(0)

    model = nn.Sequential(dropout(), nn.Sequential(Block())).eval()
    place = r"\"cumsum\" in layer '1\.0' \(.*test_refusals\.py:\d+\): .*rule\(\"cumsum\"\)"
    with pytest.raises(UnsupportedLayerError, match=place):
        propagate(model)(X)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(3).train(),
        nn.BatchNorm1d(3, track_running_stats=False).eval(),
        nn.SyncBatchNorm(3).train(),
    ],
)
@pytest.mark.parametrize("after_noise", [False, True])
def test_batch_statistics_are_refused_on_both_sides_of_the_noise(norm, after_noise):
    layers = [dropout(), norm] if after_noise else [norm, dropout()]
    place = f"layer '{int(after_noise)}' (nn.{type(norm).__name__}) normalises by the statistics"
    walk = propagate(nn.Sequential(*layers))
    with pytest.raises(PropagationError, match=re.escape(place)):
        walk(X)


@pytest.mark.parametrize(
    "norm",
    [
        lambda x: F.batch_norm(x, torch.zeros(3), torch.ones(3), training=True),
        lambda x: F.batch_norm(x, torch.zeros(3), torch.ones(3), None, None, True),
        lambda x: torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False),
    ],
)
def test_functional_batch_statistics_are_refused(norm):
    walk = propagate(Net(lambda net, x: net.noise(norm(x)), noise=dropout()))
    with pytest.raises(PropagationError, match=r"batch_norm \(.*normalises by the statistics"):
        walk(X)


def test_batch_norm_is_fine_again_after_eval():
    model = nn.Sequential(nn.BatchNorm1d(3), dropout())
    walk = propagate(model)
    with pytest.raises(PropagationError):
        walk(X)
    model.eval()
    assert not isinstance(walk(X), ExactMoments)


def test_control_flow_that_looks_at_values_names_the_submodule():
    class Branch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(Branch())).eval()
    with pytest.raises(UntraceableModelError, match=r"forward of '1\.0' \(.*Branch\)"):
        propagate(model)
    with pytest.raises(UntraceableModelError, match=r"forward of the model \(.*Branch\)"):
        propagate(Branch())


def test_a_wrong_shape_names_the_layer():
    for model in (nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2), dropout()),
                  nn.Sequential(dropout(), nn.Linear(5, 2))):  # fmt: skip
        name = "'1'"
        with pytest.raises(PropagationError, match=rf"layer {name} \(nn\.Linear\): mat1 and mat2"):
            propagate(model.eval())(X)


@pytest.mark.parametrize("rate", [1.0, 1])
def test_dropping_everything_is_refused_with_the_place(rate):
    with pytest.raises(PropagationError, match=r"layer '1' \(nn\.Dropout\): .*drops everything"):
        propagate(nn.Sequential(nn.Linear(3, 3), nn.Dropout(rate)).eval())(X)


HIDDEN = {
    "nn.LSTM": lambda: nn.LSTM(3, 3, 2, dropout=0.5),
    "nn.TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(3, 1, 4, dropout=0.1),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_dropout_inside_an_untraced_layer_raises_anywhere(name):
    layer = HIDDEN[name]().eval()

    def forward(net, x):
        result = net.layer(x, x, x) if "Attention" in name else net.layer(x)
        return net.noise(result[0])

    with pytest.raises(PropagationError, match=rf"layer 'layer' \({name}\) has dropout inside"):
        propagate(Net(forward, layer=layer, noise=dropout()))


def test_a_closed_layer_whose_rates_are_zero_is_allowed_before_the_noise():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0).eval()
    x = torch.randn(5, 1, 4)
    model = nn.Sequential(layer, dropout()).eval()
    with torch.no_grad():
        torch.testing.assert_close(propagate(model)(x).mean, layer(x))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x + torch.randn_like(x),
        lambda x: x * x.bernoulli(0.5),
        lambda x: F.gumbel_softmax(x),
        lambda x: x + torch.randn(3),
    ],
)
def test_random_numbers_outside_a_noise_layer_are_refused(draw):
    with pytest.raises(PropagationError, match=r"draws random numbers: .*propagation\.noise"):
        propagate(Net(lambda net, x: draw(x)))


def test_hooks_that_a_rule_would_leave_out_are_refused():
    model = nn.Sequential(dropout(), nn.Linear(3, 2)).eval()
    walk = propagate(model)
    handle = model[1].register_forward_hook(lambda layer, inputs, output: 2 * output)
    with pytest.raises(PropagationError, match=r"layer '1' \(nn\.Linear\): it has forward hooks"):
        walk(X)
    handle.remove()
    assert not isinstance(walk(X), ExactMoments)

"""The walk: what is left alone, what goes in and out, and what is refused, with its place."""

from __future__ import annotations

import copy
import re
import weakref
from collections import Counter, namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from penumbra.propagation import (
    AdditiveGaussianNoise,
    Moments,
    PropagationError,
    UnsupportedLayerError,
    UntraceableModelError,
    propagate,
)

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A forward given as a function of (self, *inputs), and layers by name."""

    def __init__(self, function, **layers: nn.Module):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.eval()

    def forward(self, x):
        return self.function(self, x)


def dropout(rate: float = 0.5) -> nn.Dropout:
    return nn.Dropout(rate)


class Calls(TorchDispatchMode):
    """Counts what torch executes."""

    def __init__(self):
        super().__init__()
        self.count: Counter = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count[str(function)] += 1
        return function(*args, **(kwargs or {}))


# ---- before the first noise ----------------------------------------------------------------------


def test_before_the_noise_exactly_the_plain_operations_are_executed():
    torch.manual_seed(0)
    prefix = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Softplus(), nn.Linear(4, 4),
    ).eval()  # fmt: skip
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
    model, x = propagate(nn.Sequential(prefix, head).eval()), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        with Calls() as plain:
            prefix(x)
        with Calls() as plain_head:
            head[1](torch.zeros(2, 4))
        with Calls() as propagated:
            out = model(x)
    added = propagated.count - plain.count - plain_head.count
    assert plain.count - propagated.count == Counter()  # nothing was left out
    # V = x² p/(1-p), W², W² V: five calls (the last is a transpose and a product), no more.
    squares = {"aten.pow.Tensor_Scalar": 2, "aten.mul.Tensor": 1}
    assert added == Counter({**squares, "aten.t.default": 1, "aten.mm.default": 1})
    assert out.variance is not None


def test_a_model_without_noise_is_the_plain_model():
    model = nn.Sequential(nn.Linear(3, 3), nn.Bilinear(3, 3, 2)).eval()
    model = Net(lambda net, x: net.pair(net.first(x), x), first=model[0], pair=model[1])
    with torch.no_grad(), Calls() as plain:
        expected = model(X)
    walk = propagate(model)
    with torch.no_grad(), Calls() as propagated:
        out = walk(X)
    assert plain.count == propagated.count
    assert out.variance is None
    assert torch.equal(out.mean, expected)
    assert torch.equal(out.std, torch.zeros(2, 2))


@pytest.mark.parametrize(
    "rate_zero", [nn.Dropout(0.0), nn.Dropout1d(0.0), AdditiveGaussianNoise(0)]
)
def test_noise_of_rate_zero_is_no_noise(rate_zero):
    x = X.unsqueeze(0)
    out = propagate(nn.Sequential(rate_zero, nn.Linear(3, 2)).eval())(x)
    assert out.variance is None


def test_any_layer_may_stand_before_the_noise():
    torch.manual_seed(0)

    def forward(net, x):
        states, (hidden, _) = net.lstm(x.unsqueeze(0))
        scale = torch.linalg.norm(x) + torch.logsumexp(hidden, -1).sum()
        attended, _ = net.attention(states, states, states)
        return net.head(net.noise(net.leaf(attended, states) * scale))

    model = Net(
        forward, lstm=nn.LSTM(3, 4), attention=nn.MultiheadAttention(4, 2),
        leaf=nn.Bilinear(4, 4, 3), noise=dropout(), head=nn.Linear(3, 2),
    )  # fmt: skip
    out = propagate(model)(X)
    torch.testing.assert_close(out.mean, model(X))
    assert (out.variance > 0).all()


# ---- inputs and outputs --------------------------------------------------------------------------

Pair = namedtuple("Pair", ["noisy", "exact"])


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise, self.first, self.second = dropout(), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x, y, *, scale=2.0, options=None):
        noisy = self.first(self.noise(x)) * scale
        exact = self.second(y)
        return {
            "both": noisy + exact,
            "list": [noisy, exact],
            "nested": ({"tuple": (exact, noisy)}, Pair(noisy, exact)),
            "number": 7,
        }


def test_several_inputs_and_nested_outputs():
    torch.manual_seed(0)
    model = Several().eval()
    y = X + 1
    walk = propagate(model)
    out, plain = walk(X, y, scale=3.0), model(X, y, scale=3.0)
    assert type(out) is dict
    assert type(out["list"]) is list
    assert type(out["nested"]) is tuple
    assert type(out["nested"][0]) is dict
    assert type(out["nested"][1]) is Pair
    assert out["number"] == 7
    torch.testing.assert_close(out["both"].mean, plain["both"])
    assert out["list"][1].variance is None
    assert out["nested"][0]["tuple"][0].variance is None
    variance = 9 * X.square() @ model.first.weight.square().T
    inner, pair = out["nested"]
    for noisy in (out["both"], out["list"][0], inner["tuple"][1], pair.noisy):
        torch.testing.assert_close(noisy.variance, variance)
    by_name = walk(y=y, x=X)
    torch.testing.assert_close(by_name["both"].variance, variance * 4 / 9)


def test_variable_numbers_of_inputs():
    class Variadic(nn.Module):
        def forward(self, *values, **named):
            return values[0] + 2 * values[1] + 3 * named["third"]

    one = Moments(X, torch.ones_like(X))
    out = propagate(Variadic().eval())(one, X, third=Moments(X, torch.ones_like(X)))
    torch.testing.assert_close(out.mean, 6 * X)
    torch.testing.assert_close(out.variance, torch.full_like(X, 10.0))


def test_inputs_in_containers_may_be_uncertain():
    model = Net(lambda net, x: x["pair"][0] - x["pair"][1])
    ones = torch.ones_like(X)
    out = propagate(model)({"pair": [Moments(X, ones), Moments(X)]})
    torch.testing.assert_close(out.variance, ones)


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((), {}, "the model's input 'x': it was not given"),
        ((X,), {}, "the model's input 'y': it was not given"),
        ((X, X, 1.0, None, X), {}, "the model has no input for 1 more"),
        ((X, X), {"z": X}, "the model has no input for 'z'"),
    ],
)
def test_missing_and_surplus_arguments(arguments, named, message):
    with pytest.raises(PropagationError, match=re.escape(message)):
        propagate(Several().eval())(*arguments, **named)


def test_inconsistent_moments_are_refused():
    walk = propagate(nn.Linear(3, 2))
    with pytest.raises(PropagationError, match=r"'input': its variance has the shape \(3,\)"):
        walk(Moments(X, torch.ones(3)))
    with pytest.raises(PropagationError, match="'input': its variance is negative"):
        walk(Moments(X, torch.full_like(X, -1e-30)))


def test_a_bare_layer_is_a_model():
    assert torch.equal(propagate(nn.Dropout(0.5).eval())(X).variance, X.square())
    assert propagate(nn.LSTM(3, 2))(X)[0].variance is None


def test_skip_connections():
    """x + W2 (drop (W1 x)): the skip is exact, the branch's variance passes."""
    torch.manual_seed(0)
    model = Net(
        lambda net, x: x + net.second(net.noise(net.first(x))),
        first=nn.Linear(3, 4), second=nn.Linear(4, 3), noise=dropout(),
    )  # fmt: skip
    out = propagate(model)(X)
    variance = model.first(X).square() @ model.second.weight.square().T
    torch.testing.assert_close(out.mean, model(X))
    torch.testing.assert_close(out.variance, variance)


def test_a_layer_used_twice_adds_noise_twice():
    model = Net(lambda net, x: net.noise(net.noise(x)), noise=dropout())
    torch.testing.assert_close(propagate(model)(X).variance, 3 * X.square())  # (1+1)² - 1


@pytest.mark.parametrize("function", [F.dropout, torch.dropout])
def test_functional_dropout_of_an_eval_mode_model_is_noise(function):
    model = Net(lambda net, x: function(x, 0.5, net.training))
    assert torch.equal(model(X), X)
    torch.testing.assert_close(propagate(model)(X).variance, X.square())


# ---- what is overwritten in place ----------------------------------------------------------------

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
def test_overwriting_in_place_is_fine_where_nobody_reads_the_old_value(name):
    out = propagate(in_place_net(FINE[name]), relu="jacobian")(X.clone())
    torch.testing.assert_close(out.mean, in_place_net(FINE[name])(X.clone()))
    assert (out.variance > 0).any()


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_an_overwritten_value_that_is_read_later_is_refused(name):
    message = "overwrites its input in place, and .* reads that input afterwards"
    with pytest.raises(PropagationError, match=message):
        propagate(in_place_net(OVERWRITTEN[name]))


# ---- refused, with the place ---------------------------------------------------------------------


def test_a_layer_without_a_rule_is_named_with_its_place_and_the_way_out():
    model = nn.Sequential()
    model.add_module("encoder", nn.Sequential(dropout(), nn.Linear(3, 3)))
    model.add_module("decoder", nn.Sequential(nn.Linear(3, 3), nn.Hardswish()))
    expected = (
        "layer 'decoder.1' (nn.Hardswish): it has no rule, and its input is uncertain. Register "
        "one: @penumbra.propagation.rule(nn.Hardswish) on a function"
    )
    with pytest.raises(UnsupportedLayerError, match=re.escape(expected)):
        propagate(model.eval())(X)


def test_a_function_without_a_rule_is_named_with_its_line():
    class Block(nn.Module):
        def forward(self, x):
            return x.cumsum(0)

    model = nn.Sequential(dropout(), nn.Sequential(Block())).eval()
    place = r"\"cumsum\" in layer '1\.0' \(.*test_tracing\.py:\d+\): .*rule\(\"cumsum\"\)"
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
    assert walk(X).variance is not None


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
    "nn.MultiheadAttention": lambda: nn.MultiheadAttention(3, 1, dropout=0.1),
    "nn.TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(3, 1, 4, dropout=0.1),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_dropout_inside_a_closed_layer_is_refused_wherever_it_stands(name):
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
    "attention",
    [
        lambda x: F.scaled_dot_product_attention(x, x, x, None, 0.1),
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1),
    ],
)
def test_dropout_inside_a_function_is_refused(attention):
    with pytest.raises(PropagationError, match=r"scaled_dot_product_attention .*dropout inside"):
        propagate(Net(lambda net, x: attention(x)))


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
    assert walk(X).variance is not None


# ---- NaN -----------------------------------------------------------------------------------------


def test_nan_stays_in_its_receptive_field():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.Dropout2d(0.5), nn.Conv2d(2, 2, 3, padding=1),
        nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(0.2), nn.ELU(), nn.Conv2d(2, 3, 1), nn.Softmax(1),
    ).eval()  # fmt: skip
    x = torch.randn(2, 1, 9, 9)
    x[0, 0, 4, 4] = float("nan")
    for relu in ("moment", "jacobian"):
        with torch.no_grad():
            out = propagate(model, relu=relu)(x)
        reached = torch.zeros(2, 3, 9, 9, dtype=torch.bool)
        reached[0, :, 2:7, 2:7] = True  # two 3x3 convolutions: five by five
        assert torch.equal(out.mean.isnan(), reached)
        assert torch.equal(out.variance.isnan(), reached)


def test_nan_in_a_variance_is_kept_too():
    variance = torch.ones_like(X)
    variance[0, 1] = float("nan")
    out = propagate(nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval())(Moments(X, variance))
    assert out.variance[0].isnan().all()
    assert not out.variance[1].isnan().any()


# ---- as a module ---------------------------------------------------------------------------------


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Dropout2d(0.3), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(8, 2),
    ).eval()  # fmt: skip


def test_weights_are_shared_with_the_model_not_copied():
    model = small_net()
    walk = propagate(model)
    ours, theirs = dict(walk.named_parameters()), dict(model.named_parameters())
    assert {f"model.{name}" for name in theirs} == set(ours)
    for name, parameter in theirs.items():
        assert ours[f"model.{name}"] is parameter
    before = walk(torch.ones(1, 1, 4, 4)).mean
    with torch.no_grad():
        model[-1].bias.add_(1)
    torch.testing.assert_close(walk(torch.ones(1, 1, 4, 4)).mean, before + 1)


def test_a_deep_copy_is_independent_and_equal():
    walk = propagate(small_net())
    twin = copy.deepcopy(walk)
    x = torch.ones(1, 1, 4, 4)
    torch.testing.assert_close(twin(x).variance, walk(x).variance, rtol=0, atol=0)
    with torch.no_grad():
        twin.model.get_parameter("6.weight").zero_()
    assert (twin(x).variance == 0).all()
    assert (walk(x).variance > 0).all()


def test_inference_mode_and_gradients():
    walk = propagate(small_net())
    x = torch.ones(1, 1, 4, 4)
    out = walk(x)
    out.variance.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in walk.parameters())
    with torch.inference_mode():
        torch.testing.assert_close(walk(x).variance, out.variance)


def test_other_types():
    """bfloat16 has 8 bits: 2^-8 per operation, a dozen of them along the way."""
    x = torch.rand(2, 1, 4, 4)
    exact = propagate(small_net().double())(x.double())
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 12 * 2**-8)):
        out = propagate(small_net()).to(dtype)(x.to(dtype))
        assert out.mean.dtype == out.variance.dtype == dtype
        scale = exact.mean.abs().max()
        assert ((out.mean.double() - exact.mean).abs() <= tolerance * scale).all()
        scale = exact.variance.abs().max()
        assert ((out.variance.double() - exact.variance).abs() <= tolerance * scale).all()


def test_modes_follow_the_model():
    assert not propagate(small_net()).training
    assert propagate(small_net().train()).training


def test_memory_of_spent_values_is_freed():
    """Only what is still read is held: of ten layers, never more than three values."""
    alive, peak = set(), 0

    def watch(layer, inputs, output):
        nonlocal peak
        alive.add(id(output))
        weakref.finalize(output, alive.discard, id(output))
        peak = max(peak, len(alive))

    layers = [nn.Linear(3, 3) for _ in range(10)]
    for layer in layers:
        layer.register_forward_hook(watch)
    with torch.no_grad():
        propagate(nn.Sequential(*layers, dropout()).eval())(X)
    assert peak <= 3

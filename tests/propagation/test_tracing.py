"""The walk: layers before the noise, inputs and outputs, and the walk as a module."""

from __future__ import annotations

import copy
import re
import weakref
from collections import Counter, namedtuple

import pytest
import torch
import torch.nn.functional as F
from function_models import Net
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from penumbra.propagation import (
    AdditiveGaussianNoise,
    ExactMoments,
    Moments,
    PropagationError,
    propagate,
)

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


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
    squares = {"aten.pow.Tensor_Scalar": 2, "aten.mul_.Tensor": 1}  # scaled in place
    assert added == Counter({**squares, "aten.t.default": 1, "aten.mm.default": 1})
    assert not isinstance(out, ExactMoments)


def test_a_model_without_noise_is_the_plain_model():
    model = nn.Sequential(nn.Linear(3, 3), nn.Bilinear(3, 3, 2)).eval()
    model = Net(lambda net, x: net.pair(net.first(x), x), first=model[0], pair=model[1])
    with torch.no_grad(), Calls() as plain:
        expected = model(X)
    walk = propagate(model, noiseless=True)
    with torch.no_grad(), Calls() as propagated:
        out = walk(X)
    assert plain.count == propagated.count
    assert isinstance(out, ExactMoments)
    assert torch.equal(out.mean, expected)
    assert torch.equal(out.variance, torch.zeros(2, 2))
    assert torch.equal(out.std, torch.zeros(2, 2))


@pytest.mark.parametrize(
    "rate_zero", [nn.Dropout(0.0), nn.Dropout1d(0.0), AdditiveGaussianNoise(0)]
)
def test_noise_of_rate_zero_is_no_noise(rate_zero):
    x = X.unsqueeze(0)
    model = nn.Sequential(rate_zero, nn.Linear(3, 2)).eval()
    assert isinstance(propagate(model, noiseless=True)(x), ExactMoments)
    with pytest.raises(PropagationError, match="no noise reaches the model's output"):
        propagate(model)(x)


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
    assert isinstance(out["list"][1], ExactMoments)
    assert isinstance(out["nested"][0]["tuple"][0], ExactMoments)
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
    out = propagate(model)({"pair": [Moments(X, ones), ExactMoments(X)]})
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
    assert isinstance(propagate(nn.LSTM(3, 2), noiseless=True)(X)[0], ExactMoments)


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
    """Values are freed after their last reader: of ten layers, at most three are alive."""
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

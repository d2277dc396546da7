"""Arithmetic and rearranging against the enumeration of every dropout mask.

What is linear in the noise is exact, so the whole list is held to 1e-10; what is not is compared
with Gauss-Hermite integration of a Gaussian.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation import Moments, PropagationError, propagate

RATE = 0.3
SHAPE = (2, 2, 2, 1)
EXACT = {"rtol": 1e-10, "atol": 1e-12}
GENERATOR = torch.Generator().manual_seed(0)
OTHER = torch.randn(SHAPE, generator=GENERATOR, dtype=torch.float64)
ROW = torch.randn(2, 1, generator=GENERATOR, dtype=torch.float64)
WIDE = torch.randn(3, 2, 2, 2, 4, generator=GENERATOR, dtype=torch.float64)
X = torch.randn(SHAPE, generator=GENERATOR, dtype=torch.float64)


class Noisy(nn.Module):
    """Noise, then a function."""

    def __init__(self, function: Callable, noise: nn.Module):
        super().__init__()
        self.function, self.noise = function, noise

    def forward(self, x):
        return self.function(self.noise(x))


def enumerated(function: Callable, x: Tensor, whole_channels: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance over every mask of a dropout of RATE, each with its probability."""
    shape = (*x.shape[:2], *(1,) * (x.dim() - 2)) if whole_channels else x.shape
    count = torch.Size(shape).numel()
    keep = torch.tensor(list(itertools.product([0.0, 1.0], repeat=count)), dtype=torch.float64)
    weight = ((1 - RATE) ** keep * RATE ** (1 - keep)).prod(1)
    results = torch.stack([function(x * mask.reshape(shape) / (1 - RATE)) for mask in keep])
    weight = weight.reshape(-1, *(1,) * (results.dim() - 1))
    mean = (weight * results).sum(0)
    return mean, (weight * (results - mean).square()).sum(0)


def check(function: Callable, whole_channels: bool) -> None:
    noise = nn.Dropout2d(RATE) if whole_channels else nn.Dropout(RATE)
    out = propagate(Noisy(function, noise).eval())(X)
    mean, variance = enumerated(function, X, whole_channels)
    torch.testing.assert_close(out.mean, mean, **EXACT)
    torch.testing.assert_close(out.variance, variance, **EXACT)


def in_place(name: str, *arguments) -> Callable:
    return lambda x: getattr(x, name)(*arguments)


def increased(x):
    x += 2
    return x


ARITHMETIC = {
    "x + 2": lambda x: x + 2,
    "2 + x": lambda x: 2 + x,
    "x + tensor": lambda x: x + OTHER,
    "tensor + x": lambda x: OTHER + x,
    "x + broadcast": lambda x: x + ROW,
    "x + larger": lambda x: x + WIDE,
    "torch.add alpha": lambda x: torch.add(x, OTHER, alpha=3),
    "torch.add alpha on x": lambda x: torch.add(OTHER, x, alpha=3),
    "torch.add by name": lambda x: torch.add(input=x, other=OTHER),
    "x.add": lambda x: x.add(1.5),
    "x.add_": in_place("add_", 1.5),
    "x.add_ tensor alpha": lambda x: x.add_(OTHER, alpha=-2),
    "x += ": lambda x: increased(x),
    "x - 2": lambda x: x - 2,
    "2 - x": lambda x: 2 - x,
    "tensor - x": lambda x: OTHER - x,
    "torch.sub alpha": lambda x: torch.sub(x, OTHER, alpha=2),
    "torch.rsub": lambda x: torch.rsub(x, OTHER, alpha=2),
    "x.sub_": in_place("sub_", 2),
    "-x": lambda x: -x,
    "x.neg_": in_place("neg_"),
    "x * 3": lambda x: x * 3,
    "x * tensor": lambda x: x * OTHER,
    "tensor * x": lambda x: OTHER * x,
    "x * broadcast": lambda x: x * ROW,
    "x * larger": lambda x: x * WIDE,
    "x.mul": lambda x: x.mul(OTHER),
    "x.mul_": in_place("mul_", -2),
    "x / 4": lambda x: x / 4,
    "x / tensor": lambda x: x / (2 + OTHER.abs()),
    "torch.div": lambda x: torch.div(x, 3),
    "x.div_": in_place("div_", 3),
    "x ** 1": lambda x: x**1,
}
ONE_VALUE_TWICE = {
    "x + x": lambda x: x + x,
    "x - x": lambda x: x - x,
    "x.add_(x)": lambda x: x.add_(x),
    "x + 2 x": lambda x: x + 2 * x,
    "x - x / 2": lambda x: x - 0.5 * x,
    "3 (x + 1) - x": lambda x: (x + 1) * 3 - x,
    "x + x * tensor": lambda x: x + x * OTHER,
    "x * row - x * tensor": lambda x: x * ROW - x * OTHER,
    "(x - mean) / scale + x": lambda x: (x - 0.3) / 0.7 + x,
    "torch.add(x, x, alpha)": lambda x: torch.add(x, x, alpha=-3),
    "x + clone": lambda x: x + x.clone(),
    "x + contiguous": lambda x: x + x.contiguous(),
    "x + detach": lambda x: x + x.detach(),
    "x + same type": lambda x: x + x.to(torch.float64).double(),
    "1 - x + x": lambda x: (1 - x) + x,
    "x + x + x": lambda x: x + x + x,
}
MOVES = {
    "reshape": lambda x: x.reshape(4, 2),
    "reshape tuple": lambda x: x.reshape((2, -1)),
    "torch.reshape": lambda x: torch.reshape(x, (2, 2, -1)),
    "view": lambda x: x.view(2, 4),
    "view from size": lambda x: x.view(x.size(0), -1),
    "view from shape": lambda x: x.view(x.shape[0], x.shape[1], -1),
    "view_as": lambda x: x.view_as(OTHER),
    "flatten": lambda x: x.flatten(),
    "torch.flatten 1": lambda x: torch.flatten(x, 1),
    "flatten 2": lambda x: x.flatten(2),
    "flatten -2": lambda x: x.flatten(-2),
    "flatten 0 1": lambda x: x.flatten(0, 1),
    "unflatten": lambda x: x.unflatten(1, (2, 1)),
    "nn.Flatten": nn.Flatten(),
    "nn.Unflatten": nn.Unflatten(1, (1, 2)),
    "nn.Identity": nn.Identity(),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "torch.permute": lambda x: torch.permute(x, (3, 1, 2, 0)),
    "transpose": lambda x: x.transpose(1, 2),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "movedim": lambda x: torch.movedim(x, 1, -1),
    ".mT": lambda x: x.mT,
    "squeeze": lambda x: x.squeeze(-1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x.expand(2, 2, 2, 3),
    "expand_as": lambda x: x.expand_as(OTHER.expand(3, *SHAPE)),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "flip": lambda x: x.flip(2),
    "roll": lambda x: torch.roll(x, 1, 0),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "torch.split": lambda x: torch.split(x, [1, 1], 2)[0],
    "split by name": lambda x: x.split(1, dim=2)[1],
    "unbind": lambda x: x.unbind(1)[0],
    "x[0]": lambda x: x[0],
    "x[-1]": lambda x: x[-1],
    "x[:, 1]": lambda x: x[:, 1],
    "x[1:]": lambda x: x[1:],
    "x[:, -1:]": lambda x: x[:, -1:],
    "x[..., 0]": lambda x: x[..., 0],
    "x[..., :1, :]": lambda x: x[..., :1, :],
    "x[:, ..., 0]": lambda x: x[:, ..., 0],
    "x[:, :, ::2]": lambda x: x[:, :, ::2],
    "x[None]": lambda x: x[None],
    "x[:, None, 0]": lambda x: x[:, None, 0],
    "x[list]": lambda x: x[[1, 0, 1]],
    "x[:, index]": lambda x: x[:, torch.tensor([1, 1, 0])],
    "x[mask]": lambda x: x[torch.tensor([True, False])],
    "x[: size]": lambda x: x[:, : x.size(1) - 1],
    "index_select": lambda x: x.index_select(2, torch.tensor([1])),
    "narrow": lambda x: x.narrow(2, 1, 1),
    "F.pixel_unshuffle": lambda x: F.pixel_unshuffle(x.expand(2, 2, 2, 2), 2),
    "cat": lambda x: torch.cat([x, OTHER], 1),
    "cat of tuple": lambda x: torch.cat((OTHER, x, x), dim=-2),
    "cat by name": lambda x: torch.cat(tensors=[x, OTHER], axis=0),
    "cat along -3": lambda x: torch.cat([OTHER, x, OTHER], -3),
    "stack": lambda x: torch.stack([x, OTHER], 1),
    "zeros_like": lambda x: x + torch.zeros_like(x) + x.new_ones(x.shape),
}
SUMS = {
    "sum": lambda x: x.sum(),
    "sum 1": lambda x: x.sum(1),
    "torch.sum dims": lambda x: torch.sum(x, (2, 3)),
    "sum dims kept": lambda x: x.sum((-1, -2), keepdim=True),
    "sum channels and positions": lambda x: x.sum((1, 2)),
    "sum all kept": lambda x: x.sum((0, 1, 2, 3), keepdim=True),
    "sum batch": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "mean 2": lambda x: x.mean(2),
    "mean positions": lambda x: x.mean([2, 3]),
    "mean axis": lambda x: x.mean(axis=(1, 2), keepdims=True),
    "torch.mean kept": lambda x: torch.mean(x, dim=1, keepdim=True),
}


@pytest.mark.parametrize("whole_channels", [False, True], ids=["dropout", "dropout2d"])
@pytest.mark.parametrize("name", [*ARITHMETIC, *ONE_VALUE_TWICE, *MOVES, *SUMS])
def test_exact_on_every_mask(name, whole_channels):
    check({**ARITHMETIC, **ONE_VALUE_TWICE, **MOVES, **SUMS}[name], whole_channels)


KEEPS_CHANNELS = {  # and the shape of what comes out, without its batch
    "x": (lambda x: x, (2, 2, 1)),
    "x + tensor": (lambda x: x + OTHER, (2, 2, 1)),
    "x * row": (lambda x: x * ROW, (2, 2, 1)),
    "x + 2 x": (lambda x: x + 2 * x, (2, 2, 1)),
    "contiguous": (lambda x: x.contiguous(), (2, 2, 1)),
    "x.to": (lambda x: x.to(torch.float64), (2, 2, 1)),
    "batch slice": (lambda x: x[1:], (2, 2, 1)),
    "channel slice": (lambda x: x[:, 1:], (1, 2, 1)),
    "slice of the front": (lambda x: x[:, :1, ...], (1, 2, 1)),
    "flatten 2": (lambda x: x.flatten(2), (2, 2)),
    "reshape": (lambda x: x.reshape(2, 2, 1, 2), (2, 1, 2)),
    "cat exact": (lambda x: torch.cat([x, OTHER], 1), (4, 2, 1)),
    "cat of slices": (lambda x: torch.cat([x[:, 1:], OTHER, 2 * x[:, :1]], 1), (4, 2, 1)),
    "mean": (lambda x: x.mean(3, keepdim=True), (2, 2, 1)),
}


@pytest.mark.parametrize("name", KEEPS_CHANNELS)
def test_noise_shared_by_channels_survives_until_the_convolution(name):
    """A convolution over all positions distinguishes shared from independent noise."""
    function, shape = KEEPS_CHANNELS[name]
    kernel = torch.randn(3, *shape, generator=GENERATOR, dtype=torch.float64)
    convolve = F.conv1d if len(shape) == 2 else F.conv2d
    check(lambda x: convolve(function(x), kernel), whole_channels=True)


def test_noise_shared_by_channels_survives_a_sum_with_other_noise():
    """Two dropouts that share their channels, and one that does not, added: variances add."""

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Dropout2d(RATE), nn.Dropout2d(RATE)
            self.third = nn.Dropout(RATE)

        def forward(self, x, y, z):
            return F.conv2d(self.first(x) - self.second(y) + self.third(z), KERNEL)

    out = propagate(Sum().eval())(X, OTHER, X + OTHER)
    parts = [
        enumerated(lambda v: F.conv2d(v, KERNEL), value, whole)
        for value, whole in ((X, True), (-OTHER, True), (X + OTHER, False))
    ]
    torch.testing.assert_close(out.mean, sum(mean for mean, _ in parts), **EXACT)
    torch.testing.assert_close(out.variance, sum(variance for _, variance in parts), **EXACT)


KERNEL = torch.randn(3, 2, 2, 1, generator=GENERATOR, dtype=torch.float64)


# ---- two independent values ----------------------------------------------------------------------


class Two(nn.Module):
    """A function of two values with independent noise."""

    def __init__(self, function: Callable):
        super().__init__()
        self.function = function
        self.first, self.second = nn.Dropout(RATE), nn.Dropout(RATE)

    def forward(self, x, y):
        return self.function(self.first(x), self.second(y))


TWO_VALUES = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x.add_(y, alpha)": lambda x, y: x.add_(y, alpha=-3),
    "x * y": lambda x, y: x * y,
    "x.mul_(y)": lambda x, y: x.mul_(y),
    "x + broadcast y": lambda x, y: x + y[:1],
    "x * broadcast y": lambda x, y: x[:1] * y,
    "x[0] * y[1] + 1": lambda x, y: x[0] * y[1] + 1,
    "cat": lambda x, y: torch.cat([x, y], 0),
    "stack": lambda x, y: torch.stack((y, x)),
    "x y - 2": lambda x, y: (2 * x) * (y / 3) - 2,
}


@pytest.mark.parametrize("name", TWO_VALUES)
def test_two_independent_values(name):
    """Every pair of masks; the product formula is exact for any distribution."""
    function = TWO_VALUES[name]
    x, y = X[:, :1, :, 0].squeeze(1)[:, :1], OTHER[:, :1, :1, 0].squeeze(1)
    both = torch.cat([x, y], 1)
    out = propagate(Two(function).eval())(x, y)
    mean, variance = enumerated(lambda v: function(v[:, :1], v[:, 1:]), both, False)
    torch.testing.assert_close(out.mean, mean, **EXACT)
    torch.testing.assert_close(out.variance, variance, **EXACT)


# ---- functions of a Gaussian ---------------------------------------------------------------------

GAUSSIAN = {
    "x * x": lambda x: x * x,
    "x ** 2": lambda x: x**2,
    "torch.pow": lambda x: torch.pow(x, 2),
    "x.pow_": lambda x: x.pow_(2),
    "x.square": lambda x: x.square(),
    "torch.square": lambda x: torch.square(x),
    "(2 x + 1) x": lambda x: (2 * x + 1) * x,
    "x (1 - x)": lambda x: x * (1 - x),
    "(3 - x) (x / 2 - 1)": lambda x: (3 - x) * (x / 2 - 1),
    "x.exp": lambda x: x.exp(),
    "torch.exp": lambda x: torch.exp(x),
}


@pytest.mark.parametrize("name", GAUSSIAN)
def test_functions_of_one_gaussian(name):
    """64 Gauss-Hermite nodes integrate polynomials exactly and exp (σ ≤ 1) to machine precision."""
    function = GAUSSIAN[name]
    mean = torch.linspace(-2, 2, 9, dtype=torch.float64)
    std = torch.linspace(0.0, 1.0, 9, dtype=torch.float64).flip(0)
    out = propagate(Noisy(function, nn.Identity()).eval())(Moments(mean, std.square()))
    nodes, weights = (torch.tensor(v) for v in np.polynomial.hermite_e.hermegauss(64))
    weights = (weights / weights.sum()).unsqueeze(1)
    results = function(mean + nodes.unsqueeze(1) * std)
    expected = (weights * results).sum(0)
    torch.testing.assert_close(out.mean, expected, **EXACT)
    variance = (weights * (results - expected).square()).sum(0)
    torch.testing.assert_close(out.variance, variance, **EXACT)


def test_a_value_minus_itself_has_no_variance_at_all():
    for function in (lambda x: x - x, lambda x: 2 * x - x - x, lambda x: x * 0.5 - x / 2):
        out = propagate(Noisy(function, nn.Dropout(RATE)).eval())(X)
        assert (out.variance == 0).all()


def test_copies_of_a_value_after_a_layer_count_as_independent():
    """The limit that the module's docstring states: x + relu(x) adds variances."""
    function = lambda x: x + torch.flip(x, (0,)).flip(0)  # noqa: E731
    out = propagate(Noisy(function, nn.Dropout(RATE)).eval())(X)
    _, variance = enumerated(function, X, False)
    torch.testing.assert_close(out.variance, variance / 2, **EXACT)


# ---- exact properties of an uncertain value, and errors ------------------------------------------


def test_shape_and_type_of_an_uncertain_value_are_exact():
    def function(x):
        mask = torch.ones(1).to(x)
        ramp = OTHER[:1].expand_as(x) * mask.type_as(x)
        return x * ramp + x.ndim + x.numel() + x.dim() + x.shape[0] + x.size()[1]

    check(function, whole_channels=False)


REFUSED = {
    "2 / x": (lambda x: 2 / x, "division by an uncertain value"),
    "x / y": (lambda x: OTHER / x, "division by an uncertain value"),
    "x / 2 rounded": (lambda x: torch.div(x, 2, rounding_mode="floor"), "rounding"),
    "x ** 3": (lambda x: x**3, "powers 1 and 2"),
    "2 ** x": (lambda x: 2**x, "powers 1 and 2"),
    "sum over a missing dimension": (lambda x: x.sum(7), "dimension 7"),
    "x @ x": (lambda x: x @ x, "with itself"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_line_of_the_model(name):
    function, message = REFUSED[name]
    with pytest.raises(PropagationError, match=rf"test_structural\.py:\d+\): .*{message}"):
        propagate(Noisy(function, nn.Dropout(RATE)).eval())(X)


def test_an_attribute_without_a_rule_is_refused():
    with pytest.raises(PropagationError, match=r"the attribute \.grad of an uncertain value"):
        propagate(Noisy(lambda x: x.grad, nn.Dropout(RATE)).eval())(X)

"""Affine layers: Var[W x + b] = W² Var[x] (the paper's diagonal special case of Σ' = W Σ Wᵀ).

The variance of each output is exact if the inputs are independent, as they are directly behind a
noise source on an exact value. Noise that is shared by the positions of a channel
(`ChannelMoments`) is exact as well:

    Var[W x] = W² ∗ independent + Σ_k Σ_c (W_c ∗ factor_kc)²,

where W_c is the part of the kernel that reads channel c.

The outputs of one position are mixed from the same inputs and correlated. A linear combination of
them, A W x, is the output of a layer with the weight A W, which is how `MixedMoments` computes its
variance.

`Gains` (see `propagation.gains`) multiply the squared weights, to account for correlated inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.gains import Gains, gains_of
from penumbra.propagation.moments import (
    ChannelMoments,
    MixedMoments,
    Moments,
    SimplexMoments,
    own_and_shared,
)
from penumbra.propagation.registry import rule
from penumbra.propagation.rules.simplex import weighted_mean

# Convolving channel by channel makes (inputs x outputs) maps; this many elements at a time.
_CHUNK_ELEMENTS = 1 << 25

Affine = Callable[[Tensor, Tensor, Tensor | None], Tensor]
PerChannel = Callable[[Tensor, Tensor], Tensor]
Squared = Callable[[Tensor, Tensor], Tensor]


def _affine(
    x: Moments,
    weight: Tensor,
    bias: Tensor | None,
    apply: Affine,
    per_channel: PerChannel,
    mixed: int | None = None,
    gains: Gains | None = None,
    of_squares: Squared | None = None,
) -> Moments:
    """Mean by the layer itself, variance by squared weights, shared noise channel by channel.

    Args:
        x, weight, bias: the layer's input and parameters.
        apply: the layer as a function of those.
        per_channel: Σ_c (W_c ∗ factor_c)² of a factor that channels share, and a weight.
        mixed: the dimension of the outputs, counted from the end, if they are also the weight's
            first dimension and all read the same inputs.
        gains: factors on the squared weights.
        of_squares: applies squared weights to a variance; by default `apply`.
    """
    if not isinstance(x, Moments) or isinstance(weight, Moments) or isinstance(bias, Moments):
        raise PropagationError("only the input of an affine layer may be uncertain, not its weight")
    of_squares = of_squares or (lambda value, squared: apply(value, squared, None))
    independent, factors = own_and_shared(x)

    def variance_of(weight: Tensor, gain: Tensor | None) -> Tensor:
        parts = [per_channel(factor, weight) for factor in factors]
        if independent is not None:
            squared = weight.square() if gain is None else weight.square() * gain
            parts.append(of_squares(independent, squared))
        return sum(parts[1:], parts[0])

    of_outputs, loadings, taps = gains or (None, None, None)
    mean, variance = apply(x.mean, weight, bias), variance_of(weight, of_outputs)
    if mixed is None:
        return Moments(mean, variance)

    if loadings is None:
        return MixedMoments(
            mean,
            variance,
            lambda rows: variance_of(torch.tensordot(rows.to(weight), weight, 1), None),
            mixed,
        )

    def sources() -> Tensor:
        return x.variance if taps is None else _each_channel(taps, x.variance)

    def of(rows: Tensor) -> Tensor:
        return _at_each_position((rows.to(loadings) @ loadings).square(), sources(), mixed)

    return MixedMoments(mean, variance, of, mixed, (loadings, sources))


_CONVOLUTIONS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}  # by the dimensions of a batch


def _each_channel(kernels: Tensor, x: Tensor) -> Tensor:
    """Each channel convolved with its own kernel; the size is kept."""
    padding = [size // 2 for size in kernels.shape[2:]]
    return _CONVOLUTIONS[x.dim()](x, kernels, padding=padding, groups=len(kernels))


def _sum_of_channels(x: Tensor) -> Tensor:
    """As a convolution: CPU runtimes that store channels last are slow at a plain sum."""
    return _CONVOLUTIONS[x.dim()](x, x.new_ones(1, x.shape[1], *(1 for _ in x.shape[2:])))


def _at_each_position(matrix: Tensor, x: Tensor, dim: int) -> Tensor:
    """`matrix` times the vectors along dimension `dim` (counted from the end)."""
    product: Tensor = torch.tensordot(matrix, x, ([1], [dim]))
    return product.movedim(0, dim)


@rule(F.linear)
def linear(
    x: Moments, weight: Tensor, bias: Tensor | None = None, gains: Gains | None = None
) -> Moments:
    """Σ_j W_ij² V_j."""

    def per_channel(factor: Tensor, weight: Tensor) -> Tensor:
        # The layer mixes the last dimension, along which the noise is shared.
        if factor.dim() != 2 or not isinstance(x, ChannelMoments):
            return F.linear(factor, weight).square()
        blocks = torch.unflatten(factor, 1, (x.channels, -1))
        kernels = torch.unflatten(weight, 1, (x.channels, -1))
        parts: Tensor = torch.einsum("bcp,ocp->boc", blocks, kernels)
        return parts.square().sum(-1)

    return _affine(x, weight, bias, F.linear, per_channel, mixed=-1, gains=gains)


@rule(nn.Linear)
def linear_layer(layer: nn.Linear, x: Moments) -> Moments:
    """Σ_j G_ij W_ij² V_j with the gains of the layer, if it has any."""
    return linear(x, layer.weight, layer.bias, gains_of(layer))


def _convolution(
    x: Moments, weight: Tensor, bias: Tensor | None, convolve: Callable[..., Tensor],
    groups: int, transposed: bool, gains: Gains | None = None, **geometry: Any,
) -> Moments:  # fmt: skip
    def apply(value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return convolve(value, weight, bias, groups=groups, **geometry)

    def per_channel(factor: Tensor, weight: Tensor) -> Tensor:
        """Σ_c (W_c ∗ factor_c)², as a convolution with one group per input channel."""
        inputs = factor.shape[1]
        if transposed:  # weight: (inputs, outputs/groups, …)
            kernels = torch.unflatten(weight, 0, (groups, inputs // groups))
        else:  # weight: (outputs, inputs/groups, …)
            kernels = torch.unflatten(weight, 0, (groups, -1)).transpose(1, 2)
        outputs = kernels.shape[2]  # per group; kernels: (groups, inputs/group, outputs/group, …)
        kernels = kernels.reshape(inputs, outputs, *weight.shape[2:])
        step = inputs // groups
        if not torch.compiler.is_exporting():  # a graph must not depend on the image's size
            size = factor.shape[0] * outputs * factor[0, 0].numel()
            step = max(1, min(step, _CHUNK_ELEMENTS // max(1, size)))
        total = []
        for group in range(groups):
            first, last = group * inputs // groups, (group + 1) * inputs // groups
            shares = []
            for start in range(first, last, step):
                stop = min(start + step, last)
                kernel = kernels[start:stop]
                kernel = kernel if transposed else kernel.flatten(0, 1).unsqueeze(1)
                maps = convolve(
                    factor[:, start:stop], kernel, None, groups=stop - start, **geometry
                )
                each = torch.unflatten(maps, 1, (stop - start, outputs))
                shares.append(each.square().sum(1))
            total.append(sum(shares[1:], shares[0]))
        return torch.cat(total, 1)

    def of_squares(value: Tensor, squared: Tensor) -> Tensor:
        """One output: channel by channel, then their sum.

        A CPU takes half the time for that, since it convolves to one output as slowly as to
        sixteen.
        """
        if not mixed or len(squared) > 1 or value.dim() != squared.dim():
            return apply(value, squared, None)
        kernels = squared.transpose(0, 1)
        return _sum_of_channels(convolve(value, kernels, None, groups=len(kernels), **geometry))

    mixed = None if transposed or groups > 1 else 1 - weight.dim()
    return _affine(x, weight, bias, apply, per_channel, mixed, gains, of_squares)


def _convolution_rule(convolve: Callable[..., Tensor]) -> None:
    @rule(convolve)
    def convolution(
        x: Moments, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
        padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> Moments:  # fmt: skip
        """W² ∗ V with the layer's own geometry."""
        return _convolution(
            x, weight, bias, convolve, groups, False,
            stride=stride, padding=padding, dilation=dilation,
        )  # fmt: skip


def _transposed_rule(convolve: Callable[..., Tensor]) -> None:
    @rule(convolve)
    def transposed_convolution(
        x: Moments, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
        padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
    ) -> Moments:  # fmt: skip
        """The transpose of a convolution is affine as well."""
        return _convolution(
            x, weight, bias, convolve, groups, True,
            stride=stride, padding=padding, output_padding=output_padding, dilation=dilation,
        )  # fmt: skip


for _function in (F.conv1d, F.conv2d, F.conv3d):
    _convolution_rule(_function)
for _transposed in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d):
    _transposed_rule(_transposed)


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution_layer(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Moments) -> Moments:
    """W² ∗ V.

    Padding by reflection or copying puts one value into a window twice. The diagonal does not know
    that the two are equal, so the variance of those border outputs is approximate (noise shared by
    a channel stays exact).
    """
    convolve = _function_of(layer)

    def apply(value: Tensor, weight: Tensor, bias: Tensor | None, **geometry: Any) -> Tensor:
        return convolve(pad(value), weight, bias, **geometry)

    def pad(value: Tensor) -> Tensor:
        if layer.padding_mode == "zeros":
            return value
        return F.pad(value, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)

    return _convolution(
        x, layer.weight, layer.bias, apply, layer.groups, False, gains_of(layer),
        stride=layer.stride, dilation=layer.dilation,
        padding=layer.padding if layer.padding_mode == "zeros" else 0,
    )  # fmt: skip


@rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def transposed_convolution_layer(
    layer: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d,
    x: Moments,
    output_size: list[int] | None = None,
) -> Moments:
    """W² ∗ᵀ V."""
    padding = [int(side) for side in layer.padding]
    output_padding = layer._output_padding(
        x.mean, output_size, list(layer.stride), padding, list(layer.kernel_size),
        layer.weight.dim() - 2, list(layer.dilation),
    )  # fmt: skip
    return _convolution(
        x, layer.weight, layer.bias, _function_of(layer), layer.groups, True, gains_of(layer),
        stride=layer.stride, padding=padding, output_padding=output_padding,
        dilation=layer.dilation,
    )  # fmt: skip


_FUNCTIONS: tuple[tuple[type[nn.Module], Callable[..., Tensor]], ...] = (
    (nn.Conv1d, F.conv1d),
    (nn.Conv2d, F.conv2d),
    (nn.Conv3d, F.conv3d),
    (nn.ConvTranspose1d, F.conv_transpose1d),
    (nn.ConvTranspose2d, F.conv_transpose2d),
    (nn.ConvTranspose3d, F.conv_transpose3d),
)


def _function_of(layer: nn.Module) -> Callable[..., Tensor]:
    """The function that a layer's class, or the class it inherits from, calls."""
    return next(function for kind, function in _FUNCTIONS if isinstance(layer, kind))


@rule(operator.matmul, torch.matmul, torch.bmm, torch.mm, "matmul", "bmm", "mm", "__matmul__")
def matrix_product(x: Tensor | Moments, y: Tensor | Moments) -> Moments:
    """Σ_k x_ik y_kj for independent factors: V_x @ y² + x² @ V_y + V_x @ V_y."""
    if x is y:
        raise PropagationError("the matrix product of an uncertain value with itself has no rule")
    if isinstance(x, SimplexMoments) and (y.mean if isinstance(y, Moments) else y).dim() > 1:
        return weighted_mean(x, y)
    if not isinstance(x, Moments):
        if not isinstance(y, Moments):
            raise PropagationError("a matrix product of exact values needs no rule")
        return Moments(x @ y.mean, x.square() @ y.variance)
    if not isinstance(y, Moments):
        return linear(x, y.mT) if y.dim() == 2 else Moments(x.mean @ y, x.variance @ y.square())
    variance = x.variance @ (y.mean.square() + y.variance) + x.mean.square() @ y.variance
    return Moments(x.mean @ y.mean, variance)

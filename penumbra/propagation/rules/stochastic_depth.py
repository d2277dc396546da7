"""Stochastic depth: noise that one batch element shares (DropPath), or one block of a map.

Registered by name for timm and torchvision, which need not be installed. For a class of one's own:

    from penumbra.propagation import noise
    from penumbra.propagation.rules.stochastic_depth import drop_path_layer

    noise(MyDropPath)(drop_path_layer)      # it has the rate as `drop_prob` or `p`
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import Moments
from penumbra.propagation.registry import noise
from penumbra.propagation.rules.noise import dropout_variance


def drop_path(x: Tensor | Moments, rate: float, scaled: bool = True) -> Tensor | Moments:
    """x_i = z a_i, one z for all elements of a batch element: V = a² p/(1-p) + V p/(1-p) + V.

    Without `scaled` (division by 1-p) mean and standard deviation are 1-p times that. All elements
    vary together, which the diagonal does not know: `propagate(model, coherent=True)` carries it.
    """
    variance = dropout_variance(rate)
    if variance == 0:
        return x
    keep = 1.0 if scaled else 1 - rate
    mean = x.mean if isinstance(x, Moments) else x
    own = x.variance * (1 + variance) if isinstance(x, Moments) else 0.0
    return Moments(mean * keep, (mean.square() * variance + own) * keep**2)


@noise("timm.layers.drop.DropPath", "torchvision.ops.stochastic_depth.StochasticDepth")
def drop_path_layer(layer: Any, x: Tensor | Moments) -> Tensor | Moments:
    """`drop_path` by the layer's own rate."""
    if getattr(layer, "mode", "row") != "row":
        raise PropagationError(
            "stochastic depth with mode='batch' makes batch elements depend on each other: use "
            "mode='row'"
        )
    return drop_path(x, *rate_of(layer))


def rate_of(layer: Any) -> tuple[float, bool]:
    """The rate of a layer, and whether it divides by 1-p."""
    rate = layer.drop_prob if hasattr(layer, "drop_prob") else layer.p
    return float(rate or 0), bool(getattr(layer, "scale_by_keep", True))


@noise("timm.layers.drop.drop_path")
def drop_path_function(
    x: Tensor | Moments, drop_prob: float = 0.0, training: bool = False, scale_by_keep: bool = True
) -> Tensor | Moments:
    """timm's function."""
    return drop_path(x, drop_prob, scale_by_keep)


@noise("torchvision.ops.stochastic_depth.stochastic_depth")
def stochastic_depth_function(
    x: Tensor | Moments, p: float, mode: str, training: bool = True
) -> Tensor | Moments:
    """torchvision's function."""
    if mode != "row":
        raise PropagationError("stochastic depth has a rule for mode='row', not 'batch'")
    return drop_path(x, p)


SHARED_BY_ALL = (drop_path_layer, drop_path_function, stochastic_depth_function)
"""The rules of noise that all elements of a batch element share."""


@noise("timm.layers.drop.DropBlock2d", "torchvision.ops.drop_block.DropBlock2d")
def drop_block(layer: Any, x: Tensor | Moments) -> Tensor | Moments:
    """Squares of a map dropped, then scaled back to its mean: about dropout of the same rate.

    Each element is dropped with about the layer's rate (less at borders); neighbours are dropped
    together, which the diagonal leaves out.
    """
    rate = layer.drop_prob if hasattr(layer, "drop_prob") else layer.p
    return drop_path(x, float(rate))  # the diagonals are the same

"""Gains of the variance, which `gain_fitting` puts on affine layers and their rules read.

Var[Σ_j W_ij x_j] = Σ_j W_ij² V_j holds for independent x_j. In a trained network noise is
correlated: a few layers behind its source it moves many channels and neighbouring positions
together, and the products W_ij W_ik Cov(x_j, x_k) that the diagonal leaves out sum to many times
what it keeps. How much they add depends mostly on the network, not on the image. A layer with gains
therefore has

    V'_i = Σ_j G_ij W_ij² V_j        with one gain G_ij > 0 for each pair of channels,

a convolution with other numbers: nothing is added at run time.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

_ATTRIBUTE = "penumbra_gains"


class Gains(NamedTuple):
    """The gains of one layer.

    Attributes:
        outputs: factors on the squared weights: (outputs, inputs, 1, …).
        loadings: None, or how the noise of each input moves all outputs together, signed:
            (outputs, inputs). Only for a layer whose outputs a softmax reads, which needs their
            covariance.
        taps: None, or the weights of each input's neighbourhood before the loadings, (inputs, 1,
            *kernel): the squared kernel as one shape per input.
    """

    outputs: Tensor
    loadings: Tensor | None = None
    taps: Tensor | None = None


def gains_of(layer: nn.Module) -> Gains | None:
    """The gains of a layer, or None if it has none."""
    gains = getattr(layer, _ATTRIBUTE, None)
    return gains if isinstance(gains, Gains) else None


def set_gains(layer: nn.Module, gains: Gains | None) -> None:
    """Put gains on a layer, or remove them (None). The layer's state dict does not change."""
    object.__setattr__(layer, _ATTRIBUTE, gains)

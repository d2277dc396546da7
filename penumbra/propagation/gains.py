"""What calibration puts onto an affine layer, and the rules of affine layers read.

Var[Σ_j W_ij x_j] = Σ_j W_ij² V_j holds for independent x_j. In a trained network noise is coherent:
a few layers behind its source it moves many channels and neighbouring positions together, and the
products W_ij W_ik Cov(x_j, x_k) that the diagonal leaves out add up to many times of what it keeps.
How much they add, is mostly the network's and not the picture's. So a calibrated layer has

    V'_i = Σ_j G_ij W_ij² V_j        with one gain G_ij > 0 for each pair of channels,

which is a convolution with other numbers: nothing is added at run time.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

_ATTRIBUTE = "penumbra_gains"


class Gains(NamedTuple):
    """Of one layer.

    Attributes:
        outputs: multiplies the squared weights: (outputs, inputs, 1, …).
        loadings: None, or how the noise of each input moves all outputs together, signed:
            (outputs, inputs). Only for a layer whose outputs a softmax reads: it asks how far they
            vary against each other.
        taps: how much of each input's neighbourhood is taken before that, (inputs, 1, *kernel):
            the layer's kernel, squared, as one shape per input. None for a layer without.
    """

    outputs: Tensor
    loadings: Tensor | None = None
    taps: Tensor | None = None


def gains_of(layer: nn.Module) -> Gains | None:
    """The gains of a layer, if it was calibrated."""
    return getattr(layer, _ATTRIBUTE, None)


def set_gains(layer: nn.Module, gains: Gains | None) -> None:
    """Calibrate a layer; None takes its gains away. The layer's state dict stays as it is."""
    object.__setattr__(layer, _ATTRIBUTE, gains)

"""Variance propagation: epistemic uncertainty of any PyTorch model, in one pass, without sampling.

After Postels et al., "Sampling-free epistemic uncertainty estimation using approximated variance
propagation" (ICCV 2019), with its errors corrected where the docstrings say so.

    from penumbra.propagation import propagate

    out = propagate(model)(x)     # Moments: out.mean, out.variance
"""

from penumbra.propagation.errors import (
    DuplicateRuleError,
    PropagationError,
    UnsupportedLayerError,
    UntraceableModelError,
)
from penumbra.propagation.layers import (
    AdditiveGaussianNoise,
    MonteCarloBatchNorm,
    MultiplicativeGaussianNoise,
    fit_batchnorm_noise,
)
from penumbra.propagation.moments import Moments
from penumbra.propagation.propagate import Propagated, propagate
from penumbra.propagation.registry import noise, rule

__all__ = [
    "AdditiveGaussianNoise",
    "DuplicateRuleError",
    "Moments",
    "MonteCarloBatchNorm",
    "MultiplicativeGaussianNoise",
    "Propagated",
    "PropagationError",
    "UnsupportedLayerError",
    "UntraceableModelError",
    "fit_batchnorm_noise",
    "noise",
    "propagate",
    "rule",
]

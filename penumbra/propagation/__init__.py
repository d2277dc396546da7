"""Variance propagation: epistemic uncertainty of a PyTorch model in one pass, without sampling.

After Postels et al., "Sampling-free epistemic uncertainty estimation using approximated variance
propagation" (ICCV 2019); the docstrings name the errors of the paper that are corrected here.

    from penumbra.propagation import monte_carlo, propagate

    out = propagate(model)(x)                        # Moments: out.mean, out.variance, out.std
    reference = monte_carlo(model, x, samples=1000)  # the same by sampling
"""

from penumbra.propagation.add_dropout import add_dropout
from penumbra.propagation.compare import SampledComparison, compare
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
from penumbra.propagation.moments import ExactMoments, Moments
from penumbra.propagation.montecarlo import monte_carlo
from penumbra.propagation.propagate import Propagated, propagate
from penumbra.propagation.registry import layer, noise, rule

__all__ = [
    "AdditiveGaussianNoise",
    "DuplicateRuleError",
    "ExactMoments",
    "Moments",
    "MonteCarloBatchNorm",
    "MultiplicativeGaussianNoise",
    "Propagated",
    "PropagationError",
    "SampledComparison",
    "UnsupportedLayerError",
    "UntraceableModelError",
    "add_dropout",
    "compare",
    "fit_batchnorm_noise",
    "layer",
    "monte_carlo",
    "noise",
    "propagate",
    "rule",
]

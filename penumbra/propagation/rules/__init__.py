"""The rules, by family. Importing this package registers them."""

from penumbra.propagation.rules import (  # noqa: F401
    activation,
    affine,
    arithmetic,
    clipped,
    elu,
    logistic,
    noise,
    normalization,
    pooling,
    resampling,
    smooth,
    softmax,
    structural,
)

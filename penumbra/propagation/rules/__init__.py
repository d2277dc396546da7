"""The rules, by family. Importing this package registers them."""

from penumbra.propagation.rules import (  # noqa: F401
    activation,
    affine,
    elu,
    noise,
    normalization,
    pooling,
    resampling,
    softmax,
    structural,
)

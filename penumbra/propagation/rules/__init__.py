"""The rules, by family. Importing this package registers them."""

import penumbra.propagation.rules.activation
import penumbra.propagation.rules.affine
import penumbra.propagation.rules.arithmetic
import penumbra.propagation.rules.attention
import penumbra.propagation.rules.clipped
import penumbra.propagation.rules.contraction
import penumbra.propagation.rules.elu
import penumbra.propagation.rules.logistic
import penumbra.propagation.rules.noise
import penumbra.propagation.rules.normalization
import penumbra.propagation.rules.pooling
import penumbra.propagation.rules.positive
import penumbra.propagation.rules.resampling
import penumbra.propagation.rules.selection
import penumbra.propagation.rules.smooth
import penumbra.propagation.rules.softmax
import penumbra.propagation.rules.stochastic_depth
import penumbra.propagation.rules.structural  # noqa: F401

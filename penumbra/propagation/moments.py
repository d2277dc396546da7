"""The values of the walk: mean and variance of random tensors, and parts of their covariance.

Inside the walk a value is either exact, a plain `Tensor`, or uncertain, `Moments` with a variance.
A rule is called only if one of its arguments is uncertain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and element-wise variance of a random tensor.

    Subclasses know more about how the elements vary together; `variance` is the diagonal of their
    covariance.
    """

    mean: Tensor
    variance: Tensor

    # Not a field but a note of the arithmetic rules: (z, a) if this value is a·z plus a constant.
    origin: ClassVar[tuple[Moments, float | Tensor] | None] = None

    @property
    def std(self) -> Tensor:
        """The standard deviation of each element."""
        return self.variance.sqrt()

    @property
    def typical(self) -> Tensor:
        """What most samples are near: the median if it is known, otherwise the mean."""
        return self.mean

    def diagonal(self) -> Moments:
        """The same moments without what is known of the covariance."""
        return Moments(self.mean, self.variance)


class ExactMoments(Moments):
    """An output that no noise reaches: its variance is zero, and computed only if it is read."""

    def __init__(self, mean: Tensor) -> None:
        object.__setattr__(self, "mean", mean)

    @property
    def variance(self) -> Tensor:
        """Zeros."""
        return torch.zeros_like(self.mean)

    @property
    def std(self) -> Tensor:
        """Zeros."""
        return self.variance

    def diagonal(self) -> Moments:
        """The value itself."""
        return self


# Both may be an output of a model that torch.export sees.
torch.export.register_dataclass(Moments, serialized_type_name="penumbra.Moments")
pytree.register_pytree_node(
    ExactMoments,
    lambda exact: ([exact.mean], None),
    lambda children, _: ExactMoments(*children),
    serialized_type_name="penumbra.ExactMoments",
)


class RectifiedMoments(Moments):
    """Moments of max(0, X), which remember the mean of the Gaussian X."""

    unrectified: Tensor

    def __init__(self, mean: Tensor, variance: Tensor, unrectified: Tensor) -> None:
        super().__init__(mean, variance)
        object.__setattr__(self, "unrectified", unrectified)

    @property
    def typical(self) -> Tensor:
        """The median, max(0, E[X]): zero if more than half of the samples are zero."""
        return self.unrectified.clamp(min=0)


class ChannelMoments(Moments):
    """Moments of a value with noise that is shared by all positions of a channel.

    Along dimension 1 the value consists of `channels` blocks. Element i of block c of one batch
    element is `mean_i + e_i + Σ_k factors_k[i] ε_kc`, where the `e_i` are independent with variance
    `independent_i` (None: no such part) and the `ε_kc` are independent with variance one. So

        Cov(i, j) = δ_ij independent_i + [same block] Σ_k factors_k[i] factors_k[j].

    `Dropout2d` and the batch statistics of Monte-Carlo batch norm make such noise. A linear map
    within channels (pooling, resampling, batch norm, flatten) applies to the factors themselves;
    the next affine layer mixes channels and turns the factors into plain variance, exactly.
    """

    independent: Tensor | None
    factors: tuple[Tensor, ...]
    channels: int

    def __init__(
        self,
        mean: Tensor,
        independent: Tensor | None,
        factors: tuple[Tensor, ...],
        channels: int | None = None,
    ) -> None:
        channels = mean.shape[1] if channels is None else channels
        for name, value in (
            ("mean", mean),
            ("independent", independent),
            ("factors", factors),
            ("channels", channels),
        ):
            object.__setattr__(self, name, value)

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance: `independent + Σ_k factors_k²`."""
        first, *rest = (factor.square() for factor in self.factors)
        shared = sum(rest, first)
        return shared if self.independent is None else self.independent + shared


class MixedMoments(Moments):
    """Moments of channels that an affine layer has mixed from the same inputs.

    The channels z of one position are correlated. Their covariance is computed only on request:
    `of(A)` is the variance Var[A z] of linear combinations of the channels of each position, one
    for each row of the matrix A, along the dimension `dim` (counted from the end). It determines
    the covariance:

        Cov(z_i, z_j) = (V_i + V_j - Var[z_i - z_j]) / 2.

    If few sources ξ are known to make all of it, z = μ + Σ_r loadings_r √sources_r ξ_r, `factors`
    holds the loadings (channels x sources) and a function that computes the sources' variances.
    """

    of: Callable[[Tensor], Tensor]
    dim: int
    factors: tuple[Tensor, Callable[[], Tensor]] | None

    def __init__(
        self,
        mean: Tensor,
        variance: Tensor,
        of: Callable[[Tensor], Tensor],
        dim: int,
        factors: tuple[Tensor, Callable[[], Tensor]] | None = None,
    ) -> None:
        super().__init__(mean, variance)
        for name, value in (("of", of), ("dim", dim), ("factors", factors)):
            object.__setattr__(self, name, value)

    def moved(
        self, move: Callable[[Tensor], Tensor], squared: Callable[[Tensor], Tensor]
    ) -> MixedMoments:
        """Apply a linear map of positions that is the same for any number of channels."""
        of, factors = self.of, self.factors
        if factors is not None:
            loadings, sources = factors
            factors = loadings, lambda: squared(sources())
        mean, variance = move(self.mean), squared(self.variance)
        return MixedMoments(mean, variance, lambda rows: squared(of(rows)), self.dim, factors)


class SimplexMoments(Moments):
    """Weights that sum to one along the last dimension: a softmax of scores.

    `spread` computes the mean weights and the variance `own` that each has by its own score. To
    first order the weighted mean Σ_k p_k v_k varies by Σ_k own_k (v_k - Σ_j p_j v_j)², since what
    all v_k have in common does not vary; the weights' variances alone would count it. `dropped` is
    variance of dropout behind the softmax, after which the weights no longer sum to one.
    """

    spread: Callable[[], tuple[Tensor, Tensor]]
    dropped: Tensor | None

    def __init__(
        self,
        mean: Tensor,
        variance: Tensor,
        spread: Callable[[], tuple[Tensor, Tensor]],
        dropped: Tensor | None = None,
    ) -> None:
        super().__init__(mean, variance)
        object.__setattr__(self, "spread", spread)
        object.__setattr__(self, "dropped", dropped)


class CopiedMoments(Moments):
    """Moments of copies: along dimension d every element stands `counts[d]` times."""

    counts: tuple[int, ...]

    def __init__(self, mean: Tensor, variance: Tensor, counts: tuple[int, ...]) -> None:
        super().__init__(mean, variance)
        object.__setattr__(self, "counts", counts)


class CovarianceMoments(Moments):
    """Mean (…, N) and covariance matrix (…, N, N) of random vectors."""

    covariance: Tensor

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)


def own_and_shared(x: Moments) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """The independent variance of each element, and the factors that channels share."""
    return (x.independent, x.factors) if isinstance(x, ChannelMoments) else (x.variance, ())


def map_within_channels(
    x: Moments,
    affine: Callable[[Tensor], Tensor],
    linear: Callable[[Tensor], Tensor] | None = None,
    squared: Callable[[Tensor], Tensor] | None = None,
    alike: bool = False,
) -> Moments:
    """Apply an affine map that mixes no channels: `affine` to the mean, `squared` to the variance.

    Args:
        x: the value.
        affine: the map.
        linear: the map without its constant part; `affine` by default. Noise that a channel shares
            goes through it, so that its correlation stays exact.
        squared: the map with the squares of linear's coefficients; `linear` by default, which is
            right if every coefficient is 0 or 1 (selecting, copying, moving).
        alike: the map is the same for every channel, and for any number of them. What is known of
            mixed channels is then kept.
    """
    linear = linear or affine
    squared = squared or linear
    if isinstance(x, ChannelMoments):
        independent = None if x.independent is None else squared(x.independent)
        factors = tuple(linear(factor) for factor in x.factors)
        return ChannelMoments(affine(x.mean), independent, factors, x.channels)
    if alike and isinstance(x, MixedMoments):
        return x.moved(affine, squared)
    return Moments(affine(x.mean), squared(x.variance))

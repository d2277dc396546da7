"""What is known of an uncertain tensor: its mean and the variance of each of its elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and element-wise variance of a random tensor; `variance is None` means: exact.

    Subclasses know more about how the elements vary together. Whoever does not ask for that
    reads `mean` and `variance`, which is the diagonal of the covariance.
    """

    mean: Tensor
    variance: Tensor | None = None

    # No field, but a note of arithmetic: (z, a) where this is a·z plus a constant.
    origin = None
    # Another note: how to get the median of each element where it differs from the mean.
    median: ClassVar[Callable[[], Tensor] | None] = None

    @property
    def std(self) -> Tensor:
        """The standard deviation of each element (zero where the value is exact)."""
        if self.variance is None:
            return torch.zeros_like(self.mean)
        return self.variance.sqrt()

    @property
    def typical(self) -> Tensor:
        """What most samples are near: the median where it is known to differ, or the mean."""
        return self.mean if self.median is None else self.median()

    def diagonal(self) -> Moments:
        """The same moments with nothing but the variance of each element kept."""
        return Moments(self.mean, self.variance)


torch.export.register_dataclass(Moments, serialized_type_name="penumbra.Moments")


class ChannelMoments(Moments):
    """Moments of a value with noise that is shared by all positions of a channel.

    Along dimension 1 the value consists of `channels` blocks. Element i of block c of one batch
    element is `mean_i + e_i + Σ_k factors_k[i] ε_kc`, where the `e_i` are independent with variance
    `independent_i` (None: no such part) and the `ε_kc` are independent with variance one. So

        Cov(i, j) = δ_ij independent_i + [same block] Σ_k factors_k[i] factors_k[j].

    This is what `Dropout2d` and the batch statistics of Monte-Carlo batch norm make. A linear map
    within channels (pooling, resampling, batch norm, flatten) is applied to the factors as it
    stands; the next affine layer mixes channels and turns them into plain variance, exactly.
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
    def variance(self) -> Tensor:  # type: ignore[override]
        """The diagonal of the covariance: `independent + Σ_k factors_k²`."""
        shared = sum(factor.square() for factor in self.factors)
        return shared if self.independent is None else self.independent + shared


class MixedMoments(Moments):
    """Moments of channels that an affine layer has mixed from the same inputs.

    The channels of one position vary together. How, is told when it is asked for, and costs nothing
    otherwise: `of(A)` is the variance Var[A z] of linear combinations of the channels z of each
    position, one for each row of the matrix A, along the dimension `dim` (counted from the end).
    That is their covariance in another form:

        Cov(z_i, z_j) = (V_i + V_j - Var[z_i - z_j]) / 2.

    Where it is known that few sources ξ make all of it, z = μ + Σ_r loadings_r √sources_r ξ_r,
    `factors` are the loadings (channels x sources) and what computes the sources' variances.
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
        """Apply a linear map of positions that is the same for every channel, however many."""
        of, factors = self.of, self.factors
        if factors is not None:
            loadings, sources = factors
            factors = loadings, lambda: squared(sources())
        mean, variance = move(self.mean), squared(self.variance)
        return MixedMoments(mean, variance, lambda rows: squared(of(rows)), self.dim, factors)


class CovarianceMoments(Moments):
    """Mean (…, N) and covariance matrix (…, N, N) of random vectors."""

    covariance: Tensor

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The diagonal of the covariance."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)


def map_within_channels(
    x: Moments,
    affine: Callable[[Tensor], Tensor],
    linear: Callable[[Tensor], Tensor] | None = None,
    squared: Callable[[Tensor], Tensor] | None = None,
    alike: bool = False,
) -> Moments:
    """Apply an affine map that mixes no channels: `affine` to the mean, `squared` to the variance.

    `linear` is `affine` without its constant part (by default the same: no constant part) and
    `squared` the map whose coefficients are the squares of linear's (by default linear itself,
    right where every coefficient is 0 or 1: selecting, copying, moving). Channel-wide noise is
    carried through `linear`, so its coherence stays exact. A map that is `alike` for every channel,
    whatever their number, keeps also what is known of channels that were mixed.
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

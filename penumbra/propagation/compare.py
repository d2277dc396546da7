"""How far propagation is from sampling, for one model and one input."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import ExactMoments, Moments
from penumbra.propagation.montecarlo import monte_carlo
from penumbra.propagation.propagate import Propagated, leaves, propagate
from penumbra.propagation.tracing import is_noise, place


@dataclass(frozen=True)
class SampledComparison:
    """Propagation beside sampling.

    Attributes:
        error: mean |σ̂ - σ| over mean σ.
        ratio: mean σ̂ over mean σ; below 1, propagation finds too little.
        mean_error: mean |μ̂ - μ| over mean σ.
        sampling_error: what `error` would be for a perfect σ̂, from the number of samples alone.
        samples: the number of samples.
        noise: the places where noise enters.
        seconds: of one propagation, of one plain pass, and of all samples.
    """

    error: float
    ratio: float
    mean_error: float
    sampling_error: float
    samples: int
    noise: tuple[str, ...]
    seconds: tuple[float, float, float]

    def __str__(self) -> str:
        ours, plain, sampled = self.seconds
        return (
            f"σ: {self.error:.1%} off, ratio {self.ratio:.2f} ({self.samples} samples alone are "
            f"{self.sampling_error:.1%} off); mean: {self.mean_error:.1%} of σ off\n"
            f"cost: {ours / max(plain, 1e-9):.1f} plain passes, against "
            f"{sampled / max(plain, 1e-9):.0f} of sampling\n"
            f"noise enters at {len(self.noise)} places: {', '.join(self.noise[:5])}"
            + (", …" if len(self.noise) > 5 else "")
        )


def compare(
    model: nn.Module | Propagated,
    *inputs: Any,
    samples: int = 200,
    seed: int = 0,
    walk: Propagated | None = None,
    **options: Any,
) -> SampledComparison:
    """Propagate `model` and sample it on the same inputs.

    Args:
        model: as for `propagate`, in eval mode.
        inputs: the model's inputs, also the example that it is traced with.
        samples: of Monte Carlo.
        seed: of Monte Carlo.
        walk: a propagated model with gains, instead of a new one.
        options: those of `propagate`.
    """
    walk = walk or propagate(model, example=inputs, **options)
    with torch.no_grad():
        found, ours = _timed(lambda: walk(*inputs), warm=True)
        _, plain = _timed(lambda: model(*(_mean(x) for x in inputs)), warm=True)
    sampled, seconds = _timed(lambda: monte_carlo(model, *inputs, samples=samples, seed=seed))
    pairs = [
        (f, s)
        for f, s in zip(leaves(found), leaves(sampled), strict=True)
        if isinstance(f, Moments) and isinstance(s, Moments) and not isinstance(s, ExactMoments)
    ]
    if not pairs:
        raise PropagationError("no output of the model is uncertain")
    ours_std, std = (torch.cat([p[i].std.double().flatten() for p in pairs]) for i in (0, 1))
    shift = torch.cat([(f.mean - s.mean).double().flatten() for f, s in pairs])
    size = float(std.mean()) or 1.0
    nodes = walk.model.graph.nodes
    return SampledComparison(
        error=float((ours_std - std).abs().mean()) / size,
        ratio=float(ours_std.mean()) / size,
        mean_error=float(shift.abs().mean()) / size,
        # A sampled σ of a Gaussian has the relative error N(0, 1/2n), whose mean size is this.
        sampling_error=(1 / (torch.pi * samples)) ** 0.5,
        samples=samples,
        noise=tuple(place(n, walk.model) for n in nodes if is_noise(n, walk.model, walk.registry)),
        seconds=(ours, plain, seconds),
    )


def _mean(x: Any) -> Any:
    return x.mean if isinstance(x, Moments) else x


def _timed(work: Callable[[], Any], warm: bool = False) -> tuple[Any, float]:
    if warm:
        work()
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start

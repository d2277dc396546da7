"""One architecture: does it go through, how far is it from sampling, what does it cost."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.lab.experiments.networks.catalogue import DROPOUT, Entry, build
from penumbra.propagation import Propagated, add_dropout, monte_carlo, propagate
from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import ExactMoments, Moments
from penumbra.propagation.propagate import leaves
from penumbra.propagation.tracing import is_noise, place

_SHARED = ("DropPath", "StochasticDepth", "stochastic_depth", "drop_path", "Dropout2d", "dropout2d")


@dataclass(frozen=True)
class Row:
    """A line of the table. `error` and `ratio` are of σ; None where they were not measured."""

    title: str
    noise: int
    reason: str = ""
    error: float | None = None
    ratio: float | None = None
    coherent_error: float | None = None
    coherent_ratio: float | None = None
    warned: bool = False
    cost: float | None = None
    coherent_cost: float | None = None
    sampling_cost: float | None = None


def image(size: int, seed: int = 0) -> Tensor:
    """Smooth shapes with some texture: neighbouring pixels are alike, as in photographs."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.randn(1, 3, 6, 6, generator=random)
    shapes = F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)
    return shapes + 0.2 * torch.randn(1, 3, size, size, generator=random)


def measure(entry: Entry, samples: int, seed: int = 0) -> Row:
    """The row of an architecture. ImportError if its package is not installed."""
    model = build(entry, seed)
    if entry.dropout is not None:
        model = add_dropout(model, DROPOUT, entry.dropout)
    x = image(entry.size, seed)
    try:
        walk = propagate(model, example=x)
        with warnings.catch_warnings(record=True) as warned, torch.no_grad():
            warnings.simplefilter("always")
            found, cost = _timed(walk, x)
    except PropagationError as problem:
        return Row(entry.title, 0, reason=str(problem).splitlines()[0])
    places = _noise_places(walk)
    plain = _plain_seconds(model, x)
    start = time.perf_counter()
    sampled = monte_carlo(model, x, samples=samples, seed=seed)
    sampling = time.perf_counter() - start
    error, ratio = _agreement(found, sampled)
    together: dict[str, Any] = {}
    if any(name in place for place in places for name in _SHARED):
        try:
            with torch.no_grad():
                other, seconds = _timed(propagate(model, example=x, coherent=True), x)
            first, second = _agreement(other, sampled)
            together = {
                "coherent_error": first, "coherent_ratio": second, "coherent_cost": seconds / plain,
            }  # fmt: skip
        except PropagationError as problem:
            together = {"reason": f"coherent: {str(problem).splitlines()[0]}"}
    about = [w for w in warned if "propagate" in str(w.message) or "gains" in str(w.message)]
    return Row(
        entry.title, len(places), error=error, ratio=ratio, warned=bool(about),
        cost=cost / plain, sampling_cost=sampling / plain, **together,
    )  # fmt: skip


def _noise_places(walk: Propagated) -> list[str]:
    nodes = walk.model.graph.nodes
    return [place(n, walk.model) for n in nodes if is_noise(n, walk.model, walk.registry)]


def _timed(walk: nn.Module, x: Tensor) -> tuple[Any, float]:
    walk(x)
    start = time.perf_counter()
    return walk(x), time.perf_counter() - start


def _plain_seconds(model: nn.Module, x: Tensor, repetitions: int = 3) -> float:
    with torch.no_grad():
        model(x)
        times = []
        for _ in range(repetitions):
            start = time.perf_counter()
            model(x)
            times.append(time.perf_counter() - start)
    return min(times)


def _agreement(found: Any, sampled: Any) -> tuple[float, float]:
    """Mean |σ̂ - σ| over mean σ, and the ratio of the means, over all uncertain outputs."""
    pairs = [
        (f.std.double().flatten(), s.std.flatten())
        for f, s in zip(leaves(found), leaves(sampled), strict=True)
        if isinstance(s, Moments) and not isinstance(s, ExactMoments)
    ]
    ours, theirs = (torch.cat([p[i] for p in pairs]) for i in (0, 1))
    size = float(theirs.mean())
    return float((ours - theirs).abs().mean()) / size, float(ours.mean()) / size

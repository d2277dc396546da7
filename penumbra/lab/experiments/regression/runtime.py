"""Runtime of predictions with uncertainty, for all test rows of a split at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penumbra.lab.experiments.regression.data import Normalisation, RegressionSet
from penumbra.lab.experiments.regression.prediction import propagated
from penumbra.lab.experiments.regression.stacked_networks import DropoutNetwork
from penumbra.propagation.montecarlo import monte_carlo

SAMPLES = 10_000
_TIMED = 500  # passes that are timed, extrapolated to SAMPLES


def runtime(data: RegressionSet) -> dict[str, float]:
    """Median seconds of 10,000 samples, and of propagation with either ReLU.

    The time does not depend on the weights, so the network is untrained. The faster of sampling
    pass by pass (as Gal does) and in batches counts.
    """
    train, test = data.splits[0]
    x = torch.from_numpy(Normalisation.on(data.x[train], data.y[train]).inputs(data.x[test]))
    model = DropoutNetwork(x.shape[1], data.hidden, 0.05).eval()
    found = {
        "mc_one_by_one": _seconds(lambda: one_by_one(model, x, _TIMED), 3) * SAMPLES / _TIMED,
        "mc_together": _seconds(lambda: monte_carlo(model, x, samples=_TIMED), 3)
        * SAMPLES / _TIMED,
        "jacobian": _seconds(lambda: propagated(model, x, "jacobian"), 9),
        "moment": _seconds(lambda: propagated(model, x, "moment"), 3),
    }  # fmt: skip
    return {"mc": min(found["mc_one_by_one"], found["mc_together"]), **found}


@torch.no_grad()
def one_by_one(model: nn.Module, x: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Mean and variance by plain passes with dropout on."""
    model.train()
    total, squares = torch.zeros(len(x), 1), torch.zeros(len(x), 1)
    for _ in range(samples):
        drawn = model(x)
        total += drawn
        squares += drawn**2
    model.eval()
    mean = total / samples
    return mean, squares / samples - mean**2


def _seconds(call: Callable[[], Any], repetitions: int) -> float:
    call()
    taken = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def samples_of_equal_cost(model: DropoutNetwork, x: Tensor) -> dict[str, float]:
    """Seconds of one sample (the faster way) and of ours, and how many samples cost as much."""
    found = {
        "sample_one_by_one": _seconds(lambda: one_by_one(model, x, _TIMED), 5) / _TIMED,
        "sample_together": _seconds(lambda: monte_carlo(model, x, samples=_TIMED), 5) / _TIMED,
        **{relu: _seconds(partial(propagated, model, x, relu), 15)
           for relu in ("jacobian", "moment")},
    }  # fmt: skip
    one = min(found["sample_one_by_one"], found["sample_together"])
    return found | {f"{relu}_samples": found[relu] / one for relu in ("jacobian", "moment")}

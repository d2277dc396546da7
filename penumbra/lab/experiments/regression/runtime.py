"""What a prediction with uncertainty costs, for all test rows of a split at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penumbra.lab.experiments.regression.data import RegressionSet, Scaled
from penumbra.lab.experiments.regression.prediction import propagated
from penumbra.propagation.montecarlo import monte_carlo

SAMPLES = 10_000
_TIMED = 500  # passes are all alike: so many are timed, for the time of SAMPLES


def runtime(data: RegressionSet) -> dict[str, float]:
    """Seconds of 10,000 samples, and of the propagation with either ReLU (medians).

    Weights do not change the time, so the network is not a trained one. Of sampling pass by pass
    (as Gal does) and many passes together the faster counts.
    """
    train, test = data.splits[0]
    x = torch.from_numpy(Scaled.on(data.x[train], data.y[train]).inputs(data.x[test]))
    features = x.shape[1]
    model = nn.Sequential(
        nn.Dropout(0.05), nn.Linear(features, data.hidden), nn.ReLU(),
        nn.Dropout(0.05), nn.Linear(data.hidden, 1),
    ).eval()  # fmt: skip
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


def crossing_of_cost(model: nn.Module, x: Tensor) -> dict[str, float]:
    """Seconds of one sample (of the faster way) and of ours, and how many samples ours is worth."""
    found = {
        "sample_one_by_one": _seconds(lambda: one_by_one(model, x, _TIMED), 5) / _TIMED,
        "sample_together": _seconds(lambda: monte_carlo(model, x, samples=_TIMED), 5) / _TIMED,
        **{relu: _seconds(lambda relu=relu: propagated(model, x, relu), 15)
           for relu in ("jacobian", "moment")},
    }  # fmt: skip
    one = min(found["sample_one_by_one"], found["sample_together"])
    return found | {f"{relu}_samples": found[relu] / one for relu in ("jacobian", "moment")}

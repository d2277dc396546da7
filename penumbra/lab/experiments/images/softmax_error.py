"""The error of softmax rules as a function of the variance of the scores.

The paper's text refers to such an analysis in its supplement, which does not contain it. Here:
mean score vectors of a trained network, independent Gaussian noise of one variance on all classes,
and sampled mean and standard deviation of the probabilities as the reference. All error is that of
the softmax rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from penumbra.propagation import Moments, propagate

STDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)  # of the scores
SAMPLES = 4_000
RULES = ("jacobian", "moment")


@torch.no_grad()
def softmax_error(
    scores: Tensor, stds: Sequence[float] = STDS, samples: int = SAMPLES, seed: int = 0
) -> dict[str, Any]:
    """For `scores` (pixels x classes), by rule, one value for each standard deviation in `stds`:

    - std: mean |σ̂ - σ| / mean σ of the mean standard deviation over the classes;
    - ratio: mean σ̂ / mean σ;
    - mean: total variation between the mean predictions, ½ Σ_k |p̂_k - p_k|, on average.
    """
    generator = torch.Generator().manual_seed(seed)
    walks = {rule: propagate(nn.Softmax(1).eval(), softmax=rule) for rule in RULES}
    found: dict[str, Any] = {rule: {"std": [], "ratio": [], "mean": []} for rule in RULES}
    for noise in stds:
        true = _sampled(scores, noise, samples, generator)
        sigma = true.std.mean(1)
        for rule, walk in walks.items():
            guess = walk(Moments(scores, torch.full_like(scores, noise**2)))
            off = guess.std.mean(1) - sigma
            found[rule]["std"].append(float(off.abs().mean() / sigma.mean()))
            found[rule]["ratio"].append(1 + float(off.mean() / sigma.mean()))
            found[rule]["mean"].append(float((guess.mean - true.mean).abs().sum(1).mean() / 2))
    return {"stds": list(stds), "pixels": len(scores), "samples": samples, **found}


def _sampled(scores: Tensor, noise: float, samples: int, generator: torch.Generator) -> Moments:
    # Sums of differences: for a nearly certain class, sums of squares would cancel to zero.
    centre = torch.softmax(scores, 1)
    total, squares = torch.zeros_like(scores), torch.zeros_like(scores)
    for _ in range(samples):
        noisy = scores + noise * torch.randn(scores.shape, generator=generator)
        off = torch.softmax(noisy, 1) - centre
        total += off
        squares += off.square()
    shift = total / samples
    return Moments(centre + shift, (squares / samples - shift.square()).clamp(min=0))

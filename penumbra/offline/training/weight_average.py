"""Exponential moving average of a model's weights, which is validated and saved."""

from __future__ import annotations

import copy

import torch

from penumbra.offline.models.network import Network


class WeightAverage:
    """`model` holds θ̄ ← d θ̄ + (1 - d) θ after each step, batch-norm statistics included.

    d grows from 0.1 to `decay` as (1 + n)/(10 + n), so that the average adapts quickly at first.
    """

    def __init__(self, model: Network, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._tensors = list(self.model.state_dict().values())

    @torch.no_grad()
    def update(self, model: Network, step: int) -> None:
        """Add the weights of `model` after `step`."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averaged, current = [], []
        for mine, theirs in zip(self._tensors, model.state_dict().values(), strict=True):
            if mine.dtype.is_floating_point:
                averaged.append(mine)
                current.append(theirs)
            else:  # batch norm's counter
                mine.copy_(theirs)
        torch._foreach_lerp_(averaged, current, 1.0 - decay)

"""Muon (Jordan et al. 2024): momentum whose matrices are made orthogonal before each step.

All directions of a convolution's matrix advance at the same speed, not only those with large
gradients. `torch.optim.Muon` accepts two-dimensional weights only, so convolutions are flattened
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# Of the quintic iteration: steep at zero, so that few iterations suffice; singular values end
# between 0.7 and 1.2, which is near enough.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95


class Muon(torch.optim.AdamW):
    """Muon for the weights in groups with `"orthogonal": True`, AdamW for the others.

    The steps of both have the same root mean square (Liu et al. 2025), so one rate and one weight
    decay serve both.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float) -> None:
        super().__init__([{"orthogonal": False} | group for group in groups], lr=lr, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # one overload only
        """One step of all weights that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["orthogonal"]:
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._advance(weight, weight.grad, group["lr"], group["weight_decay"])
                        weight.grad = None  # AdamW passes over weights without a gradient
        super().step()
        return loss

    def _advance(self, weight: Tensor, gradient: Tensor, rate: float, decay: float) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())  # AdamW wants it in every saved state
            state["momentum_buffer"] = torch.zeros_like(weight)
        state["step"] += 1
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - _MOMENTUM)
        ahead = gradient.lerp(momentum, _MOMENTUM)  # Nesterov's form
        matrix = orthogonalised(ahead.flatten(1))
        weight.mul_(1 - rate * decay)
        weight.add_(matrix.view_as(ahead), alpha=-rate * 0.2 * max(matrix.shape) ** 0.5)


def orthogonalised(matrix: Tensor) -> Tensor:
    """About U Vᵀ of the singular value decomposition U S Vᵀ, by Newton-Schulz iteration."""
    a, b, c = _COEFFICIENTS
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrix.shape[0] > matrix.shape[1] else x

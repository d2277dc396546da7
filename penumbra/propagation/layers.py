"""Noise layers of this package: noise in training mode, none in eval mode."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penumbra.propagation.errors import PropagationError


class AdditiveGaussianNoise(nn.Module):
    """x + N(0, std²), independent for each element."""

    def __init__(self, std: float) -> None:
        super().__init__()
        if not std >= 0:
            raise PropagationError(f"the noise's standard deviation must be at least 0, not {std}")
        self.std = float(std)

    def forward(self, x: Tensor) -> Tensor:
        """Noise in training mode only."""
        return x + torch.randn_like(x) * self.std if self.training else x

    def extra_repr(self) -> str:
        """The standard deviation."""
        return f"std={self.std}"


class MultiplicativeGaussianNoise(AdditiveGaussianNoise):
    """x times N(1, std²), independent for each element (Gaussian dropout: std² = p/(1-p))."""

    def forward(self, x: Tensor) -> Tensor:
        """Noise in training mode only."""
        return x * (1 + torch.randn_like(x) * self.std) if self.training else x


class MonteCarloBatchNorm(nn.Module):
    """Batch norm whose statistics vary as those of training batches do (Teye et al. 2018).

    In eval mode it is the batch norm that it replaces. In training mode each batch element draws,
    per channel, a mean μ and an inverse standard deviation s from the Gaussian that
    `fit_batchnorm_noise` fitted to the statistics of training batches.
    """

    shift: Tensor
    scale: Tensor
    covariance: Tensor

    def __init__(self, norm: _BatchNorm, statistics: Tensor) -> None:
        """`statistics`: (batches, 2, channels), the mean and inverse std of each training batch."""
        super().__init__()
        self.norm = norm
        centre = statistics.mean(0)
        deviation = statistics - centre
        covariance = torch.einsum("bic,bjc->cij", deviation, deviation) / (len(statistics) - 1)
        if norm.running_mean is None:
            raise PropagationError("batch norm without running statistics has no eval mode")
        dtype = norm.running_mean.dtype
        self.register_buffer("shift", centre[0].to(dtype))
        self.register_buffer("scale", centre[1].to(dtype))
        self.register_buffer("covariance", covariance.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Batch norm by the running statistics, or in training mode by drawn ones."""
        if not self.training:
            return nn.functional.batch_norm(
                x, self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias,
                training=False, eps=self.norm.eps,
            )  # fmt: skip
        scale, shift, v_mean, v_scale, covariance, gamma, beta = self.parameters_for(x)
        shape = x.shape[:2] + (1,) * (x.dim() - 2)
        first, second = torch.randn(shape).to(x), torch.randn(shape).to(x)
        slope = v_scale.sqrt()
        along = torch.where(slope > 0, covariance / slope.clamp(min=1e-30), 0.0)
        across = (v_mean - along.square()).clamp(min=0).sqrt()
        drawn_scale = scale + slope * first
        drawn_shift = shift + along * first + across * second
        return gamma * (x - drawn_shift) * drawn_scale + beta

    def parameters_for(self, x: Tensor) -> tuple[Tensor, ...]:
        """s̄, E[μ], V_μ, V_s, C, γ, β, each shaped to broadcast over x along its channels."""
        one = torch.ones_like(self.shift)
        values = (
            self.scale, self.shift, self.covariance[:, 0, 0], self.covariance[:, 1, 1],
            self.covariance[:, 0, 1],
            one if self.norm.weight is None else self.norm.weight,
            0 * one if self.norm.bias is None else self.norm.bias,
        )  # fmt: skip
        return tuple(value.reshape((1, -1) + (1,) * (x.dim() - 2)) for value in values)


def fit_batchnorm_noise(
    model: nn.Module, loader: Iterable[Tensor | Sequence[Tensor]], batch_size: int
) -> nn.Module:
    """A copy of `model` whose batch norms have the noise of batches of `batch_size`.

    Every tensor that `loader` yields (or the first of a tuple) is split into batches of
    `batch_size`, the model runs on each with every batch norm in training mode, and the covariance
    of each layer's batch statistics is stored. Incomplete batches are skipped. At least two batches
    are needed; some hundred give a good fit. The model itself is not changed.
    """
    noisy = copy.deepcopy(model).eval()
    norms = {name: m for name, m in noisy.named_modules() if isinstance(m, _BatchNorm)}
    if not norms:
        raise PropagationError("the model has no batch norm whose noise could be fitted")
    if batch_size < 2:
        raise PropagationError(f"a batch of {batch_size} has no statistics: batch_size must be ≥ 2")
    for name, norm in norms.items():
        if norm.running_mean is None:
            raise PropagationError(
                f"batch norm '{name}' keeps no running statistics, which eval mode needs: build it "
                "with track_running_stats=True"
            )
    seen: dict[str, list[Tensor]] = {name: [] for name in norms}
    hooks = [
        norm.register_forward_pre_hook(_recorder(seen[name], norm.eps))
        for name, norm in norms.items()
    ]
    for norm in norms.values():
        norm.running_mean, norm.running_var = None, None  # normalise by the batch, update nothing
    with torch.no_grad():
        for item in loader:
            batch = item if isinstance(item, Tensor) else item[0]
            for part in torch.split(batch, batch_size):
                if len(part) == batch_size:
                    noisy(part)
    for hook in hooks:
        hook.remove()
    originals = dict(model.named_modules())
    for name, norm in norms.items():
        if len(seen[name]) < 2:
            raise PropagationError(
                f"the loader gave '{name}' {len(seen[name])} complete batches of {batch_size}; at "
                "least 2 are needed, some hundred are better"
            )
        norm.running_mean = copy.deepcopy(originals[name].running_mean)
        norm.running_var = copy.deepcopy(originals[name].running_var)
        replacement = MonteCarloBatchNorm(norm, torch.stack(seen[name])).eval()
        if norm is noisy:
            return replacement
        parent, _, attribute = name.rpartition(".")
        setattr(noisy.get_submodule(parent), attribute, replacement)
    return noisy


def _recorder(
    statistics: list[Tensor], eps: float
) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """A forward pre-hook that appends the statistics of each batch."""

    def record(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].double().transpose(0, 1).flatten(1)
        inverse_std = (x.var(1, correction=0) + eps).rsqrt()
        statistics.append(torch.stack([x.mean(1), inverse_std]))

    return record

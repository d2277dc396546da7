"""Runtime of sampling and of propagation, both plain PyTorch in one process, interleaved.

Sampling is implemented as favourably as possible: layers before the first dropout run once (as in
the paper), batch norms are folded as in ours, tracing is not timed, moments are two sums in single
precision, and the faster of sequential and batched passes counts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.split_module import split_module
from torch.utils._pytree import tree_map

from penumbra.lab.experiments.images.networks import FAST, OURS, PAPER, NetworkForms
from penumbra.lab.timing import interleaved, ratio
from penumbra.propagation import Moments, Propagated
from penumbra.propagation.registry import diagonal
from penumbra.propagation.tracing import reached_by_noise

COUNTS = (1, 2, 5, 10, 20, 50)
ROUNDS = 5
BATCH = 5  # passes at a time, in the batched variant
_TRIED = 10  # samples ...
_TRIALS = 3  # ... and rounds by which the faster variant is chosen


class FastMonteCarlo:
    """Monte Carlo of the last output of a traced model, optimised within plain PyTorch."""

    def __init__(self, model: fx.GraphModule) -> None:
        model = copy.deepcopy(model)
        noisy = set(reached_by_noise(model, diagonal))
        self._parts = split_module(model, model, lambda node: int(node in noisy))
        self.prefix = _ComputedOnce(self._parts.get_submodule("submod_0"))
        self._parts.set_submodule("submod_0", self.prefix)
        for layer in self._parts.get_submodule("submod_1").modules():
            layer.training = diagonal.is_noise(type(layer))

    @torch.inference_mode()
    def __call__(self, x: Tensor, samples: int, at_once: int = 1) -> Moments:
        """Mean and unbiased variance (NaN for a single sample), by torch's global seed."""
        self.prefix.forget()
        total: Any = 0.0
        squares: Any = 0.0
        for start in range(0, samples, at_once):
            count = min(at_once, samples - start)
            drawn = _last(self._parts(x.expand(count, -1, -1, -1)))
            total = total + drawn.sum(0, keepdim=True)
            squares = squares + drawn.square().sum(0, keepdim=True)
        mean = total / samples
        off = (squares - samples * mean.square()).clamp(min=0)
        return Moments(mean, off / (samples - 1) if samples > 1 else off * torch.nan)


class _ComputedOnce(nn.Module):
    """A part that runs once, on the first element of a batch; its result is repeated."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.forget()

    def forget(self) -> None:
        self._result: Any = None

    def forward(self, x: Tensor) -> Any:
        if self._result is None:
            self._result = self.part(x[:1])
        return tree_map(lambda v: _repeated(v, len(x)), self._result)


def _repeated(value: Any, count: int) -> Any:
    if not isinstance(value, Tensor) or count == 1:
        return value
    return value.expand(count, *value.shape[1:])


def _last(output: Any) -> Any:
    """The probabilities of (scores, probabilities); a single output as it is."""
    return output[-1] if isinstance(output, tuple) else output


@torch.inference_mode()
def _mean_std(walk: Propagated, x: Tensor) -> Tensor:
    return _last(walk(x)).std.mean(1)


def runtime(
    network: NetworkForms, x: Tensor, counts: Sequence[int] = COUNTS, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Seconds per frame (medians): sampling by number of samples, ours, and the plain network.

    Ratios are medians over the rounds of the time of the largest count over ours.
    """
    plain = network.walks[PAPER].model
    ours = [name for name in (OURS, FAST, PAPER) if name in network.walks]
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        sampling = FastMonteCarlo(plain)
        batches = {f"{at_once} at a time": at_once for at_once in (1, BATCH)}
        ways = {way: partial(sampling, x, _TRIED, size) for way, size in batches.items()}
        tried = {way: timing.median for way, timing in interleaved(ways, _TRIALS, 1).items()}
        way = min(tried, key=tried.__getitem__)
        candidates: dict[str, Callable[[], object]] = {
            f"mc{count}": partial(sampling, x, count, batches[way]) for count in counts
        }
        candidates |= {name: partial(_mean_std, network.walks[name], x) for name in ours}
        candidates["plain"] = partial(plain, x)
        found = interleaved(candidates, rounds, 1)
    most = found[f"mc{counts[-1]}"]
    return {
        "counts": list(counts),
        "mc": [found[f"mc{count}"].median for count in counts],
        **{name: found[name].median for name in (*ours, "plain")},
        "ratio": {name: ratio(most, found[name]) for name in ours},
        "way": way,
        "tried": tried,
    }

"""Fitting the gains (see `gains`) that bring the propagated moments onto Monte Carlo's.

The walk is differentiable, so its gains are trained as a network is: by gradient descent on the
error of the mean and standard deviation of the model's output. All layers are fitted at once. They
start at 1, which is the paper's diagonal propagation, or at the result of an earlier fit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.gains import Gains, set_gains
from penumbra.propagation.moments import Moments
from penumbra.propagation.propagate import Propagated
from penumbra.propagation.tracing import layer_of, name_of, reached_by_noise, target_of

_SOFTMAX = (nn.Softmax, nn.Softmax2d, F.softmax, torch.softmax, "softmax")
# Suffixes of the name of a layer whose outputs a softmax reads.
_LOADINGS, _TAPS = "/loadings", "/taps"
_LEVELLED = 24  # examples that `level` uses
_CHECKS = 10  # on held-out examples along a descent
_LEAST = 1e-4  # of a kernel's taps, which sum to one: a factor cannot change zero


@dataclass(frozen=True)
class Example:
    """A model's input, and the mean and standard deviation of its output by `samples` samples."""

    input: Tensor
    mean: Tensor
    std: Tensor
    samples: int

    @property
    def unbiased_std(self) -> Tensor:
        """The root of a sample variance is too small, by 1 - 1/(4n) for n degrees of freedom."""
        return self.std / (1 - 1 / (4 * (self.samples - 1)))


def with_gains(walk: Propagated, gains: Mapping[str, Tensor]) -> Propagated:
    """`walk` itself, with these gains on its layers; an empty mapping removes all gains."""
    names = _initial(walk).keys()
    unknown = sorted(gains.keys() - names)
    if unknown:
        raise PropagationError(
            f"the gains are of another model: there are gains for '{unknown[0]}', and the layers "
            "behind noise are " + ", ".join(f"'{name}'" for name in names)
        )
    for name in _layers(names):
        own = gains.get(name)
        rest = (gains.get(name + part) for part in (_LOADINGS, _TAPS))
        set_gains(walk.model.get_submodule(name), None if own is None else Gains(own, *rest))
    return walk


def fit_gains(
    walk: Propagated,
    examples: Sequence[Example],
    steps: int = 400,
    rate: float = 0.03,
    seed: int = 0,
    result: Callable[[Any], Moments] = lambda output: output,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    start: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Gains by layer, for `with_gains`; on return `walk` has them.

    Each step takes one example and descends on

        |σ̂ - σ| + |σ̂' - σ'| + |σ̂" - σ"| + |μ̂ - μ|,    averaged over the image, over σ",

    where σ' is the mean of σ over dimension 1 (the classes), which is published, and σ" its mean
    over the whole example, by which images are compared.

    An eighth of the examples is held out (of fewer than four, none). The gains that are returned
    are the best on those, of several along the descent; if none is better than the start, it is the
    start, with a warning. Steps whose gradient is not finite are left out.

    Args:
        walk: the model, as `propagate` returns it.
        examples: inputs with their sampled moments, of the same output: scores if the walk returns
            scores, probabilities if it returns probabilities.
        steps: the number of descent steps.
        rate: the largest learning rate of the schedule.
        seed: of the order of the examples.
        result: selects the sampled output from what the walk returns.
        progress: may wrap the steps in a progress bar.
        start: gains of the same model to start from.
    """
    initial = _initial(walk) | dict(start or {})
    if not initial:
        raise PropagationError("there is no affine layer behind noise, so no gains to fit")
    fitted, held_out = _split(examples)
    with_gains(walk, initial if start else {})
    before = _loss(walk, held_out, result)
    _refuse_another_kind(walk, examples[0], result)
    best, least = initial, before
    moves = {name: torch.zeros_like(gains, requires_grad=True) for name, gains in initial.items()}
    optimizer = torch.optim.Adam(moves.values(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.15
    )
    random = torch.Generator().manual_seed(seed)

    def moved(name: str) -> Tensor:
        if name.endswith(_LOADINGS):  # signed, and may change sign
            return initial[name] + moves[name] * initial[name].square().mean().sqrt()
        return initial[name] * moves[name].exp()

    def current() -> dict[str, Tensor]:
        return {name: moved(name) for name in initial}

    checks = {round(steps * part / _CHECKS) for part in range(1, _CHECKS + 1)}
    for step in progress(range(steps)):
        example = fitted[int(torch.randint(len(fitted), (), generator=random))]
        found = result(with_gains(walk, current())(example.input))
        loss = _distance(found, example.mean, example.unbiased_std)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if all(m.grad is None or bool(m.grad.isfinite().all()) for m in moves.values()):
            optimizer.step()
        schedule.step()
        if step + 1 in checks:
            with torch.no_grad():
                now = {name: value.detach() for name, value in current().items()}
            found_loss = _loss(with_gains(walk, now), held_out, result)
            if found_loss < least:
                best, least = now, found_loss
    if best is initial:
        warnings.warn(
            f"the fit found no gains that are better than the start on {len(held_out)} examples "
            f"(distance {before:.3g}): more examples, or a smaller rate, may help",
            stacklevel=2,
        )
        with_gains(walk, initial)
        return {name: value.detach() for name, value in initial.items()}
    levelled = level(walk, best, examples[:_LEVELLED], result)
    if _loss(walk, held_out, result) < before:
        return levelled
    with_gains(walk, best)
    return best


def _split(examples: Sequence[Example]) -> tuple[Sequence[Example], Sequence[Example]]:
    """The examples to fit, and those to choose by; the same ones if there are few."""
    if not examples:
        raise PropagationError("there are no examples to fit the gains to")
    count = max(1, round(len(examples) / 8)) if len(examples) >= 4 else 0
    return (examples[:-count], examples[-count:]) if count else (examples, examples)


@torch.no_grad()
def _loss(walk: Propagated, examples: Sequence[Example], result: Callable[[Any], Moments]) -> float:
    """The mean distance over examples; infinite if it is not a number."""
    losses = [float(_distance(result(walk(e.input)), e.mean, e.unbiased_std)) for e in examples]
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


@torch.no_grad()
def _refuse_another_kind(
    walk: Propagated, example: Example, result: Callable[[Any], Moments]
) -> None:
    """Raise unless an example is of the walk's own output: its shape, and about its values."""
    found = result(walk(example.input))
    if not isinstance(found, Moments):
        raise PropagationError(
            f"the walk returns a {type(found).__name__}: select the output that the examples are "
            "of with `result`"
        )
    if not found.mean.shape == example.mean.shape == example.std.shape:
        raise PropagationError(
            f"the walk returns {tuple(found.mean.shape)}, and the examples have a mean of "
            f"{tuple(example.mean.shape)} and a standard deviation of {tuple(example.std.shape)}"
        )
    if not (example.mean.isfinite().all() and example.std.isfinite().all()):
        raise PropagationError("the examples contain values that are not finite")
    if not bool((example.std > 0).any()):
        raise PropagationError("the examples have a standard deviation of zero everywhere")
    # Noise moves a mean by about its σ. Scores in place of probabilities are off by more than they
    # differ among each other.
    off = float((found.mean - example.mean).abs().mean())
    varied = float((example.mean - example.mean.mean()).abs().mean())
    if off > 3 * float(example.std.mean()) + 0.5 * varied:
        raise PropagationError(
            f"the examples' mean differs from the walk's by {off:.3g} on average, with a standard "
            f"deviation of {float(example.std.mean()):.3g}: they seem to be of another output "
            "(scores and not probabilities?), or of another model"
        )


@torch.no_grad()
def level(
    walk: Propagated,
    gains: Mapping[str, Tensor],
    examples: Sequence[Example],
    result: Callable[[Any], Moments] = lambda output: output,
) -> dict[str, Tensor]:
    """The gains, with those of the last layer scaled so that the mean of σ̂ is the mean of σ.

    Absolute errors lead to the median, which is below the mean for the skewed σ of noisy samples. A
    softmax does not scale with the variance of its scores, so this takes a few rounds.
    """
    last = _layers(_initial(walk))[-1]
    levelled = dict(gains)
    for _ in range(4):
        with_gains(walk, levelled)
        found = sum(float(result(walk(e.input)).std.mean()) for e in examples)
        true = sum(float(e.unbiased_std.mean()) for e in examples)
        if not (math.isfinite(found) and found > 0):
            break  # no scale of a layer helps
        levelled[last] = levelled[last] * (true / found) ** 2
        if last + _LOADINGS in levelled:
            levelled[last + _LOADINGS] = levelled[last + _LOADINGS] * (true / found)
    with_gains(walk, levelled)
    return levelled


def _distance(found: Moments, mean: Tensor, std: Tensor) -> Tensor:
    # The root has no derivative at zero.
    found_std = (found.variance + 1e-12 * std.square().mean()).sqrt()
    of_std = (found_std - std).abs().mean()
    of_map = (found_std.mean(1) - std.mean(1)).abs().mean()
    of_size = (found_std.mean() - std.mean()).abs()
    of_mean = (found.mean - mean).abs().mean()
    return (of_std + of_map + of_size + of_mean) / std.mean()


def _initial(walk: Propagated) -> dict[str, Tensor]:
    """The start of a fit: gains of 1, and the weights as loadings and taps."""
    module = walk.model
    found: dict[str, Tensor] = {}
    readers = set()
    if walk.options.get("softmax") == "moment":
        readers = {
            _feeding(node, module) for node in module.graph.nodes if _is_softmax(node, module)
        }
    for node in reached_by_noise(module, walk.registry):
        layer = _affine_layer(node, module)
        if layer is None:
            continue
        name, weight = name_of(node), layer.weight.detach()
        found[name] = weight.new_ones(*weight.shape[:2], *(1,) * (weight.dim() - 2))
        if node in readers and _keeps_positions(layer):
            loadings, taps = _separated(weight)
            found[name + _LOADINGS] = loadings
            if taps is not None:
                found[name + _TAPS] = taps
    return found


def _separated(weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """A kernel as loadings (outputs, inputs) times the root of taps (inputs, 1, *kernel).

    W_ict ≈ L_ic √τ_ct is the best such product, input by input, of the difference between outputs:
    a softmax is invariant to what they have in common.
    """
    different = weight - weight.mean(0, keepdim=True)
    kernel = weight.shape[2:]
    if kernel.numel() == 1:
        return different.flatten(1), None
    left, size, right = torch.linalg.svd(different.flatten(2).movedim(1, 0), full_matrices=False)
    taps = right[:, 0].square().clamp(min=_LEAST).reshape(-1, 1, *kernel)
    return (left[..., 0] * size[:, :1]).mT.contiguous(), taps


def _layers(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.endswith((_LOADINGS, _TAPS))]


def _is_softmax(node: fx.Node, module: fx.GraphModule) -> bool:
    if not node.op.startswith("call_"):
        return False
    target = target_of(node, module)
    return any(candidate in _SOFTMAX for candidate in getattr(target, "__mro__", (target,)))


def _affine_layer(node: fx.Node, module: fx.GraphModule) -> nn.Linear | _ConvNd | None:
    """The affine layer that a node calls, if it calls one."""
    layer = layer_of(node, module) if node.op == "call_module" else None
    return layer if isinstance(layer, (nn.Linear, _ConvNd)) else None


def _feeding(node: fx.Node, module: fx.GraphModule) -> fx.Node | None:
    """The closest affine layer in front of a node.

    Only moving and converting outputs between the two keeps their covariance. Behind other
    operations the softmax does not read it, and the loadings have no effect.
    """
    while node.all_input_nodes:
        node = node.all_input_nodes[0]
        if _affine_layer(node, module) is not None:
            return node
    return None


def _keeps_positions(layer: nn.Linear | _ConvNd) -> bool:
    """Whether an output has the position of its input: matrices and 'same' convolutions."""
    if isinstance(layer, nn.Linear):
        return True
    if layer.transposed:
        return False
    reach = [(size - 1) * d for size, d in zip(layer.kernel_size, layer.dilation, strict=True)]
    if isinstance(layer.padding, str):
        same = layer.padding == "same" or not any(reach)
    else:
        same = all(2 * pad == r for pad, r in zip(layer.padding, reach, strict=True))
    return layer.groups == 1 and same and set(layer.stride) == {1}

"""The Monte-Carlo reference that every propagated result is judged by.

Noise layers on, everything else in eval mode (Gal and Ghahramani 2016). The part of the model that
no noise has reached is computed once and kept, as the paper does; moments are streamed in double
precision, so that memory does not grow with the number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from tqdm import tqdm

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import Moments
from penumbra.propagation.propagate import call_plainly
from penumbra.propagation.registry import diagonal
from penumbra.propagation.tracing import (
    function_arguments,
    is_noise,
    last_readers,
    overwrites_input,
    place,
    refuse_batch_statistics,
    trace,
)

# Samples that are computed together hold at most so many elements in their largest value: small
# models are sampled by the thousand, pictures one by one.
_ELEMENTS_AT_ONCE = 1 << 20


def monte_carlo(
    model: nn.Module,
    *inputs: Any,
    samples: int,
    seed: int = 0,
    at_once: int | None = None,
    progress: bool = False,
) -> Any:
    """Sample mean and unbiased sample variance of `model(*inputs)` with its noise layers on.

    Args:
        model: as for `propagate`, in eval mode; its modes and the caller's random state are left
            as they were.
        inputs: the model's inputs; `Moments` are drawn as independent Gaussians (sensor noise).
        samples: how many, at least two.
        seed: the same seed gives the same result, on one machine and one torch version.
        at_once: how many samples to compute together; by default as many as fit.
        progress: show a bar.

    Returns:
        `Moments` in float64 wherever the model returns tensors. Its relative standard error is
        about 1/sqrt(samples) of the standard deviation for the mean, sqrt(2/samples) for the
        variance of something Gaussian.
    """
    if samples < 2:
        raise PropagationError(f"a variance needs at least 2 samples, not {samples}")
    sampler = _Sampler(model, inputs)
    at_once = at_once or max(1, min(samples, _ELEMENTS_AT_ONCE // max(1, sampler.largest)))
    accumulators: list[_Accumulator] = []
    bar = tqdm(total=samples, unit="sample", disable=not progress, desc="Monte Carlo")
    with torch.no_grad(), _seeded(seed, sampler.devices), bar:
        done = 0
        while done < samples:
            count = min(at_once, samples - done)
            leaves, structure = pytree.tree_flatten(sampler.draw(count))
            accumulators = accumulators or [_Accumulator() for _ in leaves]
            for accumulator, leaf in zip(accumulators, leaves, strict=True):
                accumulator.add(leaf)
            done += count
            bar.update(count)
    return pytree.tree_unflatten([accumulator.moments() for accumulator in accumulators], structure)


class _Sampler:
    """The model's graph in two parts: before any noise, computed once; and after it."""

    def __init__(self, model: nn.Module, inputs: tuple) -> None:
        self.model = trace(model, diagonal)
        self._last_readers = last_readers(self.model.graph)
        refuse_batch_statistics(self.model)
        self._random = self._reached_by_noise(inputs)
        if not self._random:
            raise PropagationError(
                "the model has no noise layer, and its inputs are exact: there is nothing to sample"
            )
        with torch.no_grad():
            self._kept = self._before_noise(inputs)
            self._random_inputs = {
                node: value
                for node, value in zip(self._placeholders(), inputs, strict=False)
                if isinstance(value, Moments) and value.variance is not None
            }
            self._boundary = self._read_by_random()
            self.devices = {v.device for v in self._kept.values() if isinstance(v, Tensor)}
            self.largest = self._largest_value()

    def draw(self, count: int) -> Any:
        """Outputs of `count` samples, along a new first dimension."""
        if count == 1:
            return pytree.tree_map(_with_sample_dimension, self._sample({}))
        # The sample axis is a real one (vmap), not a longer batch: a model that reshapes or mixes
        # its batch is sampled as faithfully as any other.
        kept = {n: v.expand(count, *v.shape) for n, v in self._boundary.items()}
        inputs = {n: v.mean.expand(count, *v.mean.shape) for n, v in self._random_inputs.items()}
        names = list(kept) + list(inputs)
        values = [*kept.values(), *inputs.values()]
        return torch.vmap(
            lambda *v: self._sample(dict(zip(names, v, strict=True))), randomness="different"
        )(*values)

    def _sample(
        self, given: Mapping[fx.Node, Tensor], seen: Callable[[Any], None] | None = None
    ) -> Any:
        """One pass through the noisy part; `given` replaces kept values under vmap."""
        values: dict[fx.Node, Any] = {**self._kept, **given}
        for node, moments in self._random_inputs.items():
            mean = given.get(node, moments.mean)
            values[node] = mean + torch.randn_like(mean) * moments.std
        for node in self.model.graph.nodes:
            if node not in self._random or node.op == "placeholder":
                continue
            try:
                values[node] = self._value(node, values)
            except PropagationError:
                raise
            except Exception as error:
                raise PropagationError(f"{place(node, self.model)}: {error}") from error
            if seen:
                seen(values[node])
            if node.op == "output":
                return values[node]
            for spent in self._last_readers.get(node, ()):
                del values[spent]
        raise PropagationError("the model's graph has no output")

    def _value(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "output":
            return args[0]
        if overwrites_input(node, self.model) and node.args[0] in self._kept:
            args = (args[0].clone(), *args[1:])  # kept values serve the next sample, too
        if not is_noise(node, self.model, diagonal):
            return call_plainly(node, self.model, args, kwargs)
        if node.op == "call_module":
            with _in_training(self.model.get_submodule(node.target)) as layer:
                return layer(*args, **kwargs)
        # A function such as F.dropout(x, p, training=self.training): noise whatever it says.
        named = function_arguments(node.target, args, kwargs)
        return node.target(**{**named, "train" if "train" in named else "training": True})

    def _placeholders(self) -> Iterator[fx.Node]:
        return (node for node in self.model.graph.nodes if node.op == "placeholder")

    def _reached_by_noise(self, inputs: tuple) -> set[fx.Node]:
        """Every node whose value differs from sample to sample, and the output."""
        reached = {
            node
            for node, value in zip(self._placeholders(), inputs, strict=False)
            if isinstance(value, Moments) and value.variance is not None
        }
        for node in self.model.graph.nodes:
            if is_noise(node, self.model, diagonal) or reached & set(node.all_input_nodes):
                reached.add(node)
        if reached:
            reached.update(node for node in self.model.graph.nodes if node.op == "output")
        return reached

    def _before_noise(self, inputs: tuple) -> dict[fx.Node, Any]:
        """The values of all nodes that no noise reaches and that are read after it."""
        exact = [v.mean if isinstance(v, Moments) else v for v in inputs]
        interpreter = fx.Interpreter(self.model, garbage_collect_values=False)
        interpreter.args_iter = iter(exact)
        for node in self.model.graph.nodes:
            if node not in self._random:
                try:
                    interpreter.env[node] = interpreter.run_node(node)
                except Exception as error:
                    raise PropagationError(f"{place(node, self.model)}: {error}") from error
            elif node.op == "placeholder":
                next(interpreter.args_iter)
        read = {n for node in self._random for n in node.all_input_nodes if n not in self._random}
        return {node: interpreter.env[node] for node in read}

    def _read_by_random(self) -> dict[fx.Node, Tensor]:
        return {n: v for n, v in self._kept.items() if isinstance(v, Tensor) and n.op != "get_attr"}

    def _largest_value(self) -> int:
        """The number of elements of the largest value of one sample (drawn and forgotten)."""
        sizes = [v.numel() for v in self._kept.values() if isinstance(v, Tensor)]

        def note(value: Any) -> None:
            leaves = pytree.tree_leaves(value)
            sizes.extend(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))

        with _seeded(0, self.devices):
            self._sample({}, seen=note)
        return max(sizes)


class _Accumulator:
    """Mean and sum of squared deviations, merged batch by batch (Chan et al. 1979), in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | None = None
        self.squares: Tensor | None = None

    def add(self, batch: Tensor) -> None:
        if not isinstance(batch, Tensor):
            raise PropagationError(f"the model returns a {type(batch).__name__}, not a tensor")
        batch = batch.double()
        count, mean = len(batch), batch.mean(0)
        squares = (batch - mean).square().sum(0)
        if self.mean is None:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total = self.count + count
        shift = mean - self.mean
        self.mean = self.mean + shift * (count / total)
        self.squares = self.squares + squares + shift.square() * (self.count * count / total)
        self.count = total

    def moments(self) -> Moments:
        return Moments(self.mean, self.squares / (self.count - 1))


def _with_sample_dimension(leaf: Any) -> Any:
    return leaf.unsqueeze(0) if isinstance(leaf, Tensor) else leaf


@contextmanager
def _in_training(layer: nn.Module) -> Iterator[nn.Module]:
    before = layer.training
    layer.train()
    try:
        yield layer
    finally:
        layer.train(before)


@contextmanager
def _seeded(seed: int, devices: set[torch.device]) -> Iterator[None]:
    """Seed torch inside, and give the caller's random state back afterwards."""
    gpus = [device.index or 0 for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        yield

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
from penumbra.propagation.propagate import (
    arguments_of,
    as_the_model_returns,
    attribute,
    call_plainly,
    is_moments,
    leaves,
    naming_the_place,
)
from penumbra.propagation.registry import diagonal
from penumbra.propagation.tracing import (
    bind,
    is_noise,
    last_readers,
    overwrites_input,
    reached_by_noise,
    refuse_batch_statistics,
    trace,
)

# Samples that are computed together hold at most so many elements in their largest value: small
# models are sampled by the thousand, pictures one by one.
_ELEMENTS_AT_ONCE = 1 << 20
_ZERO = torch.zeros(())


def monte_carlo(
    model: nn.Module,
    *inputs: Any,
    samples: int,
    seed: int = 0,
    at_once: int | None = None,
    progress: bool = False,
    **named_inputs: Any,
) -> Any:
    """Sample mean and unbiased sample variance of `model(*inputs)` with its noise layers on.

    Args:
        model: as for `propagate`, in eval mode; its modes and the caller's random state are left
            as they were.
        inputs, named_inputs: the model's inputs; `Moments` are drawn as independent Gaussians
            (sensor noise).
        samples: how many, at least two.
        seed: the same seed gives the same result, on one machine and one torch version.
        at_once: how many samples to compute together; by default as many as fit, or one where the
            model has an operation that torch.vmap does not know.
        progress: show a bar.

    Returns:
        `Moments` in float64 wherever the model returns tensors; `variance` is None where no noise
        reaches. Its relative standard error is about 1/sqrt(samples) of the standard deviation for
        the mean, sqrt(2/samples) for the variance of something Gaussian.
    """
    if samples < 2:
        raise PropagationError(f"a variance needs at least 2 samples, not {samples}")
    if at_once is not None and at_once < 1:
        raise PropagationError(f"at_once must be at least 1, not {at_once}")
    with torch.no_grad():
        sampler = _Sampler(model, inputs, named_inputs)
        at_once = at_once or min(samples, sampler.fitting_at_once())
        moments: dict[fx.Node, list[_Accumulator]] = {}
        bar = tqdm(total=samples, unit="sample", disable=not progress, desc="Monte Carlo")
        with _seeded(seed, sampler.devices), bar:
            done = 0
            while done < samples:
                count = min(at_once, samples - done)
                for node, value in sampler.draw(count).items():
                    drawn = pytree.tree_leaves(value)
                    streams = moments.setdefault(node, [_Accumulator() for _ in drawn])
                    for stream, leaf in zip(streams, drawn, strict=True):
                        stream.add(leaf)
                done += count
                bar.update(count)
        return sampler.output({n: [s.moments() for s in streams] for n, streams in moments.items()})


class _Sampler:
    """The model's graph in two parts: before any noise, computed once; and after it."""

    def __init__(self, model: nn.Module, inputs: tuple, named: Mapping[str, Any]) -> None:
        self.model = trace(model, diagonal)
        refuse_batch_statistics(self.model)
        self._spent = last_readers(self.model.graph)
        self._nodes = list(self.model.graph.nodes)
        self._result = self._nodes[-1]
        self._inputs = arguments_of(self.model, inputs, named)
        uncertain = (n for n, value in self._inputs.items() if any(map(is_moments, leaves(value))))
        self._random = set(reached_by_noise(self.model, diagonal, uncertain))
        self._noisy_outputs = [n for n in self._result.all_input_nodes if n in self._random]
        if not self._noisy_outputs:
            raise PropagationError(
                "no noise reaches the model's output (it has no noise layer, and its inputs are "
                "exact): there is nothing to sample"
            )
        self._kept = self._before_noise()
        tensors = [v.mean if is_moments(v) else v for v in leaves(self._inputs)]
        tensors += [*self.model.parameters(), *self.model.buffers()]
        self.devices = {tensor.device for tensor in tensors if isinstance(tensor, Tensor)}

    def draw(self, count: int) -> dict[fx.Node, Any]:
        """`count` samples of every noisy output, along a new first dimension."""
        if count == 1:
            return pytree.tree_map(_with_sample_dimension, self._sample(_ZERO))
        # The sample axis is a real one (vmap), not a longer batch: a model that reshapes or mixes
        # its batch is sampled as faithfully as any other.
        sample = torch.vmap(lambda zero: list(self._sample(zero).values()), randomness="different")
        samples = sample(_ZERO.expand(count))
        return dict(zip(self._noisy_outputs, samples, strict=True))

    def fitting_at_once(self) -> int:
        """How many samples to compute together (tried with two, which are forgotten)."""
        largest = 1

        def note(value: Any) -> None:
            nonlocal largest
            sizes = (leaf.numel() for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))
            largest = max(largest, *sizes, 1)

        with _seeded(0, self.devices):
            self._sample(_ZERO, seen=note)
            fitting = max(1, _ELEMENTS_AT_ONCE // largest)
            if fitting > 1:
                try:
                    self.draw(2)
                except (PropagationError, ValueError):  # one sample alone was drawn without
                    return 1
        return fitting

    def output(self, moments: Mapping[fx.Node, list[Moments]]) -> Any:
        """What the model returns, as Moments: sampled, or exact where no noise reaches."""

        def value_of(node: fx.Node) -> Any:
            if node not in self._random:
                return pytree.tree_map(
                    lambda v: Moments(v.double()) if isinstance(v, Tensor) else v, self._kept[node]
                )
            return pytree.tree_unflatten(moments[node], self._structures[node])

        return as_the_model_returns(fx.node.map_arg(self._result.args[0], value_of))

    def _sample(
        self, zero: Tensor, seen: Callable[[Any], None] | None = None
    ) -> dict[fx.Node, Any]:
        """One pass through the noisy part: the value of each noisy output."""
        values = dict(self._kept)
        for node in self._nodes:
            if node in self._random:
                with naming_the_place(node, self.model):
                    values[node] = self._value(node, values, zero)
                if seen:
                    seen(values[node])
                for spent in self._spent.get(node, ()):
                    del values[spent]
        self._structures = {n: pytree.tree_structure(values[n]) for n in self._noisy_outputs}
        return {node: values[node] for node in self._noisy_outputs}

    def _before_noise(self) -> dict[fx.Node, Any]:
        """The values of all nodes that no noise reaches and that are read after it."""
        read = {self._result, *self._random}
        values: dict[fx.Node, Any] = {}
        for node in self._nodes:
            if node not in read:
                with naming_the_place(node, self.model):
                    values[node] = self._value(node, values, _ZERO)
                for spent in self._spent.get(node, ()):
                    if spent not in read and not read & set(spent.users):
                        del values[spent]
        return values

    def _value(self, node: fx.Node, values: Mapping[fx.Node, Any], zero: Tensor) -> Any:
        if node.op == "placeholder":
            return pytree.tree_map(_drawn, self._inputs[node], is_leaf=is_moments)
        if node.op == "get_attr":
            return attribute(self.model, node.target)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if overwrites_input(node, self.model):
            # Never for real: values are kept for the next sample, inputs are the caller's, and the
            # part before the noise runs ahead of readers that stand before the overwriting.
            # Adding zero makes a copy for each of the samples that are drawn together.
            overwritten = node.all_input_nodes[0]
            copy = values[overwritten] + zero.to(values[overwritten])
            values = {**values, overwritten: copy}
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if not is_noise(node, self.model, diagonal):
            return call_plainly(node, self.model, args, kwargs)
        if node.op == "call_module":
            with _switched_on(self.model.get_submodule(node.target)) as layer:
                return layer(*args, **kwargs)
        # A function such as F.dropout(x, p, training=self.training): noise whatever it says.
        call = bind(node.target, args, kwargs)
        switch = {"training", "train"} & set(call.signature.parameters)
        call.arguments.update(dict.fromkeys(switch, True))
        return node.target(*call.args, **call.kwargs)


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


def _drawn(leaf: Any) -> Any:
    """A sample of an uncertain input, Gaussian and independent; anything else as it is."""
    if not is_moments(leaf):
        return leaf
    return leaf.mean + torch.randn_like(leaf.mean) * leaf.std


@contextmanager
def _switched_on(layer: nn.Module) -> Iterator[nn.Module]:
    """The noise of a layer, and nothing else in it, in training mode."""
    before = {inner: inner.training for inner in layer.modules()}
    for inner in before:
        inner.training = diagonal.is_noise(type(inner))
    try:
        yield layer
    finally:
        for inner, mode in before.items():
            inner.training = mode


@contextmanager
def _seeded(seed: int, devices: set[torch.device]) -> Iterator[None]:
    """Seed torch inside, and give the caller's random state back afterwards."""
    gpus = [device.index or 0 for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        yield

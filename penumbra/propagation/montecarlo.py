"""The Monte-Carlo reference for every propagated result.

Noise layers on, everything else in eval mode (Gal and Ghahramani 2016). The part of the model that
no noise reaches is computed once, as in the paper. Moments are accumulated in double precision, so
that memory does not grow with the number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from tqdm import tqdm

from penumbra.propagation.errors import (
    HiddenNoiseError,
    PropagationError,
    UntraceableModelError,
)
from penumbra.propagation.moments import ExactMoments, Moments
from penumbra.propagation.propagate import (
    arguments_of,
    as_inputs,
    as_the_model_returns,
    attribute,
    call_plainly,
    is_moments,
    leaves,
    naming_the_place,
    refuse_silence,
)
from penumbra.propagation.registry import diagonal
from penumbra.propagation.tracing import (
    bind,
    function_of,
    is_noise,
    last_readers,
    layer_of,
    name_of,
    overwrites_input,
    refuse_batch_statistics,
    trace,
)

# The largest value of the samples that are computed together has at most this many elements: small
# models are sampled by the thousand, images one by one.
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
        model: as for `propagate`, in eval mode. Its modes and the caller's random state are
            restored.
        inputs, named_inputs: the model's inputs; `Moments` are drawn as independent Gaussians
            (sensor noise).
        samples: the number of samples, at least two.
        seed: the same seed gives the same result, on one machine and one torch version.
        at_once: the number of samples to compute together; by default as many as fit in memory, or
            one if torch.vmap does not support an operation of the model.
        progress: show a progress bar.

    Returns:
        `Moments` in float64 wherever the model returns tensors, `ExactMoments` for those that no
        noise reaches. The standard error of the mean is σ/√samples; the relative standard error of
        the variance is √(2/samples) if the output is Gaussian.
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
    """The model's graph in two parts: before any noise, computed once, and after it."""

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self.model = _traced(model, inputs, named)
        refuse_batch_statistics(self.model)
        self._spent = last_readers(self.model.graph)
        self._nodes = list(self.model.graph.nodes)
        self._result = self._nodes[-1]
        self._inputs = arguments_of(self.model, inputs, named)
        self._random = set(refuse_silence(self.model, diagonal, self._inputs))
        self._noisy_outputs = [n for n in self._result.all_input_nodes if n in self._random]
        self._kept = self._before_noise()
        tensors = [v.mean if is_moments(v) else v for v in leaves(self._inputs)]
        tensors += [*self.model.parameters(), *self.model.buffers()]
        self.devices = {tensor.device for tensor in tensors if isinstance(tensor, Tensor)}

    def draw(self, count: int) -> dict[fx.Node, Any]:
        """`count` samples of every noisy output, along a new first dimension."""
        if count == 1:
            alone = self._sample(_ZERO).items()
            return {n: pytree.tree_map(_with_sample_dimension, value) for n, value in alone}
        # The sample axis is a real one (vmap), not a longer batch, so that models which reshape or
        # mix their batch are sampled correctly.
        sample = torch.vmap(lambda zero: list(self._sample(zero).values()), randomness="different")
        samples = sample(_ZERO.expand(count))
        return dict(zip(self._noisy_outputs, samples, strict=True))

    def fitting_at_once(self) -> int:
        """The number of samples to compute together, tried with two that are discarded."""
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
                except (PropagationError, ValueError):  # a single sample raised no error
                    return 1
        return fitting

    def output(self, moments: Mapping[fx.Node, list[Moments]]) -> Any:
        """What the model returns, as Moments: sampled, or exact if no noise reaches it."""

        def value_of(node: fx.Node) -> Any:
            if node not in self._random:
                return pytree.tree_map(
                    lambda v: ExactMoments(v.double()) if isinstance(v, Tensor) else v,
                    self._kept[node],
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
        """The values that no noise reaches and that nodes behind the noise read."""
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
            return attribute(self.model, name_of(node))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if overwrites_input(node, self.model):
            # Overwrite a copy: values are kept for the next sample, inputs belong to the caller,
            # and the part before the noise runs ahead of nodes that read the old value. Adding
            # zero makes a copy for each of the samples that are drawn together.
            overwritten = node.all_input_nodes[0]
            copy = values[overwritten] + zero.to(values[overwritten])
            values = {**values, overwritten: copy}
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if not is_noise(node, self.model, diagonal):
            return call_plainly(node, self.model, args, kwargs)
        if node.op == "call_module":
            with _switched_on(layer_of(node, self.model)) as layer:
                return layer(*args, **kwargs)
        # A function such as F.dropout(x, p, training=self.training) is noise in eval mode, too.
        function = function_of(node)
        call = bind(function, args, kwargs)
        switch = {"training", "train"} & set(call.signature.parameters)
        call.arguments.update(dict.fromkeys(switch, True))
        return function(*call.args, **call.kwargs)


def _traced(model: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> fx.GraphModule:
    """The model's graph, along its inputs if control flow depends on their sizes."""
    try:
        return trace(model, diagonal)
    except UntraceableModelError as error:
        if named:
            raise
        try:
            return trace(model, diagonal, as_inputs(inputs))
        except UntraceableModelError:
            if isinstance(error, HiddenNoiseError):
                raise error from None  # what is wrong with the model, not with tracing it
            raise


class _Accumulator:
    """Mean and sum of squared deviations, merged batch by batch (Chan et al. 1979), in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = _ZERO.double()
        self.squares = _ZERO.double()

    def add(self, batch: Any) -> None:
        """Merge the samples along the first dimension."""
        if not isinstance(batch, Tensor):
            raise PropagationError(f"the model returns a {type(batch).__name__}, not a tensor")
        batch = batch.double()
        count, mean = len(batch), batch.mean(0)
        squares = (batch - mean).square().sum(0)
        if self.count == 0:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total = self.count + count
        shift = mean - self.mean
        self.mean = self.mean + shift * (count / total)
        self.squares = self.squares + squares + shift.square() * (self.count * count / total)
        self.count = total

    def moments(self) -> Moments:
        """Sample mean and unbiased sample variance."""
        return Moments(self.mean, self.squares / (self.count - 1))


def _with_sample_dimension(leaf: Any) -> Any:
    return leaf.unsqueeze(0) if isinstance(leaf, Tensor) else leaf


def _drawn(leaf: Any) -> Any:
    """A sample of an uncertain input, Gaussian and independent; anything else unchanged."""
    if not isinstance(leaf, Moments):
        return leaf
    return leaf.mean + torch.randn_like(leaf.mean) * leaf.std


@contextmanager
def _switched_on(layer: nn.Module) -> Iterator[nn.Module]:
    """A layer with its noise sources, and only those, in training mode."""
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
    """Seed torch inside, and restore the caller's random state afterwards."""
    gpus = [device.index or 0 for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        yield

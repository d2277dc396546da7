"""The walk: node by node through the model's graph, each to its rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from penumbra.propagation import rules  # noqa: F401  (registers the rules)
from penumbra.propagation.errors import PropagationError, UnsupportedLayerError
from penumbra.propagation.moments import ChannelMoments, Moments
from penumbra.propagation.registry import Registry, describe, diagonal
from penumbra.propagation.tracing import (
    is_noise,
    last_readers,
    place,
    refuse_batch_statistics,
    target_of,
    trace,
)


def propagate(
    model: nn.Module, *, relu: str = "moment", smooth: str = "moment", max_pool: str = "argmax"
) -> Propagated:
    """A module that computes the mean and variance of `model` under its noise, in one pass.

    The result is called like `model`, with tensors or, for sensor noise, with `Moments`, and
    returns `Moments` wherever `model` returns tensors. It shares the model's parameters. Values
    that no noise has reached are computed by the plain network and have `variance is None`.

    Args:
        model: any nn.Module that torch.fx can trace, in eval mode.
        relu: "moment" integrates a rectified Gaussian; "jacobian" is the paper's first order,
            which leaves the mean as the plain network has it.
        smooth: the same choice for sigmoid, tanh, softplus, GELU, SiLU and ELU.
        max_pool: "argmax" follows the largest mean; "moment" takes the maximum of Gaussians.
    """
    return Propagated(model, diagonal, {"relu": relu, "smooth": smooth, "max_pool": max_pool})


class Propagated(nn.Module):
    """A model's graph, walked with `Moments` instead of tensors."""

    def __init__(self, model: nn.Module, registry: Registry, options: Mapping[str, str]) -> None:
        super().__init__()
        self.registry = registry
        self.options = registry.options(options)
        self.model = trace(model, registry)
        self._last_readers = last_readers(self.model.graph)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        refuse_batch_statistics(self.model)
        arguments = _Arguments(inputs, named_inputs)
        values: dict[fx.Node, Any] = {}
        for node in self.model.graph.nodes:
            try:
                values[node] = self._value(node, values, arguments)
            except PropagationError:
                raise
            except Exception as error:
                raise PropagationError(f"{place(node, self.model)}: {error}") from error
            if node.op == "output":
                arguments.refuse_unread()
                return _as_moments(values[node])
            for spent in self._last_readers.get(node, ()):
                del values[spent]
        raise PropagationError("the model's graph has no output")

    def _value(self, node: fx.Node, values: Mapping[fx.Node, Any], arguments: _Arguments) -> Any:
        if node.op == "placeholder":
            return arguments.take(node)
        if node.op == "get_attr":
            return _attribute(self.model, node.target)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "output":
            return args[0]
        return self._call(node, args, kwargs)

    def _call(self, node: fx.Node, args: tuple, kwargs: dict) -> Any:
        target = target_of(node, self.model)
        uncertain = any(isinstance(leaf, Moments) for leaf in _leaves((args, kwargs)))
        if not uncertain and not is_noise(node, self.model, self.registry):
            return call_plainly(node, self.model, args, kwargs)
        rule = self.registry.find(target, self.options)
        if rule is None:
            raise UnsupportedLayerError(
                f"{place(node, self.model)} has no rule, and its input is uncertain. Register one: "
                f"@penumbra.propagation.rule({describe(target)!s}) on a function that takes "
                f"{'the layer and ' if node.op == 'call_module' else ''}the arguments, with "
                "Moments for what is uncertain, and returns Moments"
            )
        if node.op == "call_module":
            return rule(self.model.get_submodule(node.target), *args, **kwargs)
        return rule(*args, **kwargs)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class _Arguments:
    """Hands the caller's arguments to the graph's placeholders, in order or by name."""

    def __init__(self, positional: tuple, named: Mapping[str, Any]) -> None:
        self._positional = list(positional)
        self._named = dict(named)

    def take(self, node: fx.Node) -> Any:
        if self._positional:
            value = self._positional.pop(0)
        elif node.target in self._named:
            value = self._named.pop(node.target)
        elif node.args:
            value = node.args[0]  # the default of the model's forward
        else:
            raise PropagationError(f"the model's input '{node.target}' was not given")
        return _checked(value, node.target)

    def refuse_unread(self) -> None:
        if self._positional or self._named:
            extra = [f"'{name}'" for name in self._named] or [f"{len(self._positional)} more"]
            raise PropagationError(f"the model has no input for {', '.join(extra)}")


def _checked(value: Any, name: str) -> Any:
    """An input as the walk wants it: a plain tensor where exact, consistent Moments otherwise."""
    if not isinstance(value, Moments):
        return value
    if value.variance is None:
        return value.mean
    if value.variance.shape != value.mean.shape:
        raise PropagationError(
            f"the model's input '{name}' has a variance of shape {tuple(value.variance.shape)} "
            f"for a mean of shape {tuple(value.mean.shape)}: they must be equal"
        )
    return value


def call_plainly(node: fx.Node, module: fx.GraphModule, args: tuple, kwargs: dict) -> Any:
    """Run a call node as the plain model would."""
    if node.op == "call_module":
        return module.get_submodule(node.target)(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def _as_moments(output: Any) -> Any:
    """The walk's last value with every tensor as Moments of its diagonal."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, Moments):
            return leaf.diagonal() if isinstance(leaf, ChannelMoments) else leaf
        return Moments(leaf) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(convert, output, is_leaf=lambda leaf: isinstance(leaf, Moments))


def _leaves(structure: Any) -> list[Any]:
    return pytree.tree_leaves(structure, is_leaf=lambda leaf: isinstance(leaf, Moments))


def _attribute(module: nn.Module, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module

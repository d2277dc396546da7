"""The walk: node by node through the model's graph, each to its rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.compiler import is_exporting as exporting
from torch.fx.traceback import annotate
from torch.utils import _pytree as pytree

from penumbra.propagation import rules  # noqa: F401  (registers the rules)
from penumbra.propagation.errors import PropagationError, UnsupportedLayerError
from penumbra.propagation.moments import CovarianceMoments, MixedMoments, Moments
from penumbra.propagation.registry import Registry, describe, diagonal
from penumbra.propagation.tracing import (
    last_readers,
    place,
    refuse_batch_statistics,
    target_of,
    trace,
)


def propagate(
    model: nn.Module,
    *,
    relu: str = "moment",
    smooth: str = "moment",
    max_pool: str = "argmax",
    softmax: str = "jacobian",
) -> Propagated:
    """A module that computes the mean and variance of `model` under its noise, in one pass.

    The result is called like `model`, with tensors or, for sensor noise, with `Moments`, and
    returns `Moments` wherever `model` returns tensors. It shares the model's parameters. Values
    that no noise has reached are computed by the plain network and have `variance is None`.

    Noise is what a noise layer makes, or `F.dropout`, whatever its `training` says. Noise behind an
    `if self.training:` leaves no trace in an eval-mode graph: put it into a layer and register that
    with `@penumbra.propagation.noise`.

    Args:
        model: any nn.Module that torch.fx can trace, in eval mode.
        relu: "moment" integrates a rectified Gaussian; "jacobian" is the paper's first order,
            which leaves the mean as the plain network has it.
        smooth: the same choice for sigmoid, tanh, softplus, GELU, SiLU and ELU.
        max_pool: "argmax" follows the largest mean; "moment" takes the maximum of Gaussians.
        softmax: "jacobian" is first order over independent classes, as in the paper; "moment" takes
            the classes' covariance from the affine layer in front and integrates. For K classes
            that is a convolution with K (K-1)/2 outputs more; rules.one_vs_rest has the figures.
    """
    options = {"relu": relu, "smooth": smooth, "max_pool": max_pool, "softmax": softmax}
    return Propagated(model, diagonal, options)


class Propagated(nn.Module):
    """A model's graph, walked with `Moments` instead of tensors."""

    def __init__(self, model: nn.Module, registry: Registry, options: Mapping[str, str]) -> None:
        super().__init__()
        self.registry = registry
        self.options = registry.options(options)
        self.model = trace(model, registry)
        self.training = self.model.training

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        refuse_batch_statistics(self.model)
        values = arguments_of(self.model, inputs, named_inputs)
        spent = last_readers(self.model.graph)
        for node in self.model.graph.nodes:
            if node.op != "placeholder":
                with naming_the_place(node, self.model):
                    values[node] = self._value(node, values)
            if node.op == "output":
                return _as_moments(values[node])
            for value in spent.get(node, ()):
                del values[value]
        raise PropagationError("the model's graph has no output")

    def _value(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        if node.op == "get_attr":
            return attribute(self.model, node.target)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "output":
            return args[0]
        return self._call(node, args, kwargs)

    def _call(self, node: fx.Node, args: tuple, kwargs: dict) -> Any:
        target = target_of(node, self.model)
        uncertain = _any_moments((*args, *kwargs.values()))
        exact = not uncertain and not self.registry.is_noise(target)
        if exact or _is_named_tuple(target):
            return call_plainly(node, self.model, args, kwargs)
        rule = self.registry.find(target, self.options)
        if rule is None:
            what = "its input is uncertain" if uncertain else "it is a source of noise"
            raise UnsupportedLayerError(
                f"it has no rule, and {what}. Register one: @penumbra.propagation."
                f"{'rule' if uncertain else 'noise'}({describe(target)}) on a function that takes "
                f"{'the layer and ' if node.op == 'call_module' else ''}the arguments, with "
                "Moments for what is uncertain, and returns Moments"
            )
        args, kwargs = _as_rules_name_them(args, kwargs)
        if node.op != "call_module":
            return self._needed(rule(*args, **kwargs))
        layer = self.model.get_submodule(node.target)
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise PropagationError(
                "it has forward hooks, which its rule would leave out: remove them (weight norm "
                "without hooks is torch.nn.utils.parametrizations.weight_norm)"
            )
        return self._needed(rule(layer, *args, **kwargs))

    def _needed(self, value: Any) -> Any:
        """Without what nobody will ask for: mixed channels hold on to the layer's input."""
        if isinstance(value, MixedMoments) and self.options.get("softmax") != "moment":
            return value.diagonal()
        return value

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


def arguments_of(
    module: fx.GraphModule, positional: tuple, named: Mapping[str, Any]
) -> dict[fx.Node, Any]:
    """The caller's arguments by placeholder: exact tensors, or Moments that were checked."""
    positional, named = list(positional), dict(named)
    values: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op != "placeholder":
            break
        with naming_the_place(node, module):
            value = _argument(node, positional, named)
            values[node] = pytree.tree_map(_checked, value, is_leaf=is_moments)
    if positional or named:
        extra = [f"'{name}'" for name in named] or [f"{len(positional)} more"]
        raise PropagationError(f"the model has no input for {', '.join(extra)}")
    return values


def _argument(node: fx.Node, positional: list[Any], named: dict[str, Any]) -> Any:
    """Takes what belongs to a placeholder out of the arguments."""
    if node.target.startswith("*"):
        rest = named if node.target.startswith("**") else positional
        value = dict(rest) if rest is named else tuple(rest)
        rest.clear()
        return value
    if positional:
        return positional.pop(0)
    if node.target in named:
        return named.pop(node.target)
    if node.args:
        return node.args[0]  # the default of the model's forward
    raise PropagationError("it was not given")


def _checked(value: Any) -> Any:
    """A plain tensor where exact, consistent Moments otherwise."""
    if not isinstance(value, Moments):
        return value
    if value.variance is None:
        return value.mean
    if value.variance.shape != value.mean.shape:
        raise PropagationError(
            f"its variance has the shape {tuple(value.variance.shape)} and its mean "
            f"{tuple(value.mean.shape)}: they must be equal"
        )
    # An exported graph cannot raise.
    if not torch.compiler.is_exporting() and (value.variance < 0).any():
        raise PropagationError("its variance is negative in places: it must be at least 0")
    return value


# torch lets these be said in two ways.
_SYNONYMS = {"axis": "dim", "keepdims": "keepdim"}


def _as_rules_name_them(args: tuple, kwargs: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Leading arguments that the model gave by torch's names, in order, as rules expect them."""
    named = {_SYNONYMS.get(name, name): value for name, value in kwargs.items()}
    for position, names in enumerate((("input", "tensors"), ("other",))):
        for name in names:
            if name in named and len(args) == position:
                args = (*args, named.pop(name))
    return args, named


def _is_named_tuple(target: Any) -> bool:
    return isinstance(target, type) and issubclass(target, tuple)


@contextmanager
def naming_the_place(node: fx.Node, module: fx.GraphModule) -> Iterator[None]:
    """Whatever goes wrong at a node is told with its place in front.

    What is exported there carries its place, too, for whoever has to complain about it later.
    """
    try:
        with annotate({"layer": place(node, module)}) if exporting() else nullcontext():
            yield
    except Exception as error:
        kind = type(error) if isinstance(error, PropagationError) else PropagationError
        raise kind(f"{place(node, module)}: {error}") from error


def call_plainly(node: fx.Node, module: fx.GraphModule, args: tuple, kwargs: dict) -> Any:
    """Run a call node as the plain model would."""
    if node.op == "call_module":
        return module.get_submodule(node.target)(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def _as_moments(output: Any) -> Any:
    """The walk's last value with every tensor as Moments: a whole covariance, or the diagonal."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, Moments):
            return leaf if isinstance(leaf, CovarianceMoments) else leaf.diagonal()
        return Moments(leaf) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(convert, as_the_model_returns(output), is_leaf=is_moments)


def as_the_model_returns(output: Any) -> Any:
    """Lists and dictionaries in place of the immutable ones that torch.fx keeps."""
    if isinstance(output, dict):
        return {name: as_the_model_returns(value) for name, value in output.items()}
    if isinstance(output, list):
        return [as_the_model_returns(value) for value in output]
    if type(output) is tuple:
        return tuple(as_the_model_returns(value) for value in output)
    return output


def is_moments(value: Any) -> bool:
    return isinstance(value, Moments)


def _any_moments(arguments: tuple) -> bool:
    """Whether an argument is uncertain, or a container of something that is."""
    return any(
        is_moments(value)
        or (isinstance(value, (list, tuple, dict)) and any(map(is_moments, leaves(value))))
        for value in arguments
    )


def leaves(structure: Any) -> list[Any]:
    return pytree.tree_leaves(structure, is_leaf=is_moments)


def attribute(module: nn.Module, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module

"""The walk: a model's traced graph, executed node by node with the rules."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.compiler import is_exporting as exporting
from torch.fx.traceback import annotate
from torch.utils import _pytree as pytree

import penumbra.propagation.rules  # noqa: F401  (registers the rules)
from penumbra.propagation.advice import has_gains, warn_of_correlation
from penumbra.propagation.coherent import coherent_call
from penumbra.propagation.errors import PropagationError, UnsupportedLayerError
from penumbra.propagation.moments import (
    CovarianceMoments,
    ExactMoments,
    MixedMoments,
    Moments,
)
from penumbra.propagation.registry import Registry, describe, diagonal
from penumbra.propagation.rules.refused import why_refused
from penumbra.propagation.tracing import (
    function_of,
    is_noise,
    last_readers,
    layer_of,
    name_of,
    place,
    reached_by_noise,
    refuse_another_path,
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
    example: Any = None,
    noiseless: bool = False,
    coherent: bool = False,
) -> Propagated:
    """A module that computes the mean and variance of `model` under its noise, in one pass.

    The result is called like `model`, with tensors or, for sensor noise, with `Moments`, and
    returns `Moments` wherever `model` returns tensors. It shares the model's parameters. Layers
    before the first noise source run unmodified; an output that no noise reaches is
    `ExactMoments`.

    Noise sources are noise layers and `F.dropout`, regardless of its `training` argument. Noise
    behind an `if self.training:` leaves no trace in an eval-mode graph: put it into a layer and
    register that with `@penumbra.propagation.noise`.

    Args:
        model: any nn.Module that torch.fx can trace, in eval mode.
        relu: "moment" integrates a rectified Gaussian; "jacobian" is the paper's first order,
            which leaves the mean of the plain network unchanged.
        smooth: the same choice for sigmoid, tanh, softplus, GELU, SiLU and ELU.
        max_pool: "argmax" follows the largest mean; "moment" takes the maximum of Gaussians.
        softmax: "jacobian" is first order over independent classes, as in the paper; "moment" takes
            the classes' covariance from the affine layer in front and integrates. For K classes
            this adds a convolution with K (K-1)/2 outputs. docs/rules.md compares their accuracy.
        example: an input of the model (or a tuple of its inputs), for a forward whose control flow
            depends on sizes. The graph then holds for inputs that take the same path.
        noiseless: allow a model without noise, whose variance is zero (the baseline of a
            benchmark). Otherwise calling it with exact inputs raises.
        coherent: carry noise that a channel (`Dropout2d`) or an image (stochastic depth) shares
            through the network, instead of up to the next affine layer. Exact as far as the network
            is affine; costs a pass of what follows for each channel or layer of stochastic depth,
            and cannot be exported.
    """
    options = {"relu": relu, "smooth": smooth, "max_pool": max_pool, "softmax": softmax}
    return Propagated(model, diagonal, options, example, noiseless, coherent)


class Propagated(nn.Module):
    """A model's graph, walked with `Moments` instead of tensors."""

    def __init__(
        self,
        model: nn.Module,
        registry: Registry,
        options: Mapping[str, str],
        example: Any = None,
        noiseless: bool = False,
        coherent: bool = False,
    ) -> None:
        super().__init__()
        self.registry = registry
        self.options = registry.options(options)
        self.model = trace(model, registry, as_inputs(example))
        self.noiseless = noiseless
        self.coherent = coherent
        self._advised = False
        self.training = self.model.training

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        """What `model` returns, with `Moments` in place of tensors."""
        refuse_batch_statistics(self.model)
        values = arguments_of(self.model, inputs, named_inputs)
        if not self.noiseless:
            refuse_silence(self.model, self.registry, values)
        if not self._advised and not exporting() and not has_gains(self.model):
            warn_of_correlation(self.model, self.registry, self.coherent)
            self._advised = True
        spent = last_readers(self.model.graph)
        for node in self.model.graph.nodes:
            if node.op != "placeholder":
                with naming_the_place(node, self.model):
                    values[node] = self._value(node, values)
                    refuse_another_path(node, values[node], self.model)
            if node.op == "output":
                return _as_moments(values[node])
            for value in spent.get(node, ()):
                del values[value]
        raise PropagationError("the model's graph has no output")

    def _value(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        if node.op == "get_attr":
            return attribute(self.model, name_of(node))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "output":
            return args[0]
        return self._call(node, args, kwargs)

    def _call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = target_of(node, self.model)
        uncertain = _any_moments((*args, *kwargs.values()))
        exact = not uncertain and not is_noise(node, self.model, self.registry)
        if exact or _is_named_tuple(target):
            return call_plainly(node, self.model, args, kwargs)
        rule = self.registry.find(target, self.options)
        if rule is None:
            what = "its input is uncertain" if uncertain else "it is a source of noise"
            raise UnsupportedLayerError(
                f"it has no rule, and {what}{why_refused(target)}. Register one: "
                f"@penumbra.propagation.{'rule' if uncertain else 'noise'}({describe(target)}) on "
                "a function that takes "
                f"{'the layer and ' if node.op == 'call_module' else ''}the arguments, with "
                "Moments for what is uncertain, and returns Moments"
            )
        args, kwargs = _as_rules_name_them(args, kwargs)
        if node.op != "call_module":
            if self.coherent:
                method = node.op == "call_method"
                plain = getattr(Tensor, name_of(node)) if method else function_of(node)
                return coherent_call(target, rule, plain, None, args, kwargs)
            return self._needed(rule(*args, **kwargs))
        layer = layer_of(node, self.model)
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise PropagationError(
                "it has forward hooks, which its rule would leave out: remove them (weight norm "
                "without hooks is torch.nn.utils.parametrizations.weight_norm)"
            )
        if self.coherent:
            bound = functools.partial(rule, layer)
            return coherent_call(target, bound, layer, layer, args, kwargs)
        return self._needed(rule(layer, *args, **kwargs))

    def _needed(self, value: Any) -> Any:
        """Without a covariance that no rule will read: it would keep the layer's input alive."""
        if isinstance(value, MixedMoments) and self.options.get("softmax") != "moment":
            return value.diagonal()
        return value

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


def as_inputs(example: Any) -> tuple[Any, ...] | None:
    """An example as the tuple of a model's inputs, with plain tensors."""
    if example is None:
        return None
    inputs = example if isinstance(example, tuple) else (example,)
    plain: tuple[Any, ...] = pytree.tree_map(
        lambda leaf: leaf.mean if is_moments(leaf) else leaf, inputs, is_leaf=is_moments
    )
    return plain


def refuse_silence(
    module: fx.GraphModule, registry: Registry, inputs: Mapping[fx.Node, Any]
) -> list[fx.Node]:
    """The nodes that noise reaches; raises if none of the model's outputs is among them."""
    uncertain = (n for n, value in inputs.items() if any(map(is_moments, leaves(value))))
    reached = reached_by_noise(module, registry, uncertain)
    if set(reached).isdisjoint(list(module.graph.nodes)[-1].all_input_nodes):
        raise PropagationError(
            "no noise reaches the model's output (it has no noise layer with a rate above 0, and "
            "its inputs are exact): its variance would be zero, and there is nothing to sample. "
            "penumbra.propagation.add_dropout puts noise into a model"
        )
    return reached


def arguments_of(
    module: fx.GraphModule, positional: Iterable[Any], named: Mapping[str, Any]
) -> dict[fx.Node, Any]:
    """The caller's arguments by placeholder: tensors if exact, otherwise Moments, checked."""
    positional, named = list(positional), dict(named)
    values: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op != "placeholder":
            continue
        with naming_the_place(node, module):
            value = _argument(node, positional, named)
            values[node] = pytree.tree_map(_checked, value, is_leaf=is_moments)
    if positional or named:
        extra = [f"'{name}'" for name in named] or [f"{len(positional)} more"]
        raise PropagationError(f"the model has no input for {', '.join(extra)}")
    return values


def _argument(node: fx.Node, positional: list[Any], named: dict[str, Any]) -> Any:
    """Take the value of a placeholder out of the arguments."""
    name = name_of(node)
    if name.startswith("**"):
        keywords = dict(named)
        named.clear()
        return keywords
    if name.startswith("*"):
        rest = tuple(positional)
        positional.clear()
        return rest
    if positional:
        return positional.pop(0)
    if name in named:
        return named.pop(name)
    if node.args:
        return node.args[0]  # the default of the model's forward
    raise PropagationError("it was not given")


def _checked(value: Any) -> Any:
    """A plain tensor if exact, otherwise Moments whose shapes and signs are right."""
    if not isinstance(value, Moments):
        return value
    if isinstance(value, ExactMoments):
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


# torch has two names for these arguments.
_SYNONYMS = {"axis": "dim", "keepdims": "keepdim"}


def _as_rules_name_them(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as rules expect them: leading ones by position, and one name for each."""
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
    """Put the place of a node in front of any error; while exporting, annotate its operations."""
    try:
        with annotate({"layer": place(node, module)}) if exporting() else nullcontext():
            yield
    except Exception as error:
        kind = type(error) if isinstance(error, PropagationError) else PropagationError
        raise kind(f"{place(node, module)}: {error}") from error


def call_plainly(
    node: fx.Node, module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a call node as the plain model would."""
    if node.op == "call_module":
        return layer_of(node, module)(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], name_of(node))(*args[1:], **kwargs)
    return function_of(node)(*args, **kwargs)


def _as_moments(output: Any) -> Any:
    """The walk's result with every tensor as Moments: a full covariance, or the diagonal."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, Moments):
            return leaf if isinstance(leaf, CovarianceMoments) else leaf.diagonal()
        return ExactMoments(leaf) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(convert, as_the_model_returns(output), is_leaf=is_moments)


def as_the_model_returns(output: Any) -> Any:
    """Lists and dictionaries in place of torch.fx's immutable ones."""
    if isinstance(output, dict):
        return {name: as_the_model_returns(value) for name, value in output.items()}
    if isinstance(output, list):
        return [as_the_model_returns(value) for value in output]
    if type(output) is tuple:
        return tuple(as_the_model_returns(value) for value in output)
    return output


def is_moments(value: Any) -> bool:
    """Whether a value is uncertain."""
    return isinstance(value, Moments)


def _any_moments(arguments: tuple[Any, ...]) -> bool:
    """Whether an argument is uncertain, or a container of something that is."""
    return any(
        is_moments(value)
        or (isinstance(value, (list, tuple, dict)) and any(map(is_moments, leaves(value))))
        for value in arguments
    )


def leaves(structure: Any) -> list[Any]:
    """The leaves of nested containers; Moments are leaves."""
    return pytree.tree_leaves(structure, is_leaf=is_moments)


def attribute(module: nn.Module, name: str) -> Any:
    """An attribute by its qualified name, such as a parameter."""
    for part in name.split("."):
        module = getattr(module, part)
    return module

"""From an nn.Module to a torch.fx graph that is safe to walk with moments or with samples.

Whatever would make the walk's result wrong raises here and names its place: control flow that
depends on data, noise inside a layer that the walk treats as one piece, values that are overwritten
in place and read afterwards.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import get_testing_overrides

from penumbra.propagation.errors import (
    HiddenNoiseError,
    PropagationError,
    UntraceableModelError,
)
from penumbra.propagation.registry import Registry, Target, describe
from penumbra.propagation.tracer import DECIDED, IN_PLACE_NAMES, LIBRARIES, traced

_IN_PLACE_OPERATORS = {getattr(operator, name) for name in IN_PLACE_NAMES}
# Results of these share memory with their input: overwriting one overwrites the other.
_VIEW_NAMES = (
    "flatten", "reshape", "reshape_as", "view", "view_as", "squeeze", "unsqueeze", "unflatten",
    "transpose", "permute", "t", "swapaxes", "swapdims", "movedim", "moveaxis", "chunk", "split",
    "tensor_split", "unbind", "narrow", "select", "diagonal", "unfold", "expand", "expand_as",
    "broadcast_to", "contiguous", "detach", "to", "float", "double", "type_as",
)  # fmt: skip
_VIEWS = {
    *_VIEW_NAMES, *(getattr(torch, name) for name in _VIEW_NAMES if hasattr(torch, name)),
    operator.getitem, nn.Flatten, nn.Identity, nn.Unflatten,
}  # fmt: skip
# These do not read the elements of a value.
_SHAPE_QUERIES = {"size", "dim", "numel", "ndimension", "shape", "ndim", "dtype", "device"}
# Noise outside of noise layers: it would be drawn once and taken as exact.
_RANDOM = {
    torch.rand, torch.randn, torch.randint, torch.rand_like, torch.randn_like,
    torch.randint_like, torch.bernoulli, torch.normal, torch.poisson, torch.multinomial,
    F.gumbel_softmax,
    "bernoulli", "bernoulli_", "normal_", "uniform_", "exponential_", "multinomial",
}  # fmt: skip


MAKE_A_LAYER = (
    "put the noise into a module of its own and register it with @penumbra.propagation.noise"
)


def trace(
    model: nn.Module, registry: Registry, example: tuple[Any, ...] | None = None
) -> fx.GraphModule:
    """The model's graph; it shares parameters, buffers and submodules with the model.

    With an example of the model's inputs, control flow may depend on their shapes.
    """
    random_state = torch.get_rng_state()
    root, graph = traced(model, registry, example)
    if not torch.equal(random_state, torch.get_rng_state()):
        raise PropagationError(f"the model's forward draws random numbers: {MAKE_A_LAYER}")
    module = fx.GraphModule(root, graph)
    _refuse_hidden_noise(module, registry)
    _refuse_overwritten_reads(module, registry)
    refuse_switched_off_noise(root, module, registry, example)
    return module


def refuse_another_path(node: fx.Node, value: Any, module: fx.GraphModule) -> None:
    """Raise if control flow was decided by another value of this node while tracing."""
    if DECIDED in node.meta and value != node.meta[DECIDED]:
        raise PropagationError(
            f"the model was traced where this is {node.meta[DECIDED]!r}, and here it is "
            f"{value!r}: its forward may take another path. Trace it with an example of this size"
        )


def name_of(node: fx.Node) -> str:
    """The name that a node refers to: of an input, an attribute, a submodule or a method."""
    if not isinstance(node.target, str):
        raise TypeError(f"the node '{node.name}' calls a function")
    return node.target


def function_of(node: fx.Node) -> Callable[..., Any]:
    """The function that a `call_function` node calls."""
    if isinstance(node.target, str):
        raise TypeError(f"the node '{node.name}' calls no function")
    return node.target


def layer_of(node: fx.Node, module: fx.GraphModule) -> nn.Module:
    """The submodule that a `call_module` node calls."""
    return module.get_submodule(name_of(node))


def target_of(node: fx.Node, module: fx.GraphModule) -> Target:
    """What a call node calls: a module type, a function, or a method's name."""
    return type(layer_of(node, module)) if node.op == "call_module" else node.target


def place(node: fx.Node, module: fx.GraphModule) -> str:
    """The place of a node in the model, for an error message."""
    if node.op in ("placeholder", "output"):
        return f"the model's {'input' if node.op == 'placeholder' else 'output'} '{node.target}'"
    what = describe(target_of(node, module))
    if node.op == "call_module":
        return f"layer '{node.target}' ({what})"
    around = list((node.meta.get("nn_module_stack") or {}).values())
    inside = around[-1][0] if around and around[-1][0] else ""
    return f"{what}{f' in layer {inside!r}' if inside else ''}{_source_line(node)}"


def last_readers(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """By node: the values that are not read after it, so that their memory can be freed."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        last[node] = node
        last.update(dict.fromkeys(node.all_input_nodes, node))
    spent: dict[fx.Node, list[fx.Node]] = {}
    for value, reader in last.items():
        spent.setdefault(reader, []).append(value)
    return spent


# Attributes of noise layers, and arguments of noise functions, that switch the noise off if zero.
_RATES = ("p", "std", "drop_prob", "dropout", "dropout_p")


def is_noise(node: fx.Node, module: fx.GraphModule, registry: Registry) -> bool:
    """Whether the node is a source of noise, at a rate above zero."""
    if not node.op.startswith("call_") or not registry.is_noise(target_of(node, module)):
        return False
    if node.op == "call_module":
        rates = [getattr(layer_of(node, module), name, None) for name in _RATES]
    else:
        rates = [_argument(node, name) for name in _RATES]
    known = [rate for rate in rates if isinstance(rate, (int, float))]
    return not known or any(rate != 0 for rate in known)


def refuse_switched_off_noise(
    model: nn.Module,
    module: fx.GraphModule,
    registry: Registry,
    example: tuple[Any, ...] | None,
) -> None:
    """Raise if `if self.training` hides noise: the eval-mode graph would be without it.

    The forwards that are traced are traced once more with `self.training` on. What they do only
    then is noise if it is a noise layer, or draws random numbers; anything else (auxiliary outputs)
    belongs to training.
    """
    pieces = {layer_of(n, module) for n in module.graph.nodes if n.op == "call_module"}
    inside = {inner for piece in pieces for inner in piece.modules()}
    switched = [
        m
        for m in model.modules()
        if m not in inside and not m.training and not isinstance(m, _BatchNorm)
    ]
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()} if example else {}
    random_state = torch.get_rng_state()
    found: str | None = None
    try:
        for each in switched:
            each.training = True
        root, graph = traced(model, registry, example)
        noisy = fx.GraphModule(root, graph)
        before = _noise_places(module, registry)
        found = next((p for p in _noise_places(noisy, registry) if p not in before), None)
    except UntraceableModelError:
        found = next(filter(None, map(_random_in_source, switched)), None)
    finally:
        for each in switched:
            each.training = False
        with torch.no_grad():  # a forward in training mode may keep statistics
            for name, buffer in kept.items():
                model.get_buffer(name).copy_(buffer)
    if found is None and not torch.equal(random_state, torch.get_rng_state()):
        found = next(filter(None, map(_random_in_source, switched)), "the model's forward")
    torch.set_rng_state(random_state)
    if found:
        raise PropagationError(
            f"{found} is noise only in training mode (`if self.training`), so that it would be "
            f"missing here: {MAKE_A_LAYER}, or set its rate to 0"
        )


def _noise_places(module: fx.GraphModule, registry: Registry) -> list[str]:
    return [
        place(node, module)
        for node in module.graph.nodes
        if is_noise(node, module, registry)
        or (node.op.startswith("call_") and target_of(node, module) in _RANDOM)
    ]


def _random_in_source(layer: nn.Module) -> str | None:
    """The name of a module whose forward, as it is written, is random in training mode only."""
    try:
        source = inspect.getsource(type(layer).forward)
    except (OSError, TypeError):
        return None
    rate = next((getattr(layer, name) for name in _RATES if hasattr(layer, name)), None)
    is_random = re.search(r"bernoulli|rand|drop|normal_|uniform_", source)
    return describe(type(layer)) if "self.training" in source and is_random and rate != 0 else None


def reached_by_noise(
    module: fx.GraphModule, registry: Registry, uncertain: Iterable[fx.Node] = ()
) -> list[fx.Node]:
    """All nodes whose value differs between samples, in order, given the `uncertain` inputs."""
    reached = dict.fromkeys(uncertain)
    for node in module.graph.nodes:
        noisy = is_noise(node, module, registry) or not reached.keys().isdisjoint(
            node.all_input_nodes
        )
        if noisy and node.op != "output":
            reached[node] = None
    return list(reached)


def refuse_batch_statistics(module: fx.GraphModule) -> None:
    """Raise if a batch norm would normalise by its batch: batch elements would depend on others."""
    for node in module.graph.nodes:
        if node.op == "call_module":
            layer = layer_of(node, module)
            mixes = isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
        else:
            batch_norms = (F.batch_norm, torch.batch_norm)
            mixes = node.target in batch_norms and _argument(node, "training")
        if mixes:
            raise PropagationError(
                f"{place(node, module)} normalises by the statistics of the batch: call "
                "model.eval() first, before propagate (its running statistics are needed), or "
                "model its noise with penumbra.propagation.fit_batchnorm_noise"
            )


def _refuse_hidden_noise(module: fx.GraphModule, registry: Registry) -> None:
    """Raise if a layer that the walk treats as one piece has noise inside: it would be lost."""
    for node in module.graph.nodes:
        if not node.op.startswith("call_") or is_noise(node, module, registry):
            continue
        target = target_of(node, module)
        if target in _RANDOM:
            raise PropagationError(f"{place(node, module)} draws random numbers: {MAKE_A_LAYER}")
        hidden: object = None
        if node.op != "call_module":
            hidden = _argument(node, "dropout_p")
        elif not registry.knows(target):
            hidden = _noise_inside(layer_of(node, module), registry)
        if hidden:  # along an example the walk may see inside
            raise HiddenNoiseError(
                f"{place(node, module)} has dropout inside ({hidden}) where the walk cannot see "
                "it: give an example of the input (propagate(model, example=x)) if it is one of "
                "torch's transformers, build it from separate layers, set its rate to 0, or "
                "register a noise rule for it"
            )


def _noise_inside(layer: nn.Module, registry: Registry) -> object:
    """The first noise source in a layer that is not traced: its name, or its rate."""
    for name, inner in layer.named_modules():
        rates = [getattr(inner, rate) for rate in _RATES if hasattr(inner, rate)]
        if registry.is_noise(type(inner)) and any(rate != 0 for rate in rates or [None]):
            return name
        rate = getattr(inner, "dropout", None)  # of nn.LSTM, nn.MultiheadAttention
        if isinstance(rate, (int, float)) and rate > 0:
            return rate
    return None


def _refuse_overwritten_reads(module: fx.GraphModule, registry: Registry) -> None:
    """Raise if a value that is overwritten in place is read afterwards."""
    order = {node: index for index, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        if not overwrites_input(node, module) or not node.all_input_nodes:
            continue
        for shared in _overwritten_by(node, module, registry):
            later = [u for u in shared.users if order[u] > order[node] and _reads_elements(u)]
            # A chain of in-place layers reads the result of the layer before, not the old value.
            if later:
                raise PropagationError(
                    f"{place(node, module)} overwrites its input in place, and "
                    f"{place(later[0], module)} reads that input afterwards: use inplace=False, "
                    "or the function that makes a new value"
                )


def _reads_elements(node: fx.Node) -> bool:
    query = node.args[1] if node.target is getattr else node.target
    return query not in _SHAPE_QUERIES


def overwrites_input(node: fx.Node, module: fx.GraphModule) -> bool:
    """Whether the node writes its result into its first argument."""
    if node.op == "call_module":
        return bool(getattr(layer_of(node, module), "inplace", False))
    if node.op == "call_method":
        method = name_of(node)
        return method.endswith("_") and not method.endswith("__")
    if node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        in_place_function = name.endswith("_") and not name.endswith("__")
        return (
            node.target in _IN_PLACE_OPERATORS
            or in_place_function
            or bool(_argument(node, "inplace"))
        )
    return False


def _overwritten_by(
    writer: fx.Node, module: fx.GraphModule, registry: Registry
) -> Iterator[fx.Node]:
    """The writer's input, every node that it is a view of, and every view of one of those."""
    seen = {writer}
    stack = writer.all_input_nodes[:1]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if _is_view(node, module, registry):
            stack.extend(node.all_input_nodes[:1])
        stack.extend(user for user in node.users if _is_view(user, module, registry))


def _is_view(node: fx.Node, module: fx.GraphModule, registry: Registry) -> bool:
    if node.target is getattr:
        return node.args[1] not in _SHAPE_QUERIES
    if not node.op.startswith("call_"):
        return False
    target = target_of(node, module)
    # Dropout that is switched off returns its input itself.
    return registry.is_noise(target) or target in _VIEWS


def bind(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """A call's arguments by name; TypeError or ValueError if the function does not take them."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin: torch keeps its signature elsewhere
        stand_in = get_testing_overrides().get(function)
        if stand_in is None:
            raise
        signature = inspect.signature(stand_in)
        if signature.parameters and "kwargs" not in signature.parameters:
            # Stand-ins leave newer arguments out.
            rest = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
            signature = signature.replace(parameters=[*signature.parameters.values(), rest])
    return signature.bind(*args, **kwargs)


def _argument(node: fx.Node, name: str) -> Any:
    """The value of a function node's argument by name, or None if there is no such argument."""
    if name in node.kwargs or node.op != "call_function":
        return node.kwargs.get(name)
    try:
        bound = bind(function_of(node), node.args, node.kwargs)
    except (TypeError, ValueError):
        return None
    bound.apply_defaults()
    return bound.arguments.get(name)


def _source_line(node: fx.Node) -> str:
    """The line of the user's code that made a node, if the tracer recorded it."""
    frames = re.findall(r'File "(.+)", line (\d+)', node.stack_trace or "")
    own = [(file, line) for file, line in frames if not file.startswith(LIBRARIES)]
    return " ({}:{})".format(*own[-1]) if own else ""

"""From an nn.Module to a torch.fx graph that is safe to walk with moments or with samples.

Everything that would make the walk lie is refused here, with the place named: control flow that
depends on data, noise hidden inside a layer that the walk cannot look into, values that are
overwritten in place and read afterwards.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penumbra.propagation.errors import PropagationError, UntraceableModelError
from penumbra.propagation.registry import Registry, Target, describe

_IN_PLACE_OPERATORS = {
    getattr(operator, name)
    for name in ("iadd", "isub", "imul", "itruediv", "ipow", "ifloordiv", "imatmul", "setitem")
}
# Results of these share memory with their input: overwriting one overwrites the other.
_VIEWS = {
    torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze, torch.transpose, torch.permute,
    torch.chunk, torch.split, torch.unbind, torch.narrow, torch.select, operator.getitem,
    "view", "view_as", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "t",
    "chunk", "split", "unbind", "narrow", "select", "expand", "expand_as", "contiguous", "detach",
    "unflatten", "swapaxes", "movedim", nn.Flatten, nn.Identity, nn.Unflatten,
}  # fmt: skip


class _Tracer(fx.Tracer):
    """torch.fx's tracer that stops at every module with a rule, and knows where it is."""

    record_stack_traces = True

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self.registry = registry
        self.path: list[str] = []

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return self.registry.knows(type(module)) or super().is_leaf_module(module, qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
    ) -> Any:
        self.path.append(f"'{self.path_of_module(m)}' ({describe(type(m))})")
        result = super().call_module(m, forward, args, kwargs)
        self.path.pop()  # left in place by an exception, so that the error can name the module
        return result


def trace(model: nn.Module, registry: Registry) -> fx.GraphModule:
    """The model's graph; it shares parameters, buffers and submodules with the model."""
    tracer = _Tracer(registry)
    if registry.knows(type(model)):  # a bare layer: nothing to look into, so put it into a model
        model = nn.Sequential(model)
    try:
        graph = tracer.trace(model)
    except Exception as error:
        where = tracer.path[-1] if tracer.path else f"'' ({describe(type(model))})"
        raise UntraceableModelError(
            f"torch.fx cannot trace the forward of {where}: {_first_line(error)}. Write its "
            "control flow without looking at values (torch.where), or register a rule for the "
            "module's type, which makes it a layer of its own"
        ) from error
    module = fx.GraphModule(tracer.root, graph)
    _refuse_hidden_noise(module, registry)
    _refuse_overwritten_reads(module)
    return module


def target_of(node: fx.Node, module: fx.GraphModule) -> Target:
    """What a call node calls: a module type, a function, or a method's name."""
    if node.op == "call_module":
        return type(module.get_submodule(node.target))
    return node.target


def place(node: fx.Node, module: fx.GraphModule) -> str:
    """Where a node stands in the model, for an error message."""
    if node.op in ("placeholder", "output"):
        return f"the model's {'input' if node.op == 'placeholder' else 'output'} '{node.target}'"
    what = describe(target_of(node, module))
    if node.op == "call_module":
        return f"layer '{node.target}' ({what})"
    around = list((node.meta.get("nn_module_stack") or {}).values())
    inside = around[-1][0] if around and around[-1][0] else ""
    return f"{what}{f' in layer {inside!r}' if inside else ''}{_source_line(node)}"


def last_readers(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """By node: the values that nobody reads after it, so that memory is freed on the way."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        last[node] = node
        last.update(dict.fromkeys(node.all_input_nodes, node))
    spent: dict[fx.Node, list[fx.Node]] = {}
    for value, reader in last.items():
        spent.setdefault(reader, []).append(value)
    return spent


def is_noise(node: fx.Node, module: fx.GraphModule, registry: Registry) -> bool:
    """Whether the node is a source of noise."""
    return node.op.startswith("call_") and registry.is_noise(target_of(node, module))


def refuse_batch_statistics(module: fx.GraphModule) -> None:
    """Raise if a batch norm would normalise by the batch at hand: its elements would mix."""
    for node in module.graph.nodes:
        if node.op == "call_module":
            layer = module.get_submodule(node.target)
            mixes = isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
        else:
            mixes = node.target is F.batch_norm and _argument(node, "training")
        if mixes:
            raise PropagationError(
                f"{place(node, module)} normalises by the statistics of the batch: call "
                "model.eval() first (its running statistics are needed), or model its noise with "
                "penumbra.propagation.fit_batchnorm_noise"
            )


def _refuse_hidden_noise(module: fx.GraphModule, registry: Registry) -> None:
    """No silent zeros: noise inside a layer that is walked as one piece would go unseen."""
    for node in module.graph.nodes:
        hidden: object = None
        if node.op == "call_module":
            layer = module.get_submodule(node.target)
            if registry.knows(type(layer)):
                continue
            inner = (name for name, m in layer.named_modules() if registry.is_noise(type(m)))
            rate = getattr(layer, "dropout", None)
            hidden = next(inner, None) or (rate if isinstance(rate, float) and rate > 0 else None)
        elif node.target is F.scaled_dot_product_attention:
            hidden = _argument(node, "dropout_p")
        if hidden:
            raise PropagationError(
                f"{place(node, module)} has dropout inside ({hidden}) where the walk cannot see "
                "it: build it from separate layers, set its rate to 0, or register a noise rule "
                "for it"
            )


def _refuse_overwritten_reads(module: fx.GraphModule) -> None:
    """In-place layers are fine unless the value they overwrite is read afterwards."""
    order = {node: index for index, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        if not overwrites_input(node, module) or not node.all_input_nodes:
            continue
        for shared in _sharing_memory(node.args[0], module):
            later = [user for user in shared.users if order[user] > order[node]]
            # A chain of in-place layers reads the result of the one before it, not the old value.
            if later:
                raise PropagationError(
                    f"{place(node, module)} overwrites its input in place, and "
                    f"{place(later[0], module)} reads that input afterwards: use inplace=False"
                )


def overwrites_input(node: fx.Node, module: fx.GraphModule) -> bool:
    """Whether the node writes its result into its first argument."""
    if node.op == "call_module":
        return bool(getattr(module.get_submodule(node.target), "inplace", False))
    if node.op == "call_method":
        return node.target.endswith("_") and not node.target.endswith("__")
    if node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        in_place_function = name.endswith("_") and not name.endswith("__")
        return (
            node.target in _IN_PLACE_OPERATORS
            or in_place_function
            or bool(_argument(node, "inplace"))
        )
    return False


def _sharing_memory(value: Any, module: fx.GraphModule) -> Iterator[fx.Node]:
    """The node and every node that it is a view of, or that is a view of one of those."""
    seen: set[fx.Node] = set()
    stack = [value] if isinstance(value, fx.Node) else []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if _is_view(node, module):
            stack.extend(node.all_input_nodes[:1])
        stack.extend(user for user in node.users if _is_view(user, module))


def _is_view(node: fx.Node, module: fx.GraphModule) -> bool:
    return node.op.startswith("call_") and target_of(node, module) in _VIEWS


def function_arguments(function: Callable[..., Any], args: tuple, kwargs: dict) -> dict[str, Any]:
    """A call's arguments by name, defaults included."""
    if function is torch.dropout:  # a builtin: it has no signature to ask
        return {**dict(zip(("input", "p", "train"), args, strict=False)), **kwargs}
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _argument(node: fx.Node, name: str) -> Any:
    """The value of a function node's argument by name, or None where it has no such argument."""
    if name in node.kwargs or node.op != "call_function":
        return node.kwargs.get(name)
    try:
        return function_arguments(node.target, node.args, node.kwargs).get(name)
    except (TypeError, ValueError):  # builtins have no signature
        return None


def _source_line(node: fx.Node) -> str:
    """The line of the user's code that made a node, as far as the tracer saw it."""
    lines = [line for line in (node.stack_trace or "").splitlines() if line.lstrip()[:4] == "File"]
    if not lines:
        return ""
    file = lines[-1].split('"')[1]
    number = lines[-1].split("line ")[-1].split(",")[0]
    return f" ({file}:{number})"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

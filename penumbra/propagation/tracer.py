"""From a forward to a torch.fx graph: symbolically, or along an example input.

Why torch.fx and not torch.export (2.13, non-strict): an exported program has ATen operators on
lifted parameters. Layers, which have names, gains and rules of their own, are gone from it; dropout
is there only by its operator, and a noise layer of one's own in eval mode not at all; shapes are
those of the example unless every dimension is declared. torch.fx keeps layers as one piece and
shapes as expressions. What it lacks are concrete sizes for an `if` or an `assert`. `ExampleTracer`
adds them: every proxy carries the value that the example has there, and control flow that depends
on a shape is decided by it. The decision is noted on the node, and the walk refuses an input that
would take another path.
"""

from __future__ import annotations

import inspect
import operator
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import Attribute, TraceError
from torch.utils import _pytree as pytree

from penumbra.propagation.errors import PropagationError, UntraceableModelError
from penumbra.propagation.registry import Registry, describe

IN_PLACE_NAMES = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imatmul")
# What a node's value was when control flow depended on it.
DECIDED = "penumbra_decided_by"
LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
# torch.fx takes all of torch.nn as one piece. These have noise and layers with rules inside, and
# control flow that depends on sizes.
_COMPOSITE = (
    nn.Transformer, nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)  # fmt: skip

_FACTORIES = (
    "zeros", "ones", "full", "empty", "arange", "linspace", "eye", "rand", "randn", "randint",
)  # fmt: skip


class _Proxy(fx.Proxy):
    """torch.fx's proxy, which also distinguishes `x += y`, which overwrites x, from `x = x + y`."""


def _in_place_operator(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    def operate(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return operate


for _name in IN_PLACE_NAMES:
    setattr(_Proxy, f"__{_name}__", _in_place_operator(_name))


class Tracer(fx.Tracer):
    """torch.fx's tracer, which also stops at every module with a rule and knows its place."""

    record_stack_traces = True

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self.registry = registry
        self.path: list[str] = []

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """A proxy of this module."""
        return _Proxy(node, self)

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        """Whether the module is one piece: it has a rule, or belongs to torch.nn."""
        target = type(module)
        known = self.registry.knows(target) or self.registry.is_noise(target)
        return known or super().is_leaf_module(module, qualified_name)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Trace a submodule, and remember it while it is traced."""
        self.path.append(f"'{self.path_of_module(m)}' ({describe(type(m))})")
        result = super().call_module(m, forward, args, kwargs)
        self.path.pop()  # left in place by an exception, so that the error can name the module
        return result

    def graph_of(self, model: nn.Module) -> fx.Graph:
        """The graph of a model's forward."""
        return self.trace(model)


class _ExampleProxy(_Proxy):
    """A proxy with the value that the example has there.

    Arithmetic of sizes stays an expression of the graph. Where Python needs the number (`if`,
    `range`, `int`), the number is noted on the node.
    """

    value: Any = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The value's type, for `isinstance(size, int)`.

        Not for tensors: torch's compiled code asks by the same means, and would read a proxy's
        memory as a tensor's (see `_instance_checks`).
        """
        numbers = (bool, int, float)
        return type(self.value) if isinstance(self.value, numbers) else _ExampleProxy

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.value, name)  # raises as the value itself does
        if callable(attribute):
            return Attribute(self, name)
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def __bool__(self) -> bool:
        return bool(self.decided())

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.value, Mapping):
            return iter(self.value)
        return (operator.getitem(self, index) for index in range(len(self.value)))

    def __contains__(self, item: Any) -> bool:
        return item in self.value if isinstance(self.value, Mapping) else item in list(self)

    def __int__(self) -> int:
        return int(self.decided())

    def __index__(self) -> int:
        return operator.index(self.decided())

    def __float__(self) -> float:
        return float(self.decided())

    def decided(self) -> Any:
        """The number, which from here on is part of the graph."""
        if isinstance(self.value, Tensor):
            raise TraceError("control flow or a Python number depends on the elements of a tensor")
        self.node.meta[DECIDED] = self.value
        return self.value


class ExampleTracer(Tracer):
    """A tracer that runs every call on the example as it records it."""

    def __init__(self, registry: Registry, example: tuple[Any, ...]) -> None:
        super().__init__(registry)
        self.example = example
        self.inputs: dict[str, Any] = {}
        self.running = False

    def graph_of(self, model: nn.Module) -> fx.Graph:
        """The graph along the example; inputs that it leaves out have their defaults."""
        signature = inspect.signature(model.forward)
        bound = signature.bind(*self.example)
        self.inputs = pytree.tree_map(_copied, dict(bound.arguments))
        left_out = {
            name: parameter.default
            for name, parameter in signature.parameters.items()
            if name not in bound.arguments and parameter.default is not inspect.Parameter.empty
        }
        with torch.no_grad(), self._recorded_factories(), _instance_checks(model):
            return self.trace(model, concrete_args=left_out or None)

    @contextmanager
    def _recorded_factories(self) -> Iterator[None]:
        """Record `torch.zeros(x.size(0), …)`, which torch.fx does not see: no argument is a tensor.

        torch reads its sizes before it asks for overrides, so the functions themselves are replaced
        while the model is traced.
        """
        before = {name: getattr(torch, name) for name in _FACTORIES}

        def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
            def make(*args: Any, **kwargs: Any) -> Any:
                if any(type(leaf) is _ExampleProxy for leaf in pytree.tree_leaves((args, kwargs))):
                    return self.create_proxy("call_function", function, args, kwargs)
                return function(*args, **kwargs)

            return make

        try:
            for name, function in before.items():
                setattr(torch, name, recorded(function))
            yield
        finally:
            for name, function in before.items():
                setattr(torch, name, function)

    def create_arg(self, a: Any) -> Any:
        """A node for a proxy, which looks like a tensor or a number."""
        return a.node if type(a) is _ExampleProxy else super().create_arg(a)

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        """As for any tracer, but not for torch.nn's transformers."""
        known = self.registry.knows(type(module))
        return (known or type(module) not in _COMPOSITE) and super().is_leaf_module(
            module, qualified_name
        )

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """A proxy that has a value."""
        return _ExampleProxy(node, self)

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
        proxy_factory_fn: Any = None,
    ) -> fx.Proxy:
        """Record a node, and its value."""
        # Run first: an in-place operation's arguments are recorded as they were.
        values, named = fx.node.map_aggregate((args, kwargs), _value_of)
        proxy = super().create_proxy(kind, target, args, kwargs, name, type_expr)
        was, self.running = self.running, True
        random_state = torch.get_rng_state()  # what a recorded node draws is not the forward's own
        try:
            object.__setattr__(proxy, "value", self._run(kind, target, values, named))
        finally:
            self.running = was
            torch.set_rng_state(random_state)
        return proxy

    def _run(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if kind == "placeholder":
            given = self.inputs.get(target.lstrip("*"))
            return args[0] if given is None and args else given
        if kind == "get_attr":
            return operator.attrgetter(target)(self.root)
        if kind == "call_module":
            return self.root.get_submodule(target)(*args, **kwargs)
        if kind == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Trace a submodule, or run it if it is part of a layer that is run."""
        if self.running:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """A parameter as a proxy, or itself for a layer that is run."""
        if self.running:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


@contextmanager
def _instance_checks(model: nn.Module) -> Iterator[None]:
    """`isinstance(x, Tensor)` in the forwards of the model is asked about the example's value."""

    def of_value(value: Any, kinds: Any) -> bool:
        return isinstance(_value_of(value), kinds)

    spaces = {
        id(m.forward.__func__.__globals__): m.forward.__func__.__globals__
        for m in model.modules()
        if hasattr(m.forward, "__func__")
    }
    own = [s for s in spaces.values() if not str(s.get("__name__", "")).startswith("torch.")]
    own = [space for space in own if "isinstance" not in space]
    try:
        for space in own:
            space["isinstance"] = of_value
        yield
    finally:
        for space in own:
            del space["isinstance"]


def _value_of(argument: Any) -> Any:
    return argument.value if type(argument) is _ExampleProxy else argument


def _copied(value: Any) -> Any:
    """In-place operations must not change the caller's example."""
    return value.clone() if isinstance(value, Tensor) else value


def traced(
    model: nn.Module, registry: Registry, example: tuple[Any, ...] | None
) -> tuple[nn.Module, fx.Graph]:
    """The model (a bare layer in a model of its own) and its graph."""
    tracer = Tracer(registry) if example is None else ExampleTracer(registry, example)
    if tracer.is_leaf_module(model, ""):
        model = nn.Sequential(model).train(model.training)
    try:
        return model, tracer.graph_of(model)
    except PropagationError:
        raise
    except Exception as error:
        where = tracer.path[-1] if tracer.path else f"the model ({describe(type(model))})"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if example is None:
            way = (
                "Give an example of its input, by which control flow that depends on sizes is "
                "decided: propagate(model, example=x). Or write"
            )
        else:
            way = "Write"
        raise UntraceableModelError(
            f"torch.fx cannot trace the forward of {where}{_users_line(error)}: {reason}. {way} "
            "its control flow without looking at values (torch.where), or register a rule for the "
            "module's type, which makes it a layer of its own"
        ) from error


def _users_line(error: BaseException) -> str:
    """The line of the user's code that an error comes from: the last one outside of libraries."""
    frames = traceback.extract_tb(error.__traceback__ or sys.exc_info()[2])
    own = [f for f in frames if not f.filename.startswith((*LIBRARIES, "<"))]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""

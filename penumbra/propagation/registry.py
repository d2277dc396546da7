"""The registry: which rule takes mean and variance through which layer.

A decorator registers a rule for module types, functions, or methods by name:

    @rule(MyScale)                      # a module type: called as rule(module, *arguments)
    def my_scale(layer, x):
        return Moments(x.mean * layer.scale, x.variance * layer.scale**2)

    @rule(torch.neg, operator.neg, "neg")    # functions and methods: rule(*arguments)
    def negate(x):
        return Moments(-x.mean, x.variance)

A layer or function of a package that may not be installed is named with its module:
`"timm.layers.drop.DropPath"`.

Uncertain arguments are passed as `Moments`, all others unchanged. Keywords of the decorator are
conditions on the options of `propagate`: `@rule(nn.ReLU, relu="jacobian")` applies only to
`propagate(model, relu="jacobian")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch.nn.functional as F
from torch import nn

from penumbra.propagation.errors import DuplicateRuleError, PropagationError

Target = type[nn.Module] | Callable[..., Any] | str
Rule = Callable[..., Any]
RuleT = TypeVar("RuleT", bound=Rule)
Condition = frozenset[tuple[str, str]]


class Registry:
    """Rules by target and condition. A second rule for the same target is an error."""

    def __init__(self, defaults: Mapping[str, str], noise_of: Registry | None = None) -> None:
        """`defaults` names every option and its default value.

        A noise source of the registry `noise_of` is one in this registry, even without a rule.
        """
        self.defaults = dict(defaults)
        self._noise_of = noise_of
        self._rules: dict[Target, dict[Condition, Rule]] = {}
        self._noise: set[Target] = set()
        self._layers: dict[Target, tuple[Target, tuple[str, ...]]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Registry:
        return self  # a copied model shares the rules, including later ones

    def rule(
        self, *targets: Target, override: bool = False, **condition: str
    ) -> Callable[[RuleT], RuleT]:
        """Register the decorated function as the rule of every target, under a condition.

        With `override` it replaces the rule of the same condition; without a condition, all of
        them.
        """
        unknown = set(condition) - set(self.defaults)
        if unknown:
            raise PropagationError(
                f"no option called {', '.join(sorted(unknown))}: {self.defaults}"
            )
        key = frozenset(condition.items())

        def register(function: RuleT) -> RuleT:
            for target in targets:
                if self._has_rule(target, key) and not override:
                    raise DuplicateRuleError(
                        f"{describe(target)} already has a rule"
                        + (f" ({dict(key)})" if key else "")
                        + "; pass override=True to replace it"
                    )
            for target in targets:
                if not key:
                    self._rules[target] = {}
                self._rules.setdefault(target, {})[key] = function
            return function

        return register

    def _has_rule(self, target: Target, key: Condition) -> bool:
        """Whether a rule under this condition would replace another, or never be used."""
        rules = self._rules.get(target, {})
        return target in self._layers or key in rules or (not key and bool(rules))

    def layer(self, module_type: type[nn.Module], function: Target, *attributes: str) -> None:
        """Give a module type the rules of the function that it calls.

        The named attributes of the layer are passed as the function's arguments of the same name.
        """
        if module_type in self._layers or module_type in self._rules:
            raise DuplicateRuleError(f"{describe(module_type)} already has a rule")
        self._layers[module_type] = (function, attributes)

    def noise(
        self, *targets: Target, override: bool = False, **condition: str
    ) -> Callable[[RuleT], RuleT]:
        """Register the rule of a noise source, which is also applied to exact inputs."""

        def register(function: RuleT) -> RuleT:
            self.rule(*targets, override=override, **condition)(function)
            self._noise.update(targets)
            return function

        return register

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        """The defaults, updated by `given`. Unknown names and values raise."""
        for name, value in given.items():
            choices = self.choices(name)
            if name not in self.defaults:
                raise PropagationError(
                    f"unknown option {name!r}; there are {', '.join(sorted(self.defaults))}"
                )
            if value not in choices:
                raise PropagationError(
                    f"{name}={value!r} is not one of {', '.join(map(repr, sorted(choices)))}"
                )
        return {**self.defaults, **given}

    def choices(self, name: str) -> set[str]:
        """The values of an option that any rule is registered for."""
        conditions = (key for rules in self._rules.values() for key in rules)
        return {value for key in conditions for option, value in key if option == name}

    def find(self, target: Target, options: Mapping[str, str]) -> Rule | None:
        """The rule for a target under these options; the one with the most conditions wins."""
        known = self._known(target)
        if known is None:
            return None
        held = options.items()
        rules = self._rules.get(known, {})
        fitting = [(len(key), rule) for key, rule in rules.items() if key <= held]
        if fitting:
            return max(fitting, key=lambda pair: pair[0])[1]
        return self._rule_of_layer(known, options) if known in self._layers else None

    def _rule_of_layer(self, module_type: Target, options: Mapping[str, str]) -> Rule | None:
        function, attributes = self._layers[module_type]
        rule = self.find(function, options)
        if rule is None:
            return None

        def by_function(layer: nn.Module, *arguments: Any, **named: Any) -> Any:
            return rule(*arguments, **named, **{name: getattr(layer, name) for name in attributes})

        return by_function

    def targets(self) -> list[Target]:
        """Everything that has a rule: module types, functions, methods by name."""
        return [*self._rules, *(target for target in self._layers if target not in self._rules)]

    def knows(self, target: Target) -> bool:
        """Whether a rule is registered for the target, under any options."""
        return self._known(target) is not None

    def is_noise(self, target: Target) -> bool:
        """Whether the target is a source of noise."""
        known = self._known(target)
        if known is not None:
            function, _ = self._layers.get(known, (known, ()))
            if known in self._noise or function in self._noise:
                return True
        return self._noise_of is not None and self._noise_of.is_noise(target)

    def _known(self, target: Target) -> Target | None:
        """The target as it was registered: itself, or the base whose forward it inherits."""
        candidates: Iterable[Target] = (target, _full_name(target))
        if isinstance(target, type) and issubclass(target, nn.Module):
            candidates = (name for base in _with_bases(target) for name in (base, _full_name(base)))
        for candidate in candidates:
            if candidate in self._rules or candidate in self._layers:
                return candidate
        return None


def _full_name(target: Target) -> str:
    """The name by which the rule of another package's layer is registered, without importing it."""
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}"


_BASES: dict[type[nn.Module], list[type[nn.Module]]] = {}


def _with_bases(module_type: type[nn.Module]) -> list[type[nn.Module]]:
    """A module type and the bases whose `forward` it inherits unchanged."""
    if module_type not in _BASES:  # looked up at every step of every walk
        modules = [base for base in module_type.__mro__ if issubclass(base, nn.Module)]
        _BASES[module_type] = [m for m in modules if m.forward is module_type.forward]
    return _BASES[module_type]


def describe(target: Target) -> str:
    """A target as a person would write it: `nn.Conv2d`, `F.relu`, `torch.cumsum`, `"view"`."""
    if isinstance(target, str):
        return f'"{target}"'
    module = getattr(target, "__module__", None) or "torch"
    name = getattr(target, "__qualname__", getattr(target, "__name__", str(target)))
    if isinstance(target, type) and module.startswith("torch.nn.modules"):
        return f"nn.{name}"
    name = name.removeprefix("_VariableFunctionsClass.")
    if getattr(F, name, None) is target:
        return f"F.{name}"
    return f"{module.removeprefix('_')}.{name}"


diagonal = Registry(
    {"relu": "moment", "smooth": "moment", "max_pool": "argmax", "softmax": "jacobian"}
)
"""The rules of `propagate`: mean and variance of each element."""

full = Registry({"relu": "moment"}, noise_of=diagonal)
"""The rules of `propagate_covariance`: mean and full covariance matrix."""

rule = diagonal.rule
noise = diagonal.noise
layer = diagonal.layer

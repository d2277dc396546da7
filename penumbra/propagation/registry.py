"""Which rule moves mean and variance through which layer.

A rule is registered with a decorator for module types, functions, or methods by their name:

    @rule(MyScale)                      # a module type: called as rule(module, *arguments)
    def my_scale(layer, x):
        return Moments(x.mean * layer.scale, x.variance * layer.scale**2)

    @rule(torch.neg, operator.neg, "neg")    # functions and methods: rule(*arguments)
    def negate(x):
        return Moments(-x.mean, x.variance)

Arguments that are uncertain arrive as `Moments`, all others as they are. Keywords of the decorator
are conditions on the options of `propagate`: `@rule(nn.ReLU, relu="jacobian")` holds for
`propagate(model, relu="jacobian")` alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import nn

from penumbra.propagation.errors import DuplicateRuleError, PropagationError

Target = type[nn.Module] | Callable[..., Any] | str
Rule = Callable[..., Any]
Condition = frozenset[tuple[str, str]]


class Registry:
    """Rules by target and condition; a second rule for one target is an error."""

    def __init__(self, defaults: Mapping[str, str], noise_of: Registry | None = None) -> None:
        """`defaults` names every option and the value it has unless the caller says otherwise.

        What is noise in the registry `noise_of` is noise in this one, even without a rule.
        """
        self.defaults = dict(defaults)
        self._noise_of = noise_of
        self._rules: dict[Target, dict[Condition, Rule]] = {}
        self._noise: set[Target] = set()
        self._layers: dict[Target, tuple[Target, tuple[str, ...]]] = {}

    def __deepcopy__(self, memo: dict) -> Registry:
        return self  # a copied model has the same rules, later ones included

    def rule(
        self, *targets: Target, override: bool = False, **condition: str
    ) -> Callable[[Rule], Rule]:
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

        def register(function: Rule) -> Rule:
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
        """Whether a rule under this condition would replace one, or never be asked."""
        rules = self._rules.get(target, {})
        return target in self._layers or key in rules or (not key and bool(rules))

    def layer(self, module_type: type[nn.Module], function: Target, *attributes: str) -> None:
        """Let a module type have the rules of the function that it calls.

        The layer's attributes become the function's arguments of the same name.
        """
        if module_type in self._layers or module_type in self._rules:
            raise DuplicateRuleError(f"{describe(module_type)} already has a rule")
        self._layers[module_type] = (function, attributes)

    def noise(self, *targets: Target, override: bool = False) -> Callable[[Rule], Rule]:
        """Register the rule of a noise source: it is asked even when its input is exact."""

        def register(function: Rule) -> Rule:
            self.rule(*targets, override=override)(function)
            self._noise.update(targets)
            return function

        return register

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        """The defaults with `given` laid over them; unknown names and values are refused."""
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
        """The values that some rule knows for an option."""
        conditions = (key for rules in self._rules.values() for key in rules)
        return {value for key in conditions for option, value in key if option == name}

    def find(self, target: Target, options: Mapping[str, str]) -> Rule | None:
        """The rule for a target under these options; the one with the most conditions wins."""
        known = self._known(target)
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

    def knows(self, target: Target) -> bool:
        """Whether any rule, under whatever options, is registered for the target."""
        return self._known(target) is not None

    def is_noise(self, target: Target) -> bool:
        """Whether the target is a source of noise."""
        known = self._known(target)
        function, _ = self._layers.get(known, (known, ()))
        if known in self._noise or function in self._noise:
            return True
        return self._noise_of is not None and self._noise_of.is_noise(target)

    def _known(self, target: Target) -> Target | None:
        """The target, or the base it inherits its forward from, as it was registered."""
        for candidate in _candidates(target):
            if candidate in self._rules or candidate in self._layers:
                return candidate
        return None


@functools.cache  # asked at every step of every walk
def _candidates(target: Target) -> list[Target]:
    """The target and, for a module type, the bases whose `forward` it inherits unchanged."""
    if isinstance(target, type) and issubclass(target, nn.Module):
        return [base for base in target.__mro__ if getattr(base, "forward", None) is target.forward]
    return [target]


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
"""The rules of `propagate_covariance`: mean and the whole covariance matrix."""

rule = diagonal.rule
noise = diagonal.noise
layer = diagonal.layer

"""Rules: one per target, conditions, overriding, inheritance."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from function_models import Net
from torch import nn

from penumbra.propagation import (
    DuplicateRuleError,
    Moments,
    PropagationError,
    UnsupportedLayerError,
    noise,
    propagate,
    rule,
)
from penumbra.propagation.registry import Registry, describe, diagonal, full

X = torch.tensor([[1.0, -2.0, 3.0]])
HALF = nn.Dropout(0.5)  # variance x²


class Registered(nn.Module):
    """Base of the layers that tests register rules for: looks at values, so it is untraceable."""

    def forward(self, x):
        return 3 * x if x.sum() > -1e9 else x


def after_noise(layer: nn.Module) -> nn.Module:
    return nn.Sequential(HALF, layer).eval()


def test_a_rule_in_user_code_makes_the_layer_known():
    class Triple(Registered):
        pass

    @rule(Triple)
    def triple(layer: Triple, x: Moments) -> Moments:
        return Moments(3 * x.mean, 9 * x.variance)

    class Mine(Triple):
        """Inherits forward, and with it the rule."""

    for layer in (Triple(), Mine()):
        out = propagate(after_noise(layer))(X)
        torch.testing.assert_close(out.mean, 3 * X)
        torch.testing.assert_close(out.variance, 9 * X.square())


def test_a_subclass_with_a_forward_of_its_own_is_another_layer():
    class Base(nn.Bilinear):
        pass

    class Shifted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    class Cumulative(nn.ReLU):
        def forward(self, x):
            return torch.cumsum(x, 0)

    # Shifted is looked into: its parts have rules, and its own forward counts.
    torch.manual_seed(0)
    layer = Shifted(3, 2)
    out = propagate(after_noise(layer))(X)
    torch.testing.assert_close(out.mean, F.linear(X, layer.weight, layer.bias) + 1)
    with pytest.raises(UnsupportedLayerError, match=r"torch\.cumsum in layer '1'"):
        propagate(after_noise(Cumulative()))(X)


def test_a_rule_for_a_function_and_for_a_method():
    @rule(torch.frac, "frac")
    def fractional(x: Moments) -> Moments:
        return Moments(x.mean.frac(), x.variance)

    def both(net, x):
        x = net.noise(x)
        return torch.frac(x), x.frac()

    for out in propagate(Net(both, noise=nn.Dropout(0.5)))(X):
        torch.testing.assert_close(out.variance, X.square())


def test_a_noise_rule_is_asked_for_exact_input():
    class Jitter(Registered):
        pass

    @noise(Jitter)
    def jitter(layer: Jitter, x: torch.Tensor | Moments) -> Moments:
        assert not isinstance(x, Moments)
        return Moments(x, torch.ones_like(x))

    assert (propagate(nn.Sequential(nn.Linear(3, 3), Jitter()).eval())(X).variance == 1).all()


# ---- a second rule -------------------------------------------------------------------------------


def registry() -> Registry:
    """A fresh one with a function, the layer that calls it, and noise."""
    fresh = Registry({"relu": "moment"})
    fresh.rule(F.relu, relu="moment")(lambda x: "moment")
    fresh.rule(F.relu, relu="jacobian")(lambda x: "jacobian")
    fresh.layer(nn.ReLU, F.relu)
    fresh.noise(F.dropout)(lambda x, p: "dropped")
    fresh.layer(nn.Dropout, F.dropout, "p")
    fresh.rule(nn.Linear)(lambda layer, x: "linear")
    return fresh


@pytest.mark.parametrize("target", [nn.Linear, nn.ReLU, nn.Dropout, F.dropout, F.relu])
def test_a_second_rule_is_an_error_and_changes_nothing(target):
    rules = registry()
    with pytest.raises(DuplicateRuleError, match="already has a rule; pass override=True"):
        rules.rule(nn.Tanh, target)(lambda *_: "second")
    with pytest.raises(DuplicateRuleError):
        rules.noise(target)(lambda *_: "second")
    assert not rules.knows(nn.Tanh)  # all or none
    assert rules.find(nn.Linear, {"relu": "moment"})(None, 0) == "linear"
    assert rules.find(nn.ReLU, {"relu": "moment"})(nn.ReLU(), 0) == "moment"
    assert rules.find(nn.Dropout, {"relu": "moment"})(nn.Dropout(), 0) == "dropped"
    assert rules.is_noise(nn.Dropout)
    assert not rules.is_noise(nn.Linear)
    assert not rules.is_noise(nn.ReLU)


@pytest.mark.parametrize("target", [nn.Linear, nn.ReLU, F.relu])
@pytest.mark.parametrize("relu", ["moment", "jacobian"])
def test_override_replaces_the_rule_under_every_option(target, relu):
    rules = registry()
    rules.rule(target, override=True)(lambda *_: "second")
    assert rules.find(target, {"relu": relu})(None, 0) == "second"


def test_override_under_a_condition_leaves_the_others():
    rules = registry()
    rules.rule(nn.ReLU, override=True, relu="jacobian")(lambda *_: "second")
    assert rules.find(nn.ReLU, {"relu": "jacobian"})(nn.ReLU(), 0) == "second"
    assert rules.find(nn.ReLU, {"relu": "moment"})(nn.ReLU(), 0) == "moment"


def test_an_overridden_noise_layer_stays_noise():
    rules = registry()
    rules.rule(nn.Dropout, override=True)(lambda *_: "second")
    assert rules.is_noise(nn.Dropout)
    assert rules.find(nn.Dropout, {"relu": "moment"})(None, 0) == "second"


def test_a_layer_of_a_function_is_registered_once():
    rules = registry()
    for module_type in (nn.ReLU, nn.Linear):
        with pytest.raises(DuplicateRuleError):
            rules.layer(module_type, F.relu)


# ---- options -------------------------------------------------------------------------------------


def test_options_are_checked_by_name_and_value():
    with pytest.raises(PropagationError, match="relu='jacobi' is not one of 'jacobian', 'moment'"):
        propagate(nn.Sequential(), relu="jacobi")
    with pytest.raises(PropagationError, match="unknown option 'gelu'; there are max_pool, relu"):
        diagonal.options({"gelu": "moment"})
    with pytest.raises(PropagationError, match="no option called gelu"):
        rule(nn.Bilinear, gelu="moment")


def test_the_rule_with_more_conditions_wins():
    rules = registry()
    rules.rule(nn.Tanh)(lambda *_: "any")
    rules.rule(nn.Tanh, relu="jacobian")(lambda *_: "special")
    assert rules.find(nn.Tanh, {"relu": "moment"})() == "any"
    assert rules.find(nn.Tanh, {"relu": "jacobian"})() == "special"


# ---- the rest ------------------------------------------------------------------------------------


def test_targets_are_described_as_a_person_writes_them():
    import operator

    class Local(nn.Module):
        pass

    assert describe(nn.Conv2d) == "nn.Conv2d"
    assert describe(F.conv2d) == "F.conv2d"
    assert describe(torch.cumsum) == "torch.cumsum"
    assert describe(operator.add) == "operator.add"
    assert describe("view") == '"view"'  # as it is written in @rule("view")
    assert describe(Local).endswith("Local")


def test_a_copied_model_has_the_rules_that_come_later():
    model = propagate(nn.Sequential(HALF).eval())
    assert copy.deepcopy(model).registry is diagonal


@pytest.mark.parametrize("layer", [nn.Dropout2d(0.5), nn.AlphaDropout(0.5), nn.Dropout1d(0.5)])
def test_noise_without_a_covariance_rule_is_refused_there_not_ignored(layer):
    from penumbra.propagation.covariance import propagate_covariance

    assert full.is_noise(type(layer))
    with pytest.raises(UnsupportedLayerError, match=r"layer '0' .*it is a source of noise"):
        propagate_covariance(nn.Sequential(layer, nn.Linear(3, 2)).eval())(X)

"""Warnings about networks for which the diagonal approximation is known to be far off."""

from __future__ import annotations

import warnings

from torch import fx

from penumbra.propagation.gains import gains_of
from penumbra.propagation.registry import Registry
from penumbra.propagation.rules.stochastic_depth import SHARED_BY_ALL
from penumbra.propagation.tracing import is_noise, layer_of, target_of

_ACTIVATIONS = (
    "relu", "gelu", "silu", "elu", "mish", "hardswish", "sigmoid", "tanh", "softplus", "prelu",
    "max_pool", "maxpool", "selu", "celu",
)  # fmt: skip
_MANY = 3
_CHANNELS = ("dropout1d", "dropout2d", "dropout3d")
_SPREADING = ("interpolate", "upsampl", "avg_pool", "avgpool", "mean")


def warn_of_correlation(module: fx.GraphModule, registry: Registry, coherent: bool) -> None:
    """Warn if noise is known to come out correlated, and nothing accounts for it."""
    noisy = [n for n in module.graph.nodes if is_noise(n, module, registry)]
    rules = [registry.find(target_of(n, module), registry.defaults) for n in noisy]
    shared = [rule for rule in rules if rule in SHARED_BY_ALL]
    if shared and not coherent:
        warnings.warn(
            f"stochastic depth ({len(shared)} layers) scales all elements of an image together, "
            "which the diagonal takes as independent: give propagate(model, coherent=True), or fit "
            "gains",
            stacklevel=3,
        )
    elif not coherent and _channels_are_spread(module, registry):
        warnings.warn(
            "channels are dropped as a whole, mixed and then averaged or resampled, where the "
            "diagonal takes neighbours as independent: give propagate(model, coherent=True), or "
            "fit gains",
            stacklevel=3,
        )
    elif (count := longest_row(module, registry)) >= _MANY and not coherent:
        warnings.warn(
            f"{count} dropouts stand in a row with activations between them, and no layer has "
            "gains: behind them the noise of a trained network is correlated, and the standard "
            "deviation comes out much too small. Fit gains (penumbra.propagation.gain_fitting), "
            "and see compare(model, x)",
            stacklevel=3,
        )


def _channels_are_spread(module: fx.GraphModule, registry: Registry) -> bool:
    """Whether an affine layer and then a mean or resampling stand behind dropout of channels."""
    stages: dict[fx.Node, int] = {}  # 1: behind the dropout, 2: behind an affine layer as well
    for node in module.graph.nodes:
        stage = max((stages[i] for i in node.all_input_nodes if i in stages), default=0)
        name = _name(node, module).lower()
        if is_noise(node, module, registry) and name in _CHANNELS:
            stage = max(stage, 1)
        elif stage == 1 and any(part in name for part in ("conv", "linear")):
            stage = 2
        elif stage == 2 and any(part in name for part in _SPREADING):
            return True
        stages[node] = stage
    return False


def has_gains(module: fx.GraphModule) -> bool:
    """Whether any layer has gains."""
    return any(gains_of(layer) is not None for layer in module.modules())


def longest_row(module: fx.GraphModule, registry: Registry) -> int:
    """The largest number of noise sources on one path with an activation between each two."""
    best = 0
    rows: dict[fx.Node, tuple[int, bool]] = {}  # the number, and whether an activation came since
    for node in module.graph.nodes:
        count, bent = max((rows[i] for i in node.all_input_nodes if i in rows), default=(0, True))
        if is_noise(node, module, registry):
            count, bent = (count + 1, False) if bent else (count, bent)
        elif count and node.op.startswith("call_"):
            bent = bent or any(part in _name(node, module).lower() for part in _ACTIVATIONS)
        rows[node] = count, bent
        best = max(best, count)
    return best


def _name(node: fx.Node, module: fx.GraphModule) -> str:
    if node.op == "call_module":
        return type(layer_of(node, module)).__qualname__
    target = target_of(node, module) if node.op.startswith("call_") else ""
    return target if isinstance(target, str) else getattr(target, "__name__", "")

"""The same network in fewer steps.

Batch norm is folded into the convolution in front of it, for the mean and the variance at once: in
eval mode it is a factor s = γ/√(σ² + ε) and a shift per channel. Of the mean, runtimes fold it
themselves. Of the variance they cannot: it is a convolution with W² that is followed by a factor
s². Folded before the walk, W becomes sW, its square is s²W², and both factors are gone.

Of a convolution of which only the first outputs are read, the others are left out.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from penumbra.propagation import Propagated
from penumbra.propagation.gains import Gains, gains_of, set_gains

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold_batch_norms(propagated: Propagated) -> Propagated:
    """The same walk with fewer steps; `propagated` and its model stay as they are."""
    folded = copy.deepcopy(propagated)
    module = folded.model
    layers = dict(module.named_modules())
    for node in list(module.graph.nodes):
        if node.op != "call_module" or type(layers[node.target]) not in _NORMS:
            continue
        before = node.args[0] if node.args else None
        if (
            before is None
            or before.op != "call_module"
            or type(layers[before.target]) not in _CONVOLUTIONS
            or len(before.users) > 1
            or _is_shared(before.target, module, layers)
        ):
            continue
        fused = fuse_conv_bn_eval(layers[before.target], layers[node.target])
        module.set_submodule(before.target, fused)
        layers[before.target] = fused
        node.replace_all_uses_with(before)
        module.graph.erase_node(node)
    module.delete_all_unused_submodules()
    module.recompile()
    return folded


def narrow_convolutions(propagated: Propagated) -> None:
    """`convolution(x)[:, :n]` becomes a convolution with n outputs."""
    module = propagated.model
    layers = dict(module.named_modules())
    for node in module.graph.nodes:
        outputs = _first_outputs(node)
        before = node.args[0] if outputs else None
        if (
            before is None
            or before.op != "call_module"
            or type(layers[before.target]) not in _CONVOLUTIONS
            or layers[before.target].groups > 1
            or len(before.users) > 1
            or _is_shared(before.target, module, layers)
        ):
            continue
        layers[before.target] = _narrowed(layers[before.target], outputs)
        module.set_submodule(before.target, layers[before.target])


def _first_outputs(node: fx.Node) -> int | None:
    """n, if a node is x[:, :n]."""
    if node.op != "call_function" or node.target is not operator.getitem:
        return None
    match node.args[1]:
        case (slice(start=None, stop=None, step=None), slice(start=None, stop=int(n), step=None)):
            return n if n > 0 else None
    return None


def _narrowed(layer: Any, outputs: int) -> Any:
    narrow = copy.deepcopy(layer)
    narrow.out_channels = min(outputs, layer.out_channels)
    narrow.weight = nn.Parameter(layer.weight.detach()[:outputs].clone())
    if layer.bias is not None:
        narrow.bias = nn.Parameter(layer.bias.detach()[:outputs].clone())
    gains = gains_of(layer)
    if gains is not None:
        loadings = None if gains.loadings is None else gains.loadings[:outputs]
        set_gains(narrow, Gains(gains.outputs[:outputs], loadings, gains.taps))
    return narrow


def _is_shared(target: str, module: nn.Module, layers: dict[str, nn.Module]) -> bool:
    """Whether a layer is called in several places: folding would change the others as well."""
    calls = sum(
        node.op == "call_module" and layers[node.target] is layers[target]
        for node in module.graph.nodes
    )
    return calls > 1

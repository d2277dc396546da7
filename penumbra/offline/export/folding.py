"""Simplification of a walk: folded batch norms and narrowed convolutions.

Batch norm is folded into the preceding convolution, for the mean and the variance at once: in eval
mode it is a factor s = γ/√(σ² + ε) and a shift per channel. Runtimes fold it themselves for the
mean, but not for the variance, which is a convolution with W² followed by a factor s². If W becomes
sW before the walk, its square is s²W² and both factors vanish.

If only the first outputs of a convolution are read, the others are removed.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from penumbra.propagation import Propagated
from penumbra.propagation.gains import Gains, gains_of, set_gains
from penumbra.propagation.tracing import name_of

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold_batch_norms(propagated: Propagated) -> Propagated:
    """A copy of the walk with folded batch norms; `propagated` and its model do not change."""
    folded = copy.deepcopy(propagated)
    module = folded.model
    layers: dict[str, Any] = dict(module.named_modules())
    for node in list(module.graph.nodes):
        if node.op != "call_module" or type(layers[node.target]) not in _NORMS:
            continue
        before = _convolution_before(node, module, layers)
        if before is None:
            continue
        name = name_of(before)
        layers[name] = fuse_conv_bn_eval(layers[name], layers[node.target])
        module.set_submodule(name, layers[name])
        node.replace_all_uses_with(before)
        module.graph.erase_node(node)
    module.delete_all_unused_submodules()
    module.recompile()
    return folded


def narrow_convolutions(propagated: Propagated) -> None:
    """Replace `convolution(x)[:, :n]` by a convolution with n outputs."""
    module = propagated.model
    layers: dict[str, Any] = dict(module.named_modules())
    for node in module.graph.nodes:
        outputs = _first_outputs(node)
        before = _convolution_before(node, module, layers) if outputs else None
        if outputs is None or before is None:
            continue
        name = name_of(before)
        if layers[name].groups == 1:
            layers[name] = _narrowed(layers[name], outputs)
            module.set_submodule(name, layers[name])


def _convolution_before(
    node: fx.Node, module: fx.GraphModule, layers: dict[str, Any]
) -> fx.Node | None:
    """The convolution whose output only `node` reads, and which is called only once."""
    before = node.args[0] if node.args else None
    if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
        return None
    name = name_of(before)
    is_convolution = type(layers[name]) in _CONVOLUTIONS
    return before if is_convolution and not _is_shared(name, module, layers) else None


def _first_outputs(node: fx.Node) -> int | None:
    """The n of a node x[:, :n], otherwise None."""
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


def _is_shared(target: str, module: fx.GraphModule, layers: dict[str, Any]) -> bool:
    """Whether a layer is called several times: folding would change the other calls as well."""
    calls = sum(
        node.op == "call_module" and layers[node.target] is layers[target]
        for node in module.graph.nodes
    )
    return calls > 1

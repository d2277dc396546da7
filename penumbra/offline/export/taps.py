"""Statistics of features: mean and standard deviation per channel at a few taps of the network.

They tell a familiar scene from a strange one (`penumbra.vehicle.monitor.familiarity`). A tap is the
last tensor of a resolution: what a pooling or a strided convolution reads. There the features of
that resolution are complete, and each tap sees structures of another size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from penumbra.errors import PenumbraError
from penumbra.propagation import ExactMoments, Moments, Propagated, rule
from penumbra.propagation.propagate import leaves
from penumbra.propagation.tracing import layer_of, name_of

# A multiple of the padding of most networks, so that a crop is not taken for a reduction.
_SIZE = (128, 192)
# A pooling or a strided convolution leaves a quarter of the pixels, or half if it is one-sided.
_REDUCTION = 0.5


class ChannelStatistics(nn.Module):
    """Mean and standard deviation over all pixels, per channel: (1, C, H, W) to (2 C).

    In float32, whatever the precision of the features. The mean is subtracted before squaring: the
    difference of two large numbers would lose the deviation of a nearly constant channel.
    """

    def forward(self, x: Tensor) -> Tensor:
        """All means, then all standard deviations."""
        x = x.float()
        mean = x.mean((0, 2, 3), keepdim=True)
        deviation = x - mean
        std = (deviation * deviation).mean((0, 2, 3)).sqrt()
        return torch.cat([mean.squeeze((0, 2, 3)), std])


@rule(ChannelStatistics)
def statistics_of_moments(layer: ChannelStatistics, x: Moments) -> Moments:
    """Those of the mean: the variance of the dropout says nothing about the scene."""
    return ExactMoments(layer(x.mean))


def add_taps(
    walk: Propagated, size: tuple[int, int] | None = None, names: Sequence[str] | None = None
) -> tuple[int, ...]:
    """Let `walk` return (its result, the statistics of each tap); returns how many each has.

    Args:
        walk: takes one image (1, 3, H, W), and is changed.
        size: height and width of the image; None: any.
        names: of modules whose outputs are the taps; None: before each reduction of resolution.
    """
    module = walk.model
    shapes = _shapes(module, size or _SIZE)
    if names is None:
        taps = _before_reductions(module, shapes)
    else:
        taps = [_last_node_of(name, module, shapes) for name in names]
    statistics = []
    for number, tap in enumerate(taps):
        # Evaluated at once, in case that the next layer overwrites the tensor in place.
        module.add_submodule(f"statistics.{number}", ChannelStatistics())
        with module.graph.inserting_after(tap):
            statistics.append(module.graph.call_module(f"statistics.{number}", (tap,)))
    if taps:
        output = module.graph.output_node()
        output.args = ((output.args[0], tuple(statistics)),)
        module.recompile()
    return tuple(2 * shapes[tap][1] for tap in taps)


class _ShapeRecorder(fx.Interpreter):
    """Runs a graph and keeps the shapes of all images (1, C, H, W) in it."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        images = [leaf for leaf in leaves(value) if isinstance(leaf, Tensor) and leaf.dim() == 4]
        if images:  # of several, such as a pooling's values and their selection, the first
            self.shapes[n] = tuple(images[0].shape)
        return value


@torch.inference_mode()
def _shapes(module: fx.GraphModule, size: tuple[int, int]) -> dict[fx.Node, tuple[int, ...]]:
    weights = next(module.parameters())
    recorder = _ShapeRecorder(module)
    recorder.run(torch.zeros(1, 3, *size, dtype=weights.dtype, device=weights.device))
    return recorder.shapes


def _before_reductions(
    module: fx.GraphModule, shapes: dict[fx.Node, tuple[int, ...]]
) -> list[fx.Node]:
    """Of each resolution that a layer reduces, the last tensor that is reduced."""
    learnt = _learnt(module)
    last: dict[tuple[int, ...], fx.Node] = {}
    for node in module.graph.nodes:
        for source in node.all_input_nodes:
            if source in learnt and _is_reduced(shapes.get(source), shapes.get(node)):
                last[shapes[source][2:]] = source
    order = {node: place for place, node in enumerate(module.graph.nodes)}
    return sorted(last.values(), key=order.__getitem__)


def _is_reduced(before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> bool:
    """Whether a layer reduces the resolution. An average over the whole image is none."""
    if before is None or after is None or after[2:] == (1, 1):
        return False
    return after[2] * after[3] <= _REDUCTION * before[2] * before[3]


def _learnt(module: fx.GraphModule) -> set[fx.Node]:
    """The nodes that depend on weights: features, not the image itself."""
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        own = node.op == "call_module" and any(True for _ in layer_of(node, module).parameters())
        if own or node.op == "get_attr" or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _last_node_of(
    name: str, module: fx.GraphModule, shapes: dict[fx.Node, tuple[int, ...]]
) -> fx.Node:
    """The output of the module `name`, by its name in the network or in the walk."""
    wanted = {name, f"model.{name}"}
    inside = [node for node in module.graph.nodes if node in shapes and wanted & _modules(node)]
    if not inside:
        known = [name_of(node) for node in module.graph.nodes if node.op == "call_module"]
        raise PenumbraError(
            f"no layer {name!r} to take statistics of: choose from {', '.join(known)}"
        )
    return inside[-1]


def _modules(node: fx.Node) -> set[str]:
    """The names of all modules that a node belongs to."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    own = {name_of(node)} if node.op == "call_module" else set()
    return own | {str(path) for path, _ in stack}

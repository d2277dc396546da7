"""What is exported of a network, as a walk through PyTorch: with its rules and its gains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.offline.export.folding import fold_batch_norms, narrow_convolutions
from penumbra.offline.export.frame import frame_of
from penumbra.offline.gains_file import GAINS, load_gains
from penumbra.offline.models import read_header
from penumbra.propagation import Propagated, propagate
from penumbra.propagation.gain_fitting import with_gains
from penumbra.propagation.tracing import is_noise


def walk_of(
    model: nn.Module,
    architecture: str,
    relu: str,
    softmax: str,
    gains: Mapping[str, Tensor] | None = None,
    folded: bool = True,
    variance: str = "truthful",
) -> Propagated:
    """The walk through what is exported of a network: its gains set, `folded` into fewer steps."""
    _, _, head = frame_of(architecture)
    walk = propagate(head(model).eval(), relu=relu, softmax=softmax)
    if variance == "fast":
        _silence_all_but_the_last(walk)
    if folded:
        walk = fold_batch_norms(walk)
    if gains:
        walk = with_gains(walk, gains)
    if folded:  # last, for gains are of all outputs
        narrow_convolutions(walk)
    return walk


def walk_of_bundle(bundle: Bundle, model: nn.Module, folded: bool = True) -> Propagated:
    """What a bundle's graph computes, in PyTorch: `model` with the bundle's rules and gains."""
    variant = bundle.manifest["variant"]
    known = GAINS in bundle.manifest["files"]
    gains, facts = (load_gains(bundle.path) if known else None) or (None, {})
    softmax = variant.get("softmax", "jacobian")
    how = facts.get("variance", "truthful")
    return walk_of(model, variant["architecture"], variant["relu"], softmax, gains, folded, how)


def walk_of_checkpoint(path: Path | str, model: nn.Module) -> Propagated:
    """`model`, loaded from there, with the rules and gains of the calibration that lies beside its
    weights; without one the default rules."""
    gains, facts = load_gains(path) or (None, {})
    rules = facts.get("relu", "moment"), facts.get("softmax", "jacobian")
    architecture = read_header(path)["architecture"]
    how = facts.get("variance", "truthful")
    return walk_of(model, architecture, *rules, gains, gains is not None, how)


def _silence_all_but_the_last(walk: Propagated) -> None:
    """Take the noise of all dropouts but the last out of a walk (not of its model)."""
    graph = walk.model.graph
    noisy = [node for node in graph.nodes if is_noise(node, walk.model, walk.registry)]
    if len(noisy) < 2:
        raise PenumbraError(
            "the network has one dropout: its noise cannot be followed for less; leave "
            "'--variance fast' away"
        )
    for node in noisy[:-1]:
        walk.model.set_submodule(node.target, nn.Identity())

"""The walk that is exported of a network: its propagation in PyTorch, with rules and gains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.offline.export.folding import fold_batch_norms, narrow_convolutions
from penumbra.offline.export.frame import frame_of
from penumbra.offline.gains_file import GainFacts, load_gains, load_gains_of
from penumbra.offline.models import read_header
from penumbra.propagation import Propagated, propagate
from penumbra.propagation.gain_fitting import with_gains
from penumbra.propagation.tracing import is_noise, name_of


def walk_of(
    model: nn.Module,
    architecture: str,
    relu: str,
    softmax: str,
    gains: Mapping[str, Tensor] | None = None,
    folded: bool = True,
    variance: str = "truthful",
    noiseless: bool = False,
) -> Propagated:
    """The propagated network as it is exported, with gains; `folded` into fewer steps.

    `noiseless` allows a network without noise, the baseline of benchmarks.
    """
    _, _, head = frame_of(architecture)
    walk = propagate(head(model).eval(), relu=relu, softmax=softmax, noiseless=noiseless)
    if variance == "fast":
        _keep_last_noise_source(walk)
    if folded:
        walk = fold_batch_norms(walk)
    if gains:
        walk = with_gains(walk, gains)
    if folded:  # after the gains, which are of all outputs
        narrow_convolutions(walk)
    return walk


def walk_of_bundle(bundle: Bundle, model: nn.Module, folded: bool = True) -> Propagated:
    """What the graph of a bundle computes, in PyTorch: `model` with its rules and gains."""
    gains = load_gains_of(bundle)
    return walk_of(
        model,
        bundle.model.name,
        bundle.rules.relu,
        bundle.rules.softmax,
        gains.tensors if gains else None,
        folded,
        gains.facts.variance if gains else "truthful",
    )


def walk_of_checkpoint(path: Path | str, model: nn.Module) -> Propagated:
    """`model`, loaded from `path`, with the gains beside its weights and the rules of their fit.

    Without gains it has the default rules.
    """
    gains = load_gains(path)
    facts = gains.facts if gains else GainFacts()
    return walk_of(
        model,
        read_header(path).architecture,
        facts.relu,
        facts.softmax,
        gains.tensors if gains else None,
        gains is not None,
        facts.variance,
    )


def _keep_last_noise_source(walk: Propagated) -> None:
    """Remove all dropouts but the last from a walk (not from its model)."""
    graph = walk.model.graph
    noisy = [node for node in graph.nodes if is_noise(node, walk.model, walk.registry)]
    if len(noisy) < 2:
        raise PenumbraError(
            "the network has only one dropout, so a fast variance would be the same: omit "
            "'--variance fast'"
        )
    for node in noisy[:-1]:
        walk.model.set_submodule(name_of(node), nn.Identity())

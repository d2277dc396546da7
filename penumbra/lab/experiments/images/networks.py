"""A shipped network in PyTorch, in the forms that the experiments compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.bundle import Bundle, load_bundle
from penumbra.offline.export.folding import fold_batch_norms
from penumbra.offline.export.frame import FrameModule, frame_of
from penumbra.offline.export.walk import walk_of, walk_of_bundle
from penumbra.offline.gains_file import load_gains
from penumbra.offline.models import load_model
from penumbra.offline.models.network import Network, normalised_for
from penumbra.propagation import Moments, Propagated, propagate
from penumbra.share import bundle_folder

# The forms: the bundle as shipped; the same without its gains; the paper's method, which is first
# order everywhere and diagonal; and, for bundles with gains for it, the noise of the last dropout
# alone.
OURS, WITHOUT_GAINS, PAPER, FAST = "ours", "uncalibrated", "paper", "fast"  # keys of results
WALKS = (OURS, WITHOUT_GAINS, PAPER)


@dataclass(frozen=True)
class NetworkForms:
    """The network of a bundle, propagated by the bundle's rules and by those of the paper."""

    bundle: Bundle
    model: Network  # dropout off, without softmax
    sampled: nn.Module  # what Monte Carlo samples: (scores, probabilities), or the disparity
    frame: FrameModule  # computes the bundle's outputs from the result of a walk
    walks: Mapping[str, Propagated]  # by form

    def input(self, image: np.ndarray) -> Tensor:
        """An RGB image as the network's input."""
        x = normalised_for(self.model, torch.from_numpy(image)[None])
        size = self.model.input_size
        return x if size is None else F.interpolate(x, size, mode="bilinear")

    def outputs(
        self, walked: Moments | tuple[Moments, ...], image: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The bundle's outputs by name, from propagated or sampled moments."""
        found = self.frame.outputs(walked, torch.from_numpy(image))
        names = [output.name for output in self.frame.OUTPUTS]
        return {name: value.numpy() for name, value in zip(names, found, strict=True)}


def load_network(name: str) -> NetworkForms:
    """The network of a shipped bundle, or of a bundle's folder."""
    bundle = load_bundle(bundle_folder(name))
    model, rules = load_model(bundle.weights_file), bundle.rules
    architecture = bundle.model.name
    _, frame, head = frame_of(architecture)
    walks = {
        OURS: walk_of_bundle(bundle, model),
        WITHOUT_GAINS: walk_of(model, architecture, rules.relu, rules.softmax),
        PAPER: fold_batch_norms(
            propagate(head(model).eval(), relu="jacobian", smooth="jacobian", softmax="jacobian")
        ),
    }
    if beside := load_gains(bundle.path, FAST):
        fitted = beside.facts.relu, beside.facts.softmax
        walks[FAST] = walk_of(model, architecture, *fitted, beside.tensors, variance=FAST)
    around = frame(walks[OURS], "rgb", model.pixel_mean, model.pixel_std).eval()
    return NetworkForms(bundle, model, head(model).eval(), around, walks)

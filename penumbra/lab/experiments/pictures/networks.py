"""A shipped network in PyTorch, in the forms that the experiments compare."""

from __future__ import annotations

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
from penumbra.offline.training.segmentation import normalised_for
from penumbra.propagation import Moments, Propagated, propagate
from penumbra.share import bundle_folder


@dataclass(frozen=True)
class NetworkForms:
    """One bundle's weights, walked by the rules of the bundle, and by those of the paper."""

    bundle: Bundle
    model: nn.Module  # dropout off; what comes before the softmax
    sampled: nn.Module  # what is sampled: (scores, probabilities), or the disparity
    frame: FrameModule  # makes the bundle's outputs of what a walk returns
    walks: dict[str, Propagated]  # by name, see WALKS

    def input(self, image: np.ndarray) -> Tensor:
        """An RGB image as the network wants it."""
        x = normalised_for(self.model, torch.from_numpy(image)[None])
        size = self.model.config.get("size")
        return x if size is None else F.interpolate(x, tuple(size), mode="bilinear")

    def outputs(self, walked: Moments | tuple[Moments, ...], image: np.ndarray) -> dict:
        """The bundle's outputs by name, as arrays, of what was propagated or sampled."""
        found = self.frame.outputs(walked, torch.from_numpy(image))
        names = [output.name for output in self.frame.OUTPUTS]
        return {name: value.numpy() for name, value in zip(names, found, strict=True)}


# What is compared: the bundle as it is shipped; the same without its gains; the paper's method,
# which takes Jacobians of everything over a diagonal; and, where gains for that lie beside the
# bundle, the noise of the last dropout alone.
OURS, UNCALIBRATED, PAPER, FAST = "ours", "uncalibrated", "paper", "fast"
WALKS = (OURS, UNCALIBRATED, PAPER)


def load(name: str) -> NetworkForms:
    """The network of a shipped bundle, or of a bundle's folder."""
    bundle = load_bundle(bundle_folder(name))
    model = load_model(bundle.weights_file)
    variant = bundle.manifest["variant"]
    architecture, softmax = variant["architecture"], variant.get("softmax", "jacobian")
    _, frame, head = frame_of(architecture)
    walks = {
        OURS: walk_of_bundle(bundle, model),
        UNCALIBRATED: walk_of(model, architecture, variant["relu"], softmax),
        PAPER: fold_batch_norms(
            propagate(head(model).eval(), relu="jacobian", smooth="jacobian", softmax="jacobian")
        ),
    }
    if beside := load_gains(bundle.path, FAST):
        gains, facts = beside
        rules = facts["relu"], facts["softmax"]
        walks[FAST] = walk_of(model, architecture, *rules, gains, variance=FAST)
    statistics = model.config["mean"], model.config["std"]
    around = frame(walks[OURS], "rgb", *statistics).eval()
    return NetworkForms(bundle, model, head(model).eval(), around, walks)

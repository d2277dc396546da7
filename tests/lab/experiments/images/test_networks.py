"""A bundle's network in the forms that are compared."""

import shutil

import numpy as np
import torch
from torch import nn

from penumbra.lab.experiments.images.networks import FAST, OURS, PAPER, load_network
from penumbra.offline.gains_file import GainFacts, save_gains


def test_a_network_in_all_its_forms(small_bundle):
    network = load_network(small_bundle("encdec"))
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    x = network.input(image)
    with torch.inference_mode():
        scores, p = network.walks[PAPER](x)
        # The paper's rules leave the mean as the plain network has it; folding rounds otherwise.
        torch.testing.assert_close(scores.mean, network.model(x), rtol=1e-4, atol=1e-4)
        outputs = network.outputs(network.walks[OURS](x), image)
    assert set(outputs) == {"labels", "uncertainty", "confidence", "frame_score", "entropy",
                            "max_logit"}  # fmt: skip
    assert outputs["labels"].shape == image.shape[:2]
    assert p.variance.shape == (1, 11, 48, 64)


def test_fast_form_exists_only_with_gains_for_it(small_bundle, tmp_path):
    folder = shutil.copytree(small_bundle("encdec"), tmp_path / "bundle")
    x = torch.rand(1, 3, 48, 64)
    with torch.inference_mode():
        assert FAST not in load_network(folder).walks
        plain = {name: walk(x)[1].variance for name, walk in load_network(folder).walks.items()}
        facts = GainFacts("moment", "moment", FAST)
        shape = load_network(folder).model.classifier.weight.shape[:2]
        save_gains(folder, {"model.classifier": torch.full((*shape, 1, 1), 4.0)}, facts)
        walks = load_network(folder).walks
        for name, variance in plain.items():  # the others are as they were
            torch.testing.assert_close(walks[name](x)[1].variance, variance)
        assert walks[FAST](x)[0].variance.mean() > 0
        first = next(n for n in walks[FAST].model.graph.nodes if "dropout" in str(n.target))
        assert isinstance(walks[FAST].model.get_submodule(first.target), nn.Identity)

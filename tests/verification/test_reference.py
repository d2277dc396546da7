"""The reference is what Monte Carlo says, once computed it is kept, and a change is noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exported_networks import network, street

from penumbra.errors import PenumbraError
from penumbra.files import cache_folder
from penumbra.offline.models.network import normalise
from penumbra.offline.models.segnet import Probabilities
from penumbra.propagation.montecarlo import monte_carlo
from penumbra.verification.reference import References

IMAGE = street(48, 64)


def kept():
    return sorted((cache_folder() / "references").glob("*.npz"))


@pytest.fixture(scope="module")
def draws():
    """Class probabilities of 2 x 10 samples, drawn one by one with the seeds of the halves."""
    model = network("class")
    rgb = torch.from_numpy(IMAGE[..., ::-1].copy())[None]
    x = normalise(rgb, model.config["mean"], model.config["std"])
    both = Probabilities(model).eval()
    return [monte_carlo(both, x, samples=10, seed=seed) for seed in (6, 7)]


def test_the_halves_are_two_samplings_and_the_whole_is_both(exported, draws):
    reference = References(exported("class"), samples=20, seed=3).of(IMAGE)
    for half, std, labels in zip(
        draws, reference.half_stds, reference.half_predictions, strict=True
    ):
        assert np.array_equal(labels, half.mean[0].argmax(0).numpy())
        np.testing.assert_allclose(std, half.std[0].mean(0).numpy(), rtol=1e-5)
    # Mean of squares minus square of the mean, over the 20 samples of both.
    first, second = ([m.mean[0].numpy(), m.variance[0].numpy()] for m in draws)
    mean = (first[0] + second[0]) / 2
    squares = sum(0.9 * v + m**2 for m, v in (first, second)) / 2
    std = np.sqrt((squares - mean**2) * 20 / 19).mean(0)
    np.testing.assert_allclose(reference.std, std, rtol=1e-4)
    assert np.array_equal(reference.prediction, mean.argmax(0))
    np.testing.assert_allclose(reference.confidence, mean.max(0), rtol=1e-5)


def test_depth_is_scaled_to_the_image(exported):
    bundle = exported("monodepth")
    image = street(60, 200)
    reference = References(bundle, samples=8).of(image)
    assert reference.prediction.shape == reference.std.shape == (60, 200)
    assert reference.confidence is None
    model = network("monodepth")
    x = normalise(torch.from_numpy(image[..., ::-1].copy())[None], *_statistics(model))
    x = F.interpolate(x, tuple(model.config["size"]), mode="bilinear", align_corners=False)
    half = monte_carlo(model, x, samples=4, seed=1)
    std = F.interpolate(half.std, (60, 200), mode="bilinear", align_corners=False)[0, 0].numpy()
    np.testing.assert_allclose(reference.half_stds[1], std, rtol=1e-3)


def _statistics(model):
    return model.config["mean"], model.config["std"]


def test_what_is_kept_is_not_computed_again(exported):
    first = References(exported("class"), samples=8)
    computed = first.of(IMAGE)
    assert (first.computed, len(kept())) == (1, 1)
    again = References(exported("class"), samples=8)
    read = again.of(IMAGE)
    assert again.computed == 0
    assert np.array_equal(read.std, computed.std)
    assert np.array_equal(read.confidence, computed.confidence)
    assert np.array_equal(read.half_predictions, computed.half_predictions)
    assert read.seconds == computed.seconds > 0


@pytest.mark.parametrize("change", ["frame", "weights", "samples", "seed"])
def test_any_change_is_another_reference(change, exported):
    References(exported("class"), samples=8).of(IMAGE)
    bundle = exported("monodepth" if change == "weights" else "class")
    image = IMAGE.copy()
    image[0, 0, 0] ^= change == "frame"
    other = References(bundle, 10 if change == "samples" else 8, seed=int(change == "seed"))
    other.of(image)
    assert (other.computed, len(kept())) == (1, 2)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut off", None])
def test_a_damaged_file_is_made_again(damage, exported):
    whole = References(exported("class"), samples=8).of(IMAGE)
    (file,) = kept()
    file.write_bytes(file.read_bytes()[:-200] if damage is None else damage)
    again = References(exported("class"), samples=8)
    assert np.array_equal(again.of(IMAGE).std, whole.std)
    assert again.computed == 1


@pytest.mark.parametrize("samples", [0, 6, 101])
def test_halves_need_an_even_number(samples, exported):
    with pytest.raises(PenumbraError, match=f"--samples is {samples}: give an even number from 8"):
        References(exported("class"), samples)

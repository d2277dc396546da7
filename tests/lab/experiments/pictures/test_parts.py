"""What the experiments on pictures share: kept results, fair sampling, softmax alone."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn

from penumbra.lab.experiments.pictures import runtime
from penumbra.lab.experiments.pictures.first_order import first_order
from penumbra.lab.experiments.pictures.networks import FAST, OURS, PAPER, load
from penumbra.lab.experiments.pictures.result_cache import kept
from penumbra.lab.experiments.pictures.runtime import Sampling
from penumbra.lab.experiments.pictures.sampling_noise import variance_off_by_chance
from penumbra.offline.gains_file import save_gains
from penumbra.propagation import propagate


def test_what_is_kept_is_not_computed_again(tmp_path):
    file, made = tmp_path / "frames" / "a.npz", []

    def compute():
        made.append(1)
        return {"values": np.arange(3.0)}

    for facts, times in (({"seed": 0}, 1), ({"seed": 0}, 1), ({"seed": 1}, 2)):
        found = kept(file, facts, compute)
        assert list(found) == ["values"]
        np.testing.assert_array_equal(found["values"], [0, 1, 2])
        assert len(made) == times
    for damage in (b"", b"PK\x03\x04 cut off", file.read_bytes()[:-30]):
        file.write_bytes(damage)
        kept(file, {"seed": 1}, compute)
    assert len(made) == 5


@pytest.fixture
def model():
    """Linear behind its dropout, so that propagation is exact; something costly in front."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(4, 2, 3), nn.Conv2d(2, 2, 1)
    ).eval()


@pytest.mark.parametrize("at_once", [1, 4, 7])
def test_sampling_has_the_moments_and_computes_the_front_once(model, at_once):
    x = torch.rand(1, 3, 12, 12)
    walk = propagate(model[:4])
    sampling, fronts = Sampling(walk.model), []
    sampling._once.part.register_forward_hook(lambda *_: fronts.append(1))
    torch.manual_seed(0)
    samples = 2_000
    found, exact = sampling(x, samples, at_once), walk(x)
    assert len(fronts) == 1
    error = (exact.variance / samples).sqrt()
    # 128 outputs: the largest of as many standard errors is about 2.7.
    assert ((found.mean - exact.mean).abs() < 4.5 * error).all()
    # Five standard errors of a Gaussian's variance; the sum of a dropped window is nearly one.
    torch.testing.assert_close(
        found.variance, exact.variance, rtol=5 * (2 / samples) ** 0.5, atol=0
    )
    sampling(x + 1, 2)
    assert len(fronts) == 2  # another picture is computed anew
    torch.testing.assert_close(walk.model(x), model[:4](x))  # the walk's own dropout stays off


def test_sampling_together_draws_every_pass_anew(model):
    sampling = Sampling(propagate(model).model)
    assert sampling(torch.rand(1, 3, 12, 12), 4, at_once=4).variance.min() > 0


def test_runtime_has_every_candidate_and_takes_the_faster_way(small_bundle, monkeypatch):
    network = load(small_bundle("encdec"))
    x = network.input(np.zeros((48, 64, 3), np.uint8))
    before = torch.random.get_rng_state()
    found = runtime.runtime(network, x, counts=(1, 3), rounds=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert found["counts"] == [1, 3]
    assert len(found["mc"]) == 2
    assert set(found["ratio"]) == {OURS, PAPER}
    assert found["ratio"][OURS] == pytest.approx(found["mc"][1] / found[OURS])
    assert found["way"] == min(found["tried"], key=found["tried"].get)


def test_first_order_of_softmax_fails_with_noise_and_moments_do_not():
    torch.manual_seed(0)
    found = first_order(torch.randn(200, 11) * 3, (0.1, 3.0), samples=2_000)
    # The noise of 2,000 samples in a standard deviation is 1.6 %, its mean over classes less.
    assert found["jacobian"]["std"][0] < 0.03
    assert found["jacobian"]["std"][1] > 0.3
    assert found["moment"]["std"][1] < 0.12
    assert found["moment"]["mean"][1] < found["jacobian"]["mean"][1] / 3


def test_first_order_against_an_integral():
    """Two classes with equal scores: p = sigmoid(d), d of variance 2 σ², by quadrature."""
    noise = 1.5
    found = first_order(torch.zeros(1, 2), (noise,), samples=20_000)
    d = np.linspace(-12, 12, 4_001) * noise * 2**0.5
    weight = np.exp(-(d**2) / (4 * noise**2))
    p = 1 / (1 + np.exp(-d))
    true = np.sqrt(np.average((p - 0.5) ** 2, weights=weight))
    linear = 0.25 * noise * 2**0.5
    # 20,000 samples: their standard deviation is right to 0.5 %.
    assert found["jacobian"]["ratio"][0] == pytest.approx(linear / true, rel=0.02)


def test_a_network_in_all_its_forms(small_bundle):
    network = load(small_bundle("encdec"))
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


def test_the_last_dropout_alone_is_followed_where_there_are_gains_for_it(small_bundle, tmp_path):
    folder = shutil.copytree(small_bundle("encdec"), tmp_path / "bundle")
    x = torch.rand(1, 3, 48, 64)
    with torch.inference_mode():
        assert FAST not in load(folder).walks
        plain = {name: walk(x)[1].variance for name, walk in load(folder).walks.items()}
        facts = {"variance": FAST, "relu": "moment", "softmax": "moment"}
        shape = load(folder).model.classifier.weight.shape[:2]
        save_gains(folder, {"model.classifier": torch.full((*shape, 1, 1), 4.0)}, facts)
        walks = load(folder).walks
        for name, variance in plain.items():  # the others are as they were
            torch.testing.assert_close(walks[name](x)[1].variance, variance)
        assert walks[FAST](x)[0].variance.mean() > 0
        first = next(n for n in walks[FAST].model.graph.nodes if "dropout" in str(n.target))
        assert isinstance(walks[FAST].model.get_submodule(first.target), nn.Identity)


@pytest.mark.parametrize("samples", [2, 5, 50])
def test_how_far_samples_alone_are_off(samples):
    drawn = np.random.default_rng(0).normal(size=(40_000, samples)).var(1, ddof=1)
    # The mean of 40,000: right to half a percent of the spread of |s² - 1|, at most 1.4 / 200.
    assert variance_off_by_chance(samples) == pytest.approx(np.abs(drawn - 1).mean(), abs=0.02)

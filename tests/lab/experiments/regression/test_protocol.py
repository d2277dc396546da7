"""The protocol on a small set: grid search, training of the chosen networks, test."""

import pytest
import torch

from penumbra.lab.experiments.regression import protocol
from penumbra.lab.experiments.regression.data import Normalisation, load_regression_set
from penumbra.lab.experiments.regression.prediction import Gaussian
from penumbra.lab.experiments.regression.protocol import ProtocolSettings, measure

SETTINGS = ProtocolSettings(epochs=150, samples=1_000, grid_samples=50, seed=0)


def silent(work, what):
    return work


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_set):
    folder = tmp_path_factory.mktemp("sets")
    write_set(folder)
    return load_regression_set(folder, "toy")


@pytest.fixture(scope="module")
def result(data):
    return measure(data, SETTINGS, silent)


def test_figures_are_in_the_target_s_units(result, data):
    found = result["splits"]
    assert all(len(values) == 3 for values in found.values())
    # Targets have a standard deviation of 14 around 100: a fit that knows something is below.
    assert all(0.5 < rmse < 14 for rmse in found["jacobian_rmse"])
    for name in ("jacobian", "moment"):
        for closed, sampled in zip(found[f"{name}_ll"], found[f"{name}_sampled_ll"], strict=True):
            assert closed == pytest.approx(sampled, abs=0.25)  # of 1,000 samples
    for ours, mc in zip(found["moment_rmse"], found["mc_rmse"], strict=True):
        assert ours == pytest.approx(mc, rel=0.1)
    for ours, mc in zip(found["moment_coverage"], found["mc_coverage"], strict=True):
        assert ours == sorted(ours) and len(ours) == 4
        assert ours[-1] > 0  # in other units nothing would be within
        assert ours == pytest.approx(mc, abs=0.21)  # two of the ten rows


def test_exact_likelihood_is_near_monte_carlo_s(result, data):
    found = protocol.measure_without_gaussian(data, SETTINGS, silent, result)["exact_ll"]
    for exact, sampled in zip(found, result["splits"]["mc_ll"], strict=True):
        assert exact == pytest.approx(sampled, abs=0.3)  # of 1,000 samples, ten rows


def test_the_most_likely_point_on_the_held_out_rows_is_chosen(data, monkeypatch):
    wanted = {0: 3, 1: 0, 2: 2}

    def likely(stack, split, x):
        # 10 of 50 rows are held out. One rate fits; how widely decides between the precisions.
        assert x.shape == (10, 3)
        rate, tau = divmod(wanted[split], 2)
        mean = torch.full((2, len(x)), 1e3, dtype=torch.float64)
        held_out = data.y[data.splits[split][0][40:]]
        scale = Normalisation.on(
            data.x[data.splits[split][0][:40]], data.y[data.splits[split][0][:40]]
        )
        off = 0.5 if tau else 4.0  # noise of 1/sqrt(0.5) = 1.4, or of 1/sqrt(0.05) = 4.5
        mean[rate] = torch.from_numpy((held_out + off - scale.y_mean) / scale.y_std)
        return Gaussian(mean, torch.zeros_like(mean))

    monkeypatch.setattr(protocol, "propagated_stack", likely)
    quick = ProtocolSettings(epochs=1, samples=100, grid_samples=2)
    found = measure(data, quick, silent)
    assert [ours for ours, _ in found["chosen"]] == [3, 0, 2]
    grid = [[0.01, 0.05], [0.01, 0.5], [0.1, 0.05], [0.1, 0.5]]
    assert found["grid"] == [pytest.approx(point) for point in grid]
    assert found["splits"]["rate"] == pytest.approx([0.1, 0.01, 0.1])
    assert found["splits"]["tau"] == pytest.approx([0.5, 0.05, 0.05])


def test_the_same_seed_gives_the_same_figures(data):
    quick = ProtocolSettings(epochs=2, samples=100, grid_samples=10)
    assert measure(data, quick, silent) == measure(data, quick, silent)
    other = ProtocolSettings(epochs=2, samples=100, grid_samples=10, seed=1)
    assert measure(data, quick, silent) != measure(data, other, silent)

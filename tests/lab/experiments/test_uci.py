"""The criteria of the UCI table can fail, and a finished set is not trained again."""

import json

import numpy as np
import pytest

from penumbra.lab.experiments import uci
from penumbra.lab.experiments.regression.paper_table import PAPER
from penumbra.lab.experiments.reporting.setting import ExperimentSetting


def splits(**changed):
    """Figures as good as the paper's on Boston, in two splits."""
    methods = ("mc", "mc_own_choice", "gaussian_of_mc", "jacobian", "moment")
    names = [f"{who}_{what}" for who in methods for what in ("rmse", "ll")]
    usual = {name: [3.0, 3.2] if name.endswith("rmse") else [-2.6, -2.5] for name in names}
    usual |= {name: [1.0, 1.0] for name in ("rate", "tau", "mc_kurtosis", "mc_variance",
              "jacobian_variance", "moment_variance", "jacobian_sampled_ll")}  # fmt: skip
    return usual | changed


_EXACT = {"enumerated_ll": [-3.0, -3.4], "exact_ll": [-1.0, -1.2],
          "enumerated_variance": [0.7, 0.7], "cpu_seconds": 60}  # fmt: skip


def judged(name="bostonHousing", **changed):
    return uci.verdicts({"sets": {name: {"splits": splits(**changed)}}}, "jacobian")[name]


def test_mean_and_standard_error_over_the_splits():
    mean, error = uci.summary([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert error == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2)


def test_rmse_is_compared_with_the_paper_s():
    assert judged(jacobian_rmse=[3.56, 3.56])[0]  # 3.13 + 2 x 0.22 = 3.57
    assert not judged(jacobian_rmse=[3.58, 3.58])[0]
    assert judged(jacobian_rmse=[0.1, 0.1])[0]  # better
    assert judged("kin8nm", jacobian_rmse=[0.0849, 0.0849])[0]  # printed 0.08 ± 0.00
    assert not judged("kin8nm", jacobian_rmse=[0.0851, 0.0851])[0]


def test_likelihood_is_compared_with_the_better_monte_carlo():
    # MC: -2.55 ± 0.05
    assert judged(jacobian_ll=[-2.64, -2.64])[1]
    assert not judged(jacobian_ll=[-2.66, -2.66])[1]
    assert judged(jacobian_ll=[0.0, 0.0])[1]
    assert not judged(jacobian_ll=[-2.64, -2.64], mc_own_choice_ll=[-2.4, -2.5])[1]


def test_likelihood_by_enumeration_is_compared_with_the_same():
    def held(values):
        exact = {"exact": {"energy": {"exact_ll": values}}}
        return uci.exact_verdicts({"sets": {"energy": {"splits": splits()}}} | exact)["energy"]

    assert held([-2.64, -2.64])
    assert not held([-2.66, -2.66])


def test_table_and_figure_have_every_set(monkeypatch):
    times = {"mc": 1.0, "jacobian": 0.01, "moment": 0.1}
    result = {
        "sets": {name: {"splits": splits(), "cpu_seconds": 60} for name in PAPER},
        "exact": dict.fromkeys(PAPER, _EXACT),
        "runtime": dict.fromkeys(PAPER, times),
    }
    text = uci.table(result)
    for row in PAPER.values():
        assert text.count(f"| {row.title} |") == 4
    assert "3.13 ± 0.22" in text  # the paper's
    assert text.count("| -3.20 ± 0.20 |") == text.count("| -1.10 ± 0.10 |") == len(PAPER)
    assert text.count("| 1.00 | 1.00 | 0.70 |") == len(PAPER)  # variance / MC's, in three ways
    assert "took 18 minutes" in text  # a minute for every set, and one for its enumeration
    assert "targets within" not in text  # results from before coverage was counted
    counted = {f"{who}_coverage": [[0.4, 0.6, 0.8, 0.9], [0.6, 0.7, 0.9, 1.0]]
               for who in ("mc", "jacobian", "moment")}  # fmt: skip
    counted["moment_coverage"] = [[0.1, 0.2, 0.3, 0.4]] * 2
    result["sets"]["energy"]["splits"] |= counted
    text = uci.table(result)
    title, shares = PAPER["energy"].title, "50, 65, 85, 95"
    assert f"| {title} | {shares} | {shares} | 10, 20, 30, 40 |" in text
    assert text.count("50, 65, 85, 95") == 2  # of the only set that has them
    assert uci.draw(result).axes


def test_a_finished_set_is_not_trained_again(tmp_path, write_set, monkeypatch):
    write_set(tmp_path / "data" / "uci")
    monkeypatch.setattr(uci, "PAPER", {"toy": PAPER["bostonHousing"]})
    monkeypatch.setattr(uci, "runtime", lambda data: {"mc": 1.0})
    measured = []

    def measure_set(data, settings, bar):
        measured.append(settings.seed)
        return {"splits": splits()}

    monkeypatch.setattr(uci, "measure_set", measure_set)
    monkeypatch.setattr(
        uci, "measure_without_gaussian", lambda data, settings, bar, part: dict(_EXACT)
    )
    setting = ExperimentSetting(tmp_path / "data", tmp_path / "out")
    first = uci.measure(setting)
    assert uci.measure(setting) == json.loads(json.dumps(first))
    assert measured == [0]
    uci.measure(ExperimentSetting(tmp_path / "data", tmp_path / "out", seed=1))
    assert measured == [0, 1]  # another seed is another result

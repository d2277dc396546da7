"""Reading the UCI sets: the splits as published, and what a broken folder says."""

import numpy as np
import pytest

from penumbra.errors import PenumbraError
from penumbra.lab.experiments.regression.data import Normalisation, load_regression_set
from penumbra.lab.experiments.regression.paper_table import PAPER


@pytest.mark.data
@pytest.mark.parametrize("name", PAPER)
def test_published_sets(data_dir, name):
    data = load_regression_set(data_dir / "uci", name)
    protein = name == "protein-tertiary-structure"
    assert len(data.splits) == (5 if protein else 20)
    assert data.hidden == (100 if protein else 50)
    assert data.rates == (0.005, 0.01, 0.05, 0.1)
    assert len(data.taus) == 3
    assert np.isfinite(data.x).all()
    for train, test in data.splits:
        assert len(train) == round(0.9 * len(data.x))
        assert sorted([*train, *test]) == list(range(len(data.x)))


@pytest.mark.data
def test_naval_leaves_the_other_target_out(data_dir):
    data = load_regression_set(data_dir / "uci", "naval-propulsion-plant")
    assert data.x.shape == (11934, 16)
    assert 0.95 <= data.y.min() <= data.y.max() <= 1.0  # decay of the compressor
    boston = load_regression_set(data_dir / "uci", "bostonHousing")
    assert boston.x[0, 0] == 0.00632  # the first row of the file, first column
    assert boston.y[0] == 24.0


def test_a_column_that_is_neither_is_left_out(tmp_path, write_set):
    write_set(tmp_path, unused=True)
    data = load_regression_set(tmp_path, "toy")
    assert data.x.shape == (60, 3)
    assert data.x.max() < 1e6
    assert data.taus == (0.05, 0.5)


def test_normalised_on_the_rows_that_train(tmp_path, write_set):
    write_set(tmp_path)
    data = load_regression_set(tmp_path, "toy")
    train, test = data.splits[0]
    scale = Normalisation.on(data.x[train], data.y[train])
    x, y = scale.inputs(data.x[train]), scale.targets(data.y[train])
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(0), [1, 1, 0], atol=1e-6)  # the third is constant
    np.testing.assert_allclose([y.mean(), y.std()], [0, 1], atol=1e-6)
    back = scale.targets(data.y[test]) * scale.y_std + scale.y_mean
    np.testing.assert_allclose(back, data.y[test], rtol=1e-5)


def test_mistakes_are_told(tmp_path, write_set):
    with pytest.raises(PenumbraError, match="no data set .*nowhere"):
        load_regression_set(tmp_path, "nowhere")
    place = write_set(tmp_path)
    np.savetxt(place / "index_test_1.txt", [3, 60], "%d")
    with pytest.raises(PenumbraError, match="index_test_1.txt: not distinct rows of a table of 60"):
        load_regression_set(tmp_path, "toy")
    (place / "index_test_1.txt").write_text("three\n")
    with pytest.raises(PenumbraError, match="cannot read .*index_test_1.txt"):
        load_regression_set(tmp_path, "toy")
    (place / "index_test_1.txt").write_text("")
    with pytest.raises(PenumbraError, match="index_test_1.txt is empty"):
        load_regression_set(tmp_path, "toy")
    (place / "index_test_1.txt").unlink()
    with pytest.raises(PenumbraError, match="cannot read .*index_test_1.txt"):
        load_regression_set(tmp_path, "toy")

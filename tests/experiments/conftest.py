"""What the tests of several experiments share."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def write_set():
    """Writes a data set in Gal's layout, small enough for the whole protocol in a second."""
    return _write_set


def _write_set(folder, name="toy", rows=60, splits=3, unused=False):
    place = folder / name / "data"
    place.mkdir(parents=True)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 3)) * [1, 10, 0] + [0, 5, 7]  # the last one is constant
    y = 100 + 20 * np.sin(x[:, 0]) + generator.normal(size=rows)
    columns = [x, y[:, None], *([np.full((rows, 1), 1e6)] if unused else [])]
    np.savetxt(place / "data.txt", np.hstack(columns))
    np.savetxt(place / "index_features.txt", np.arange(3), "%d")
    np.savetxt(place / "index_target.txt", [3], "%d")
    for file, value in (("n_splits", splits), ("n_hidden", 8), ("n_epochs", 40)):
        np.savetxt(place / f"{file}.txt", [value], "%d")
    np.savetxt(place / "dropout_rates.txt", [0.01, 0.1])
    np.savetxt(place / "tau_values.txt", [0.05, 0.5])
    for i in range(splits):
        order = generator.permutation(rows)
        np.savetxt(place / f"index_train_{i}.txt", order[:50], "%.18e")
        np.savetxt(place / f"index_test_{i}.txt", order[50:], "%.18e")
    return place

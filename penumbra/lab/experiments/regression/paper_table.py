"""The paper's UCI table as printed: (mean, standard error), and seconds."""

from __future__ import annotations

from typing import NamedTuple

MeanAndError = tuple[float, float]


class PaperRow(NamedTuple):
    """One data set of the table."""

    title: str
    mc_rmse: MeanAndError
    our_rmse: MeanAndError
    mc_ll: MeanAndError
    our_ll: MeanAndError
    mc_seconds: float
    our_seconds: float = 0.06


# By the folders of Gal's collection, the quickest to train first.
PAPER = {
    "yacht": PaperRow(
        "Yacht Hydrodynamics", (2.89, 0.25), (3.14, 0.31), (-2.32, 0.10), (-2.10, 0.07), 3.42
    ),
    "bostonHousing": PaperRow(
        "Boston Housing", (3.06, 0.18), (3.13, 0.22), (-2.55, 0.07), (-2.65, 0.12), 3.47
    ),
    "energy": PaperRow(
        "Energy Efficiency", (1.60, 0.05), (1.59, 0.05), (-1.91, 0.03), (-1.96, 0.03), 3.27
    ),
    "concrete": PaperRow(
        "Concrete Strength", (5.42, 0.10), (5.42, 0.11), (-3.11, 0.02), (-3.13, 0.02), 3.63
    ),
    "wine-quality-red": PaperRow(
        "Wine Quality Red", (0.63, 0.01), (0.63, 0.01), (-0.95, 0.02), (-0.95, 0.01), 3.49
    ),
    "kin8nm": PaperRow("Kin8nm", (0.08, 0.00), (0.08, 0.00), (1.10, 0.01), (1.11, 0.01), 4.75),
    "power-plant": PaperRow(
        "Power Plant", (4.04, 0.04), (4.05, 0.04), (-2.82, 0.01), (-2.85, 0.01), 4.46
    ),
    "naval-propulsion-plant": PaperRow(
        "Naval Propulsion", (0.00, 0.00), (0.00, 0.00), (4.36, 0.01), (3.64, 0.02), 5.10
    ),
    "protein-tertiary-structure": PaperRow(
        "Protein Structure", (4.42, 0.03), (4.42, 0.03), (-2.90, 0.01), (-2.90, 0.00), 4.38
    ),
}

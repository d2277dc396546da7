"""The figures of a verification: their names, titles, and the noise that the reference adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

TITLES = {
    "label_agreement": "label agreement with Monte Carlo",
    "std_relative_error": "standard deviation, relative error",
    "spearman": "Spearman correlation of the uncertainty maps",
    "disparity_relative_error": "disparity, relative difference to Monte Carlo",
    "std_ratio": "standard deviation, ratio",
    "variance_relative_error": "variance, relative error",
    "variance_ratio": "variance, ratio",
    "global_accuracy": "global accuracy",
    "class_average": "class-average accuracy",
    "mean_iou": "mean intersection over union",
    "expected_calibration_error": "expected calibration error of the probabilities",
    "ause": "AUSE (0 is best)",
    "aurg": "AURG (above 0: better than random)",
}
# Of each frame, short enough for the head of a column.
COLUMNS = {
    "time_s": "time, s",
    "label_agreement": "labels = MC",
    "disparity_relative_error": "disparity err",
    "std_relative_error": "std err",
    "std_relative_error_noise": "± noise",
    "std_ratio": "std ratio",
    "variance_relative_error": "var err",
    "variance_ratio": "var ratio",
    "spearman": "Spearman",
    "propagated_global_accuracy": "accuracy",
    "monte_carlo_global_accuracy": "accuracy, MC",
    "propagated_mean_iou": "IoU",
    "propagated_abs_rel": "abs_rel",
    "monte_carlo_abs_rel": "abs_rel, MC",
    "propagated_ause": "AUSE",
    "monte_carlo_ause": "AUSE, MC",
    "infer_ms": "infer, ms",
}
# The noise of the reference in a figure, by its name.
NOISE: dict[str, Callable[[Mapping[str, float]], float]] = {
    "label_agreement": lambda f: f["label_agreement_noise"],
    "std_relative_error": lambda f: f["std_relative_error_noise"],
    "variance_relative_error": lambda f: f["variance_relative_error_noise"],
    "spearman": lambda f: 1 - f["spearman_attainable"],
}

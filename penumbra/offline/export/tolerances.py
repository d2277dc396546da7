"""The tolerances that a bundle promises, against other runners and against Monte Carlo."""

from __future__ import annotations

from typing import Any

# Against other runners on the same frame, by precision: the share of equal labels; the share of
# pixels whose uncertainty is within `relative` (plus `absolute`); the relative difference of the
# frame score. Measured worst of six CamVid test frames (quarter width, `class` and `encdec`): fp32
# on ONNX Runtime 0.99999, 0.92, 2e-5; fp16 in PyTorch, which rounds after every operation, 0.9958,
# 0.86, 3e-3. ONNX Runtime's CPU computes parts of FP16 in FP32 and may agree better than a GPU
# (mixed: 0.9975, 0.88, 2e-3). Not measured on a GPU. The differences of fp32 come from poolings
# that rounding decides: most frames have 1.0, but one in a deep layer changed 13 % of a frame.
RUNNER_TOLERANCES = {
    "fp32": {
        "labels": 0.9999,
        "uncertainty": 0.9,
        "relative": 1e-4,
        "absolute": 1e-6,
        "frame_score": 1e-3,
    },
    "mixed": {
        "labels": 0.99,
        "uncertainty": 0.8,
        "relative": 0.05,
        "absolute": 1e-6,
        "frame_score": 1e-2,
    },
    "fp16": {
        "labels": 0.99,
        "uncertainty": 0.8,
        "relative": 0.05,
        "absolute": 1e-6,
        "frame_score": 1e-2,
    },
}

# Against Monte Carlo (`penumbra verify`), by architecture, dropout and form of the variance: label
# agreement, relative error of the standard deviation, Spearman correlation. For the diagonal and
# for class covariance without gains they were chosen after measuring (CamVid, quarter width:
# error 15 to 27 % and 4.7 %). `encdec` without gains has an error of 87 %: nothing is promised.
_MONTE_CARLO = {
    ("segnet", "class", "diagonal"): (0.98, 0.3, 0.88),
    ("segnet", "class", "class covariance"): (0.99, 0.1, 0.97),
    ("segnet", "class", "calibrated"): (0.995, 0.05, 0.99),
    ("segnet", "encdec", "calibrated"): (0.98, 0.15, 0.95),
    ("segnet", "encdec", "calibrated, fast"): (0.98, 0.25, 0.9),
    ("monodepth", "final", "diagonal"): (None, 0.03, 0.995),
}
_FIGURES = ("label_agreement", "std_relative_error", "spearman")


def tolerances_of(precision: str, architecture: str, dropout: str, variance: str) -> dict[str, Any]:
    """The tolerances in the manifest of a bundle whose graph has this precision."""
    limits = _MONTE_CARLO.get((architecture, dropout, variance), ())
    promised = {
        figure: limit for figure, limit in zip(_FIGURES, limits, strict=False) if limit is not None
    }
    tolerances = {"precisions": {precision: RUNNER_TOLERANCES[precision]}}
    return tolerances | ({"monte_carlo": promised} if promised else {})

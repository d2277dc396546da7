"""Accuracy and uncertainty of a segmentation network over many frames, against Monte Carlo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from penumbra.lab.experiments.images.networks import OURS, WALKS, NetworkForms
from penumbra.lab.experiments.images.result_cache import FOLDER, cached
from penumbra.lab.experiments.images.segmentation import (
    QUANTILES,
    Segmentation,
    deterministic_labels,
    propagated,
    read,
    sampled,
)
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.offline.datasets.camvid_classes import CLASSES
from penumbra.offline.metrics.agreement import by_quantile
from penumbra.offline.metrics.segmentation import IGNORE, Confusion

DETERMINISTIC, MC = "deterministic", "mc"


class MethodScores:
    """One method over all frames: the accuracy of its labels, and its errors by uncertainty."""

    def __init__(self) -> None:
        self.confusion = Confusion(len(CLASSES))
        self._errors: list[np.ndarray] = []
        self._stds: list[np.ndarray] = []

    def add(self, truth: np.ndarray, found: Segmentation) -> None:
        """Count the labelled pixels of a frame."""
        self.confusion.add(truth, found.labels)
        known = truth != IGNORE
        self._errors.append((found.labels != truth)[known])
        self._stds.append(found.std[known])

    def misclassified(self) -> list[float]:
        """Shares of wrong labels by tenths of the uncertainty, over the pixels of all frames."""
        return by_quantile(np.concatenate(self._errors), np.concatenate(self._stds)).tolist()


class VarianceDifferences:
    """A propagated variance against the sampled one, over all frames, pixels and classes."""

    def __init__(self) -> None:
        # Absolute difference, found and sampled: of the variances, then of the mean stds.
        self._sums = np.zeros(6)

    def add(self, found: Segmentation, reference: Segmentation) -> None:
        """Add the pixels of a frame."""
        for start, (a, b) in (
            (0, (found.class_std.astype(float) ** 2, reference.class_std.astype(float) ** 2)),
            (3, (found.std, reference.std)),
        ):
            self._sums[start : start + 3] += np.abs(a - b).mean(), a.mean(), b.mean()

    def figures(self) -> dict[str, float]:
        """Mean |a - b| / mean b and mean a / mean b, of variance and of standard deviation."""
        names = ("variance", "variance_ratio", "std", "std_ratio")
        sums = self._sums
        return dict(zip(names, (sums[[0, 1, 3, 4]] / sums[[2, 2, 5, 5]]).tolist(), strict=True))


def compare_with_sampling(
    setting: ExperimentSetting, network: NetworkForms, paths: list[Path], samples: int, what: str
) -> dict[str, Any]:
    """All figures that need Monte Carlo, on the frames that are sampled."""
    scores = {MC: MethodScores(), OURS: MethodScores()}
    deterministic = Confusion(len(CLASSES))
    differences = {walk: VarianceDifferences() for walk in WALKS}
    alike, score_stds = [], []
    for path in setting.bar(paths, f"{what}: sampling"):
        frame = read(path)
        reference, score_std = sampled(setting, network, frame, samples)
        score_stds.append(score_std)
        scores[MC].add(frame.label, reference)
        for walk in WALKS:
            found, _ = propagated(network, walk, frame)
            differences[walk].add(found, reference)
            if walk == OURS:
                scores[OURS].add(frame.label, found)
                alike.append(np.mean(found.labels == reference.labels))
        deterministic.add(frame.label, deterministic_labels(network, frame))
    return {
        "frames": len(paths),
        "accuracy": {DETERMINISTIC: deterministic.summary()}
        | {method: one.confusion.summary() for method, one in scores.items()},
        "misclassified": {method: one.misclassified() for method, one in scores.items()},
        "labels_as_mc": float(np.mean(alike)),
        "difference": {walk: one.figures() for walk, one in differences.items()},
        "score_std": dict(
            zip(map(str, QUANTILES), np.mean(score_stds, axis=0).tolist(), strict=True)
        ),
    }


def accuracy_without_sampling(
    setting: ExperimentSetting, network: NetworkForms, paths: list[Path]
) -> dict[str, Any]:
    """Accuracy of the deterministic and of the propagated network, on more frames."""
    totals = {method: Confusion(len(CLASSES)) for method in (DETERMINISTIC, OURS)}
    facts = {"files": network.bundle.files}
    for path in setting.bar(paths, "all test frames"):

        def compute(path: Path = path) -> dict[str, np.ndarray]:
            frame = read(path)
            counts = {}
            for method, labels in (
                (DETERMINISTIC, deterministic_labels(network, frame)),
                (OURS, propagated(network, OURS, frame)[0].labels),
            ):
                one = Confusion(len(CLASSES))
                one.add(frame.label, labels)
                counts[method] = one.counts
            return counts

        file = setting.folder / FOLDER / f"{network.bundle.name}-{path.stem}-counts.npz"
        for method, counts in cached(file, facts, compute).items():
            totals[method].counts += counts
    summaries = {method: total.summary() for method, total in totals.items()}
    return {"frames": len(paths), "accuracy": summaries}

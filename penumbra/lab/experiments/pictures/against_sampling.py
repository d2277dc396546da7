"""A segmentation network over many frames: right labels, and uncertainty, against Monte Carlo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from penumbra.lab.experiments.pictures.networks import OURS, WALKS, NetworkForms
from penumbra.lab.experiments.pictures.result_cache import FOLDER, kept
from penumbra.lab.experiments.pictures.segmentation import (
    QUANTILES,
    Segmented,
    plain_labels,
    propagated,
    read,
    sampled,
)
from penumbra.lab.experiments.reporting import Setting
from penumbra.offline.datasets.camvid import CLASSES
from penumbra.offline.metrics.agreement import by_quantile
from penumbra.offline.metrics.segmentation import IGNORE, Confusion

PLAIN, MC = "deterministic", "mc"


class Judged:
    """One method over all frames: the labels it gives, and where it is unsure."""

    def __init__(self) -> None:
        self.confusion = Confusion(len(CLASSES))
        self._errors: list[np.ndarray] = []
        self._stds: list[np.ndarray] = []

    def add(self, truth: np.ndarray, found: Segmented) -> None:
        self.confusion.add(truth, found.labels)
        known = truth != IGNORE
        self._errors.append((found.labels != truth)[known])
        self._stds.append(found.std[known])

    def misclassified(self) -> list[float]:
        """Shares of wrong labels, by tenths of the uncertainty, all frames' pixels together."""
        return by_quantile(np.concatenate(self._errors), np.concatenate(self._stds)).tolist()


class Differences:
    """A propagated variance against the sampled one, over all frames, pixels and classes."""

    def __init__(self) -> None:
        # Absolute difference, found and sampled: of the variances, then of the mean stds.
        self._sums = np.zeros(6)

    def add(self, found: Segmented, reference: Segmented) -> None:
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


def against_sampling(
    setting: Setting, network: NetworkForms, paths: list[Path], samples: int, what: str
) -> dict[str, Any]:
    """Everything that is held against Monte Carlo, on the frames that are sampled."""
    judged = {MC: Judged(), OURS: Judged()}
    plain = Confusion(len(CLASSES))
    differences = {walk: Differences() for walk in WALKS}
    alike, score_stds = [], []
    for path in setting.bar(paths, f"{what}: sampling"):
        frame = read(path)
        reference, score_std = sampled(setting, network, frame, samples)
        score_stds.append(score_std)
        judged[MC].add(frame.label, reference)
        for walk in WALKS:
            found, _ = propagated(network, walk, frame)
            differences[walk].add(found, reference)
            if walk == OURS:
                judged[OURS].add(frame.label, found)
                alike.append(np.mean(found.labels == reference.labels))
        plain.add(frame.label, plain_labels(network, frame))
    return {
        "frames": len(paths),
        "accuracy": {PLAIN: plain.summary()}
        | {method: one.confusion.summary() for method, one in judged.items()},
        "misclassified": {method: one.misclassified() for method, one in judged.items()},
        "labels_as_mc": float(np.mean(alike)),
        "difference": {walk: one.figures() for walk, one in differences.items()},
        "score_std": dict(
            zip(map(str, QUANTILES), np.mean(score_stds, axis=0).tolist(), strict=True)
        ),
    }


def all_frames(setting: Setting, network: NetworkForms, paths: list[Path]) -> dict[str, Any]:
    """Accuracy of what needs no sampling."""
    totals = {method: Confusion(len(CLASSES)) for method in (PLAIN, OURS)}
    facts = {"files": network.bundle.manifest["files"]}
    for path in setting.bar(paths, "all test frames"):

        def compute(path: Path = path) -> dict[str, np.ndarray]:
            frame = read(path)
            counts = {}
            for method, labels in (
                (PLAIN, plain_labels(network, frame)),
                (OURS, propagated(network, OURS, frame)[0].labels),
            ):
                one = Confusion(len(CLASSES))
                one.add(frame.label, labels)
                counts[method] = one.counts
            return counts

        file = setting.folder / FOLDER / f"{network.bundle.name}-{path.stem}-counts.npz"
        for method, counts in kept(file, facts, compute).items():
            totals[method].counts += counts
    summaries = {method: total.summary() for method, total in totals.items()}
    return {"frames": len(paths), "accuracy": summaries}

"""Figures of one group of images: the size of the uncertainty, and what it detects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penumbra.lab.experiments.distribution_shift.image_groups import LabelledImage
from penumbra.lab.experiments.distribution_shift.uncertainty_maps import (
    MANY,
    OURS,
    SAMPLED,
    UncertaintyMaps,
)
from penumbra.offline.datasets.camvid_classes import CLASSES
from penumbra.offline.metrics.detection import Detection

METHODS = (OURS, SAMPLED)
# Keys in result.json: AUROC for out-of-distribution pixels, and for wrong labels.
SHIFTED, ERRORS = "strange", "errors"


def group_statistics(
    maps: Sequence[UncertaintyMaps], ordinary: Sequence[UncertaintyMaps] | None
) -> dict[str, Any]:
    """Figures of a group; detection of its pixels against those of `ordinary`, if given."""
    found = _sizes([(m.std[OURS], m.std[MANY]) for m in maps])
    if ordinary is not None:
        shifted = _all([np.ones(m.std[OURS].shape, bool) for m in maps]
                       + [np.zeros(m.std[OURS].shape, bool) for m in ordinary])  # fmt: skip
        found[SHIFTED] = {
            method: Detection.of(_all(m.std[method] for m in (*maps, *ordinary)), shifted).auroc
            for method in METHODS
        }
    if all(m.truth is not None for m in maps):
        wrong = {
            method: _all((m.labels[method] != m.truth)[m.known] for m in maps) for method in METHODS
        }
        found["right"] = {method: float(1 - errors.mean()) for method, errors in wrong.items()}
        found[ERRORS] = {
            method: Detection.of(_all(m.std[method][m.known] for m in maps), errors).auroc
            for method, errors in wrong.items()
        }
    return found


def withheld_statistics(
    frames: Sequence[LabelledImage], maps: Sequence[UncertaintyMaps]
) -> dict[str, Any]:
    """Detection of the pixels of withheld classes against those of the classes that were learnt.

    Void pixels are neither.
    """
    labelled = [_labelled(frame) for frame in frames]
    withheld = [here & ~m.known for here, m in zip(labelled, maps, strict=True)]
    pairs = [
        (m.std[OURS][s], m.std[MANY][s]) for m, s in zip(maps, withheld, strict=True) if s.any()
    ]
    positive = _all(s[here] for s, here in zip(withheld, labelled, strict=True))
    found = _sizes(pairs)
    found[SHIFTED] = {
        method: Detection.of(
            _all(m.std[method][here] for m, here in zip(maps, labelled, strict=True)), positive
        ).auroc
        for method in METHODS
    }
    return found


def _labelled(frame: LabelledImage) -> np.ndarray:
    if frame.labels is None:
        return np.zeros(frame.image.shape[:2], bool)
    return frame.labels < len(CLASSES)


def _sizes(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Mean standard deviation of many samples, and ours over it: of all pixels, and by image."""
    ours, many = (_all(maps).mean(dtype=np.float64) for maps in zip(*pairs, strict=True))
    each = [float(a.mean(dtype=np.float64) / b.mean(dtype=np.float64)) for a, b in pairs]
    return {"std": float(many), "ratio": float(ours / many), "ratios": each}


def _all(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in parts])

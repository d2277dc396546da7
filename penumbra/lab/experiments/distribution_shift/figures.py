"""Figures of one kind of pictures: how large the uncertainty is, and what it finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penumbra.lab.experiments.distribution_shift.maps import MANY, OURS, SAMPLED, Maps, Picture
from penumbra.offline.datasets.camvid import CLASSES
from penumbra.offline.metrics.detection import Detection

METHODS = (OURS, SAMPLED)


def figures(maps: Sequence[Maps], ordinary: Sequence[Maps] | None) -> dict[str, Any]:
    """Of one kind of pictures; `ordinary` are those that they are to be told from (None: none)."""
    found = _sizes([(m.std[OURS], m.std[MANY]) for m in maps])
    if ordinary is not None:
        strange = _all([np.ones(m.std[OURS].shape, bool) for m in maps]
                       + [np.zeros(m.std[OURS].shape, bool) for m in ordinary])  # fmt: skip
        found["strange"] = {
            method: Detection.of(_all(m.std[method] for m in (*maps, *ordinary)), strange).auroc
            for method in METHODS
        }
    if all(m.truth is not None for m in maps):
        wrong = {
            method: _all((m.labels[method] != m.truth)[m.known] for m in maps) for method in METHODS
        }
        found["right"] = {method: float(1 - errors.mean()) for method, errors in wrong.items()}
        found["errors"] = {
            method: Detection.of(_all(m.std[method][m.known] for m in maps), errors).auroc
            for method, errors in wrong.items()
        }
    return found


def withheld(frames: Sequence[Picture], maps: Sequence[Maps]) -> dict[str, Any]:
    """Pixels of classes that the network has not, to be told from those of classes that it has."""
    labelled = [frame.labels < len(CLASSES) for frame in frames]  # void is neither
    strange = [here & ~m.known for here, m in zip(labelled, maps, strict=True)]
    pairs = [
        (m.std[OURS][s], m.std[MANY][s]) for m, s in zip(maps, strange, strict=True) if s.any()
    ]
    positive = _all(s[here] for s, here in zip(strange, labelled, strict=True))
    found = _sizes(pairs)
    found["strange"] = {
        method: Detection.of(
            _all(m.std[method][here] for m, here in zip(maps, labelled, strict=True)), positive
        ).auroc
        for method in METHODS
    }
    return found


def _sizes(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Mean standard deviation of many samples, and ours over it: of all pixels, and by picture."""
    ours, many = (_all(maps).mean(dtype=np.float64) for maps in zip(*pairs, strict=True))
    each = [float(a.mean(dtype=np.float64) / b.mean(dtype=np.float64)) for a, b in pairs]
    return {"std": float(many), "ratio": float(ours / many), "ratios": each}


def _all(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in parts])

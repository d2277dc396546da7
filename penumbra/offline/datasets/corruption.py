"""Corrupted views: images unlike those that a network was trained on."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np


def corrupted(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A copy of `view` (RGB, uint8) with one random corruption.

    Noise, darkness, haze, blur, enlargement, other colours, or shuffled parts.
    """
    change = _CORRUPTIONS[int(random.integers(len(_CORRUPTIONS)))]
    return np.clip(change(view, random) + 0.5, 0, 255).astype(np.uint8)


def _noisy(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return view + random.normal(0, random.uniform(4, 25), view.shape)


def _dark(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return view * random.uniform(0.15, 0.6)


def _hazy(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Mixed with grey, by a share that changes linearly from top to bottom."""
    top, bottom = random.uniform(0.1, 1, 2)
    transmission = np.linspace(top, bottom, len(view))[:, None, None]
    return view * transmission + random.uniform(120, 240) * (1 - transmission)


def _blurred(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return cv2.GaussianBlur(view.astype(np.float32), (0, 0), random.uniform(1, 4))


def _enlarged(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A part of the view, a fifth to half of its sides, at full size."""
    height, width = view.shape[:2]
    share = random.uniform(0.2, 0.5)
    rows, columns = max(1, round(height * share)), max(1, round(width * share))
    top, left = (int(random.integers(total)) for total in (height - rows + 1, width - columns + 1))
    part = view[top : top + rows, left : left + columns].astype(np.float32)
    return cv2.resize(part, (width, height), interpolation=cv2.INTER_CUBIC)


def _recoloured(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Channels permuted, some inverted, each scaled."""
    permuted = view[..., random.permutation(3)].astype(np.float32)
    inverted = random.random(3) < 0.3
    return np.where(inverted, 255 - permuted, permuted) * random.uniform(0.5, 1.3, 3)


def _shuffled(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Parts of the view in other places, some upside down, some rotated."""
    height, width = view.shape[:2]
    count = int(random.integers(2, 5))
    rows, columns = height // count, width // count
    result = view.astype(np.float32)
    for _ in range(count**2):
        top, to_top = (int(v) for v in random.integers(height - rows + 1, size=2))
        left, to_left = (int(v) for v in random.integers(width - columns + 1, size=2))
        part = view[top : top + rows, left : left + columns]
        if random.random() < 0.5:
            part = part[::-1]
        if random.random() < 0.5:
            part = cv2.resize(np.rot90(part), (columns, rows))
        result[to_top : to_top + rows, to_left : to_left + columns] = part
    return result


_CORRUPTIONS: tuple[Callable[[np.ndarray, np.random.Generator], np.ndarray], ...] = (
    _noisy, _dark, _hazy, _blurred, _enlarged, _recoloured, _shuffled
)  # fmt: skip

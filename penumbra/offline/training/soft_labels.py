"""Distillation: soft labels of a teacher as a second target (Hinton et al. 2015).

The teacher itself is not needed: its output is read from a folder with one file per training frame,
`NAME.npy`, `uint8`, height x width x classes: -log p of each class in 1/16 nats, so that 0 is
certain and 255 is p = 1e-7. The classes are CamVid's eleven. The height and width are those of the
frame, or divided by the same whole number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch.nn.functional as F
from torch import Tensor

from penumbra.errors import PenumbraError
from penumbra.offline.datasets.camvid import LabelledImages
from penumbra.offline.datasets.camvid_classes import CLASSES
from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.offline.training.outliers import OUTLIER

NATS = 1 / 16
"""Unit of the stored numbers."""


def load_soft_labels(folder: Path, data: LabelledImages) -> list[np.ndarray]:
    """The teacher's output for each frame of `data`, classes that were withheld left out."""
    kept = [CLASSES.index(name) for name in data.classes]
    found = []
    for name, image in zip(data.names, data.images, strict=True):
        file = Path(folder) / f"{name}.npy"
        try:
            soft = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise PenumbraError(f"--teacher: {file} cannot be read: {error}") from error
        if soft.dtype != np.uint8 or soft.ndim != 3 or soft.shape[2] != len(CLASSES):
            raise PenumbraError(
                f"--teacher: {file} must be uint8, height x width x {len(CLASSES)}; it is "
                f"{soft.dtype} {soft.shape}"
            )
        if _ratio(image.shape, soft.shape) is None:
            raise PenumbraError(
                f"--teacher: {file} is {soft.shape[1]}x{soft.shape[0]}, which does not divide its "
                f"frame of {image.shape[1]}x{image.shape[0]}"
            )
        found.append(np.ascontiguousarray(soft[..., kept]))
    return found


def warped_soft_labels(
    soft: np.ndarray, frame: Sequence[int], warp: np.ndarray, size: tuple[int, int]
) -> np.ndarray:
    """The soft labels of a view of `size` (height, width), classes first.

    `warp` maps the pixels of the frame, whose shape is `frame`, to those of the view.
    """
    ratio = _ratio(frame, soft.shape) or 1
    # Pixel centres of the soft labels in the frame: r (x + ½) - ½.
    place = np.array([[ratio, 0, ratio / 2 - 0.5], [0, ratio, ratio / 2 - 0.5], [0, 0, 1]])
    height, width = size
    # OpenCV warps up to four channels at once.
    parts = [
        cv2.warpAffine(
            np.ascontiguousarray(soft[..., first : first + 4]),
            warp @ place,
            (width, height),
            flags=cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_REPLICATE,
        ).reshape(height, width, -1)
        for first in range(0, soft.shape[2], 4)
    ]
    return np.concatenate(parts, axis=2).transpose(2, 0, 1).copy()


def set_certain(soft: np.ndarray, inside: np.ndarray, number: int) -> None:
    """Make the class `number` certain where `inside` (a mask of the frame) is true, in place."""
    height, width = soft.shape[:2]
    mask = inside
    if inside.shape != (height, width):
        share = cv2.resize(inside.astype(np.float32), (width, height), interpolation=cv2.INTER_AREA)
        mask = share >= 0.5
    soft[mask] = 255
    soft[mask, number] = 0


def distillation_loss(
    logits: Tensor, labels: Tensor, soft: Tensor, weights: Tensor, temperature: float
) -> Tensor:
    """Divergence from the teacher, both softened by `temperature`, times its square.

    The square keeps the size of the gradient independent of the temperature. Pixels have the
    weight of their labelled class; those without a class do not count.
    """
    ordinary = (labels != IGNORE) & (labels != OUTLIER)
    weight = weights[labels.masked_fill(~ordinary, 0).long()] * ordinary
    target = F.log_softmax(soft.to(logits.dtype) * (-NATS / temperature), dim=1)
    mine = F.log_softmax(logits / temperature, dim=1)
    divergence = F.kl_div(mine, target, reduction="none", log_target=True).sum(dim=1)
    return temperature**2 * (divergence * weight).sum() / weight.sum().clamp(min=1e-9)


def _ratio(frame: Sequence[int], soft: Sequence[int]) -> int | None:
    """How many times larger the frame is; None if that is not the same whole number for both."""
    ratio = frame[0] // soft[0]
    return ratio if (soft[0] * ratio, soft[1] * ratio) == tuple(frame[:2]) else None

"""Random views of a labelled image: scale, crop, mirror, light and colour, in a millisecond.

And views that are like no image that a network was trained on (`estranged`).
"""

from __future__ import annotations

import cv2
import numpy as np

from penumbra.offline.metrics.segmentation import IGNORE


def random_view(
    image: np.ndarray,
    label: np.ndarray,
    size: tuple[int, int],
    scales: tuple[float, float],
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """A crop of `size` (height, width) at a random scale and place, mirrored half of the time.

    One affine warp does all of it. Where the crop is larger than the scaled image, the rest is
    black and its label is `IGNORE`.
    """
    height, width = size
    scale = np.exp(random.uniform(np.log(scales[0]), np.log(scales[1])))
    room_x, room_y = image.shape[1] * scale - width, image.shape[0] * scale - height
    left, top = (random.uniform(min(0.0, room), max(0.0, room)) for room in (room_x, room_y))
    # Maps scaled source pixel centres to the crop: x' = s (x + ½) - ½ - left.
    warp = np.array([[scale, 0, scale / 2 - 0.5 - left], [0, scale, scale / 2 - 0.5 - top]])
    if random.random() < 0.5:
        warp[0] = [-warp[0, 0], 0, width - 1 - warp[0, 2]]
    view = cv2.warpAffine(image, warp, (width, height), flags=cv2.INTER_LINEAR)
    marks = cv2.warpAffine(
        label, warp, (width, height), flags=cv2.INTER_NEAREST, borderValue=int(IGNORE)
    )
    return jitter(view, random), marks


def jitter(image: np.ndarray, random: np.random.Generator, strength: float = 1.0) -> np.ndarray:
    """Other light on the same scene: exposure, contrast, gamma, tint and saturation."""
    levels = np.linspace(0.0, 1.0, 256, dtype=np.float32)
    middle = float(image.mean()) / 255.0  # a dusk scene keeps its darkness, and its detail
    exposure, gamma, contrast, saturation = 1.0 + strength * random.uniform(-0.3, 0.3, size=4)
    tint = 1.0 + strength * random.uniform(-0.08, 0.08, size=3)
    curve = ((levels**gamma - middle**gamma) * contrast + middle**gamma) * exposure
    table = np.clip(curve[:, None] * tint * 255.0 + 0.5, 0, 255).astype(np.uint8)
    lit = cv2.LUT(image, table[None])
    grey = cv2.cvtColor(cv2.cvtColor(lit, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(lit, saturation, grey, 1.0 - saturation, 0.0)


def estranged(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A view as a network has not been trained on: noisy, dark, hazy, blurred, enlarged, in other
    colours or in disorder."""
    changes = (_noisy, _dark, _hazy, _blurred, _enlarged, _recoloured, _disordered)
    change = changes[int(random.integers(len(changes)))]
    return np.clip(change(view, random) + 0.5, 0, 255).astype(np.uint8)


def _noisy(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return view + random.normal(0, random.uniform(4, 25), view.shape)


def _dark(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return view * random.uniform(0.15, 0.6)


def _hazy(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Mixed with grey, more of it at the top or at the bottom."""
    seen = np.linspace(*random.uniform(0.1, 1, 2), len(view))[:, None, None]
    return view * seen + random.uniform(120, 240) * (1 - seen)


def _blurred(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return cv2.GaussianBlur(view.astype(np.float32), (0, 0), random.uniform(1, 4))


def _enlarged(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A part of it from much too near: large and smooth."""
    height, width = view.shape[:2]
    share = random.uniform(0.2, 0.5)
    rows, columns = max(1, round(height * share)), max(1, round(width * share))
    top, left = (int(random.integers(whole)) for whole in (height - rows + 1, width - columns + 1))
    part = view[top : top + rows, left : left + columns].astype(np.float32)
    return cv2.resize(part, (width, height), interpolation=cv2.INTER_CUBIC)


def _recoloured(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Its colours exchanged, some turned to their opposite, in a light of some other colour."""
    exchanged = view[..., random.permutation(3)].astype(np.float32)
    opposite = random.random(3) < 0.3
    return np.where(opposite, 255 - exchanged, exchanged) * random.uniform(0.5, 1.3, 3)


def _disordered(view: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Parts of the picture in other places, some upside down, some turned."""
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

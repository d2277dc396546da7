"""Fit of the familiarity model: which statistics of features are ordinary.

Closed form, from recorded statistics alone; no torch and no export. For each tap, a Gaussian whose
covariance is free in a few principal directions and isotropic outside of them. The taps' squared
distances, each divided by its standard deviation over the fitted frames, are added.

A drive is much more like itself than like another one. So the score of a frame is never taken from
a model that has seen its drive: every drive is left out once, and the worst of them sets the tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.offline.datasets.augmentation import jitter
from penumbra.vehicle.monitor.familiarity import Familiarity

DIRECTIONS = 16  # per tap; of 8, 16, 24, 32 and 64 the best by leave-one-drive-out
LEAST_FRAMES = 10  # of a drive
_STEPS = 512  # of the tail that is kept
_SCALE_FLOOR = 0.05  # of the mean scale, so that a channel which is always zero does not decide
_UPPER_TENTH = 0.9


def fit_familiarity(
    drives: Mapping[str, np.ndarray],
    taps: Sequence[int] | None = None,
    augmented: Mapping[str, np.ndarray] | None = None,
    directions: int = DIRECTIONS,
) -> Familiarity:
    """The model of these ordinary drives, each of which has the same weight.

    Args:
        drives: statistics of the frames (frames, N) by drive, in order; at least two drives.
        taps: how many of the N statistics each tap has; None: one tap.
        augmented: statistics of photometric variants of the same drives, for fitting only.
        directions: of free covariance, per tap.
    """
    _check(drives, taps)
    augmented = augmented or {}
    names = list(drives)
    left_out = []
    for name in names:
        others = [other for other in names if other != name]
        frame = _fit([_joined(other, drives, augmented) for other in others], taps, directions)
        left_out.append(np.sort([frame.distance(row) for row in drives[name]]))
    model = _fit([_joined(name, drives, augmented) for name in names], taps, directions)
    distances, tail = _worst_tail(left_out)
    return _with_tail(model, distances, tail, _decay(left_out))


def in_blocks(statistics: np.ndarray, count: int = 5) -> dict[str, np.ndarray]:
    """One drive as `count` consecutive ones, where there is no second drive.

    Blocks of one drive are more alike than drives: the tail is then too optimistic for another one.
    """
    return {f"block {n}": part for n, part in enumerate(np.array_split(statistics, count), start=1)}


def taps_of(bundle: Bundle) -> list[int] | None:
    """How many statistics each tap of a bundle has; None if it emits none."""
    outputs = [output for output in bundle.outputs if output.role == "statistics"]
    if not outputs:
        return None
    (total,) = outputs[0].shape
    taps = bundle.manifest["provenance"].get("taps") or [total]
    if sum(taps) != total:
        raise PenumbraError(
            f"{bundle.name} states {sum(taps)} statistics and emits {total}: export it again"
        )
    return [int(tap) for tap in taps]


def collect(
    images: Iterable[np.ndarray],
    statistics: Callable[[np.ndarray], np.ndarray],
    copies: int = 0,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The statistics of RGB images, and of `copies` photometric variants of each.

    `statistics` computes those of one image: any runner's output.
    """
    random = np.random.default_rng(seed)
    plain, varied = [], []
    for image in images:
        plain.append(statistics(image))
        varied += [statistics(jitter(image, random)) for _ in range(copies)]
    if not plain:
        raise PenumbraError("no image to take statistics of: give a folder with ordinary frames")
    return np.array(plain), np.array(varied).reshape(-1, len(plain[0]))


def _check(drives: Mapping[str, np.ndarray], taps: Sequence[int] | None) -> None:
    if len(drives) < 2:
        raise PenumbraError(
            "familiarity needs two drives, so that one can be left out: give another drive, or cut "
            "one into blocks (in_blocks)"
        )
    size = next(iter(drives.values())).shape[-1]
    for name, rows in drives.items():
        if rows.ndim != 2 or rows.shape[1] != size or len(rows) < LEAST_FRAMES:
            raise PenumbraError(
                f"the drive {name!r} has statistics of the shape {rows.shape}: it needs at least "
                f"{LEAST_FRAMES} frames of {size} numbers"
            )
        if not np.isfinite(rows).all():
            raise PenumbraError(f"statistics of the drive {name!r} are not finite: leave it out")
    if taps is not None and sum(taps) != size:
        raise PenumbraError(
            f"taps of {sum(taps)} statistics for frames of {size}: give their sizes"
        )


def _joined(
    name: str, drives: Mapping[str, np.ndarray], augmented: Mapping[str, np.ndarray]
) -> np.ndarray:
    parts = [drives[name], *([augmented[name]] if name in augmented else [])]
    return np.concatenate(parts).astype(np.float64)


def _fit(parts: Sequence[np.ndarray], taps: Sequence[int] | None, directions: int) -> Familiarity:
    """The model without its tail; each part has the same weight."""
    rows = np.concatenate(parts)
    share = np.concatenate([np.full(len(part), 1 / len(part) / len(parts)) for part in parts])
    sizes = list(taps) if taps is not None else [rows.shape[1]]
    kept = [min(directions, size - 1, len(rows) - 1) for size in sizes]
    basis = np.zeros((rows.shape[1], sum(kept)))
    weights = np.zeros(sum(kept))
    centre, scale = np.zeros(rows.shape[1]), np.ones(rows.shape[1])
    first, column = 0, 0
    for size, count in zip(sizes, kept, strict=True):
        own, columns = slice(first, first + size), slice(column, column + count)
        centre[own], scale[own], basis[own, columns], weights[columns] = _fit_tap(
            rows[:, own], share, count
        )
        first, column = own.stop, columns.stop
    nothing = np.array([1.0])
    return Familiarity(centre, scale, basis, weights, 1.0, nothing, nothing, 1.0)


def _fit_tap(
    rows: np.ndarray, share: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Centre, scale, basis and weights of one tap, for a `rest` of 1."""
    centre = share @ rows
    spread = np.sqrt(share @ (rows - centre) ** 2)
    floor = _SCALE_FLOOR * spread.mean()
    scale = spread + (floor if floor > 0 else 1.0)
    z = (rows - centre) / scale
    values, vectors = np.linalg.eigh((z * share[:, None]).T @ z)
    values, basis = np.maximum(values[::-1], 0), vectors[:, ::-1][:, :count]
    # Never zero, not even for a drive of one repeated frame.
    rest = max(float(values[count:].mean()), 1e-6)
    inside = np.maximum(values[:count], rest)
    square = ((z**2).sum(1) - ((z @ basis) ** 2).sum(1)) / rest + (z @ basis) ** 2 @ (1 / inside)
    deviation = float(np.sqrt(share @ (square - share @ square) ** 2)) or 1.0
    # d² / deviation = |z'|² + Σ w (z' basis)² with z' = z / √(rest deviation).
    return centre, scale * np.sqrt(rest * deviation), basis, rest / inside - 1


def _worst_tail(left_out: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The share of frames at or beyond a distance, in the drive where it is largest."""
    grid = np.unique(np.concatenate(left_out))
    if grid.size > _STEPS:  # quantiles, the largest included
        grid = grid[np.linspace(0, grid.size - 1, _STEPS).round().astype(int)]
    shares = [1 - np.searchsorted(drive, grid, "left") / len(drive) for drive in left_out]
    return grid, np.max(shares, axis=0)


def _decay(left_out: Sequence[np.ndarray]) -> float:
    """Hill's estimate of the power by which the tail falls, of the slowest drive."""
    powers = []
    for drive in left_out:
        begin = max(float(np.quantile(drive, _UPPER_TENTH)), 1e-12)
        excess = np.log(drive[drive >= begin] / begin)
        powers.append(1 / max(float(excess.mean()), 1e-2) if excess.size else 1.0)
    return min(powers)


def _with_tail(
    model: Familiarity, distances: np.ndarray, tail: np.ndarray, decay: float
) -> Familiarity:
    return Familiarity(
        model.centre, model.scale, model.basis, model.weights, model.rest, distances, tail, decay
    )

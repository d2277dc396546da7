"""Familiarity of the scene: how unlike the ordinary frames of a camera a frame is.

    familiarity = load_familiarity(folder / "familiarity.npz")
    score = familiarity.score(outputs["statistics"])

The bundle's graph emits the channels' means and standard deviations at a few taps (role
`statistics`). The model beside the bundle says which of them are ordinary:
`penumbra.offline.fitting.familiarity` fits it, and refitting needs no export and no new engine.

The score is −log₁₀ of the share of ordinary frames that are as strange, in a drive that the fit has
not seen: 1 for one frame in ten, 2 for one in a hundred. A threshold is therefore a rate of false
alarms.
"""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from penumbra.errors import PenumbraError

FAMILIARITY = "familiarity.npz"
_VERSION = 1
_LARGEST_FILE = 64 * 2**20  # bytes; 2,000 statistics with a basis of 256 take 2 MB
_LARGEST_BASIS, _LARGEST_TAIL = 4096, 65536


@dataclass(frozen=True)
class Familiarity:
    """A fitted model of ordinary statistics; PenumbraError unless its parts fit together.

    With z = (statistics − `centre`) / `scale`, the distance of a frame is
    d = √(`rest` |z|² + Σ `weights` (z `basis`)²): a Gaussian's, whose covariance is free within the
    basis and isotropic outside of it.
    """

    centre: np.ndarray  # (N)
    scale: np.ndarray  # (N), positive
    basis: np.ndarray  # (N, K), orthonormal columns
    weights: np.ndarray  # (K)
    rest: float  # positive
    distances: np.ndarray  # (M), ascending: of ordinary frames of drives that were left out
    tail: np.ndarray  # (M), descending, in (0, 1]: the share of frames at or beyond a distance
    decay: float  # how fast the tail falls beyond the last distance d: (d / last) ** -decay

    def __post_init__(self) -> None:
        for field in fields(self):
            value = np.asarray(getattr(self, field.name), np.float64)
            if not np.isfinite(value).all():
                raise _broken(f"{field.name} is not finite")
        count, kept = len(np.atleast_1d(self.centre)), len(np.atleast_1d(self.weights))
        shapes = {
            "centre": (count,),
            "scale": (count,),
            "basis": (count, kept),
            "weights": (kept,),
            "tail": self.distances.shape,
        }
        for name, expected in shapes.items():
            found = np.shape(getattr(self, name))
            if found != expected:
                raise _broken(f"{name} has the shape {found} instead of {expected}")
        if self.distances.ndim != 1 or not 1 <= self.distances.size <= _LARGEST_TAIL:
            raise _broken(f"there are {self.distances.size} distances of ordinary frames")
        if count == 0 or kept > min(count, _LARGEST_BASIS):
            raise _broken(f"a basis of {kept} for {count} statistics")
        rises = (np.diff(self.distances) < 0).any() or (np.diff(self.tail) > 0).any()
        if rises or not (self.tail[-1] > 0 and self.tail[0] <= 1 and self.distances[0] >= 0):
            raise _broken("the tail of ordinary frames is not a falling share")
        # With weights ≥ -rest no direction makes the square of the distance negative.
        least = float(self.weights.min(initial=0.0))
        if not (self.scale > 0).all() or not (
            self.decay > 0 and self.rest > 0 <= self.rest + least
        ):
            raise _broken("a scale is not positive")

    @property
    def size(self) -> int:
        """How many statistics it expects."""
        return self.centre.size

    def distance(self, statistics: np.ndarray) -> float:
        """The distance of a frame from ordinary ones; infinite if a statistic is not finite."""
        if statistics.shape != (self.size,):
            raise PenumbraError(
                f"the familiarity model expects {self.size} statistics, the graph emits "
                f"{statistics.size}: it was fitted to another bundle; run `penumbra fit-alerts`"
            )
        z = (statistics.astype(np.float64) - self.centre) / self.scale
        along = z @ self.basis
        square = self.rest * float(z @ z) + float(self.weights @ (along * along))
        # Rounding can leave a tiny negative number.
        return math.sqrt(max(square, 0.0)) if math.isfinite(square) else math.inf

    def score(self, statistics: np.ndarray) -> float:
        """−log₁₀ of the share of ordinary frames that are at least as strange."""
        return self.score_of_distance(self.distance(statistics))

    def score_of_distance(self, distance: float) -> float:
        """The score of a frame at this distance."""
        last = float(self.distances[-1])
        if distance <= last:
            share = float(np.interp(distance, self.distances, self.tail))
            return max(0.0, -math.log10(share))
        beyond = math.inf if last == 0 else math.log10(distance / last)
        return -math.log10(float(self.tail[-1])) + self.decay * beyond


def load_familiarity(path: Path | str) -> Familiarity:
    """Read a fitted model; PenumbraError if the file is damaged. Nothing is unpickled."""
    file = Path(path)
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise _broken(f"it has {file.stat().st_size / 2**20:.0f} MiB")
        data = file.read_bytes()
    except OSError as error:
        raise PenumbraError(f"cannot read {file}: {error.strerror}") from error
    except PenumbraError as error:
        raise PenumbraError(f"{file}: {error}") from error
    return parse_familiarity(data, file)


def parse_familiarity(data: bytes, where: Path) -> Familiarity:
    """A fitted model from the content of its file; `where` appears in error messages."""
    try:
        # The sizes that the archive declares, before anything is decompressed.
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_FILE:
                raise _broken("its contents are too large")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            if int(arrays["version"]) != _VERSION:
                raise _broken(f"its version is {int(arrays['version'])}, not {_VERSION}")
            parts: dict[str, Any] = {
                field.name: arrays[field.name].astype(np.float64) for field in fields(Familiarity)
            }
            for name in ("rest", "decay"):
                parts[name] = float(parts[name])
            return Familiarity(**parts)
    except PenumbraError as error:
        raise PenumbraError(f"{where}: {error}") from error
    except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, OSError) as error:
        what = " ".join(str(error).split())
        raise PenumbraError(f"{where}: {_broken(what)}") from error


def familiarity_bytes(model: Familiarity) -> bytes:
    """The file of a model."""
    stream = io.BytesIO()
    # 32 bits are enough: statistics themselves have no more.
    arrays: dict[str, Any] = {
        field.name: np.asarray(getattr(model, field.name), np.float32) for field in fields(model)
    }
    np.savez(stream, version=np.int64(_VERSION), **arrays)
    return stream.getvalue()


def _broken(what: str) -> PenumbraError:
    return PenumbraError(
        f"not a valid model of familiarity ({what}): fit it again with `penumbra fit-alerts`"
    )

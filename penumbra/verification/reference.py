"""The Monte-Carlo reference of a frame: PyTorch, from the bundle's weights, kept once computed."""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penumbra.bundle import WEIGHTS, Bundle
from penumbra.errors import PenumbraError
from penumbra.files import cache_folder, write_atomically
from penumbra.offline.models import load_model
from penumbra.offline.models.segnet import Probabilities
from penumbra.offline.training.segmentation import normalised_for
from penumbra.propagation import Moments
from penumbra.propagation.montecarlo import monte_carlo

FORMAT = 3  # of the kept files: a change of what is computed needs the next number
FEWEST = 8  # samples: two halves whose variance means anything
TIMED = 20  # samples that the time of one is taken from

Map = np.ndarray


@dataclass(frozen=True)
class Reference:
    """What sampling says of one frame; the halves are two independent references of half as many.

    For segmentation the prediction is the label of the largest mean probability, and `std` the mean
    over the classes of the standard deviation of their probabilities, as in the paper. For depth
    they are disparity and its standard deviation at the network's pixels, in image widths, both
    scaled to the image.
    """

    prediction: Map
    std: Map
    confidence: Map | None  # segmentation only: the largest mean probability
    half_predictions: tuple[Map, Map]
    half_stds: tuple[Map, Map]
    seconds: float  # that computing it took, some time


class References:
    """The references of one bundle, frame by frame; each is written as soon as it is there.

    Kept under `PENUMBRA_CACHE`, named by the content of the frame and the weights, by the number
    of samples and the seed: an interrupted run goes on where it was, a changed model starts anew.
    """

    def __init__(self, bundle: Bundle, samples: int, seed: int = 0) -> None:
        if samples < FEWEST or samples % 2:
            raise PenumbraError(
                f"--samples is {samples}: give an even number from {FEWEST} on, because the noise "
                "of the reference is estimated from two halves"
            )
        self.samples, self.seed = samples, seed
        self.computed = 0
        self._order = bundle.input.channel_order
        self._weights = bundle.manifest["files"][WEIGHTS]
        self._folder = cache_folder() / "references"
        self._model = load_model(bundle.weights_file)
        self._segments = bundle.task == "segmentation"

    def of(self, image: np.ndarray) -> Reference:
        """For an image as the network sees it: `uint8`, in the bundle's channel order."""
        file = self._folder / f"{self._key(image)}.npz"
        kept = _read(file)
        if kept is not None:
            return kept
        start = time.perf_counter()
        half = self.samples // 2
        halves = [self._sample(image, half, 2 * self.seed + number) for number in range(2)]
        whole = _merged(*halves, half)
        maps = [self._maps(m, image.shape[:2]) for m in (whole, *halves)]
        predictions, stds = zip(*maps, strict=True)
        confidence = _array(whole.mean[0].amax(0), np.float32) if self._segments else None
        seconds = time.perf_counter() - start
        reference = Reference(
            predictions[0], stds[0], confidence, predictions[1:], stds[1:], seconds
        )
        _write(file, reference)
        self.computed += 1
        return reference

    def seconds_per_frame(self, image: np.ndarray) -> tuple[float, float]:
        """The time of what is computed once, and of each sample, measured now on this image."""
        few, many = 2, 2 + min(self.samples, TIMED)
        self._sample(image, few, 0)  # the first run allocates
        times = []
        for count in (few, many):
            start = time.perf_counter()
            self._sample(image, count, 0)
            times.append(time.perf_counter() - start)
        each = max(0.0, times[1] - times[0]) / (many - few)
        return max(0.0, times[0] - few * each), each

    def _key(self, image: np.ndarray) -> str:
        drawn = self.samples, self.seed, str(torch.__version__)  # which draws the samples
        facts = (FORMAT, self._weights, *drawn, self._order, image.shape)
        digest = hashlib.sha256(repr(facts).encode())
        digest.update(np.ascontiguousarray(image).data)
        return digest.hexdigest()

    def _sample(self, image: np.ndarray, samples: int, seed: int) -> Moments:
        rgb = image if self._order == "rgb" else image[..., ::-1]
        x = normalised_for(self._model, torch.from_numpy(np.ascontiguousarray(rgb))[None])
        if self._segments:
            return monte_carlo(Probabilities(self._model).eval(), x, samples=samples, seed=seed)
        size = tuple(self._model.config["size"])
        x = F.interpolate(x, size, mode="bilinear", align_corners=False)
        return monte_carlo(self._model, x, samples=samples, seed=seed)

    def _maps(self, moments: Moments, shape: tuple[int, int]) -> tuple[Map, Map]:
        mean, std = moments.mean, moments.std
        if self._segments:
            return _array(mean[0].argmax(0), np.uint8), _array(std[0].mean(0), np.float32)
        # Scaled as the exported graph does it: the uncertainty of the network's own pixels. What
        # lies between two of them, which do not err alike, is in truth surer than either.
        scaled = (
            F.interpolate(value, shape, mode="bilinear", align_corners=False)
            for value in (mean, std)
        )
        return tuple(_array(value[0, 0], np.float32) for value in scaled)


def _array(values: Tensor, dtype: type) -> Map:
    return values.numpy().astype(dtype)


def _merged(a: Moments, b: Moments, count: int) -> Moments:
    """Mean and unbiased variance of two sets of `count` samples together (Chan et al. 1979)."""
    squares = (count - 1) * (a.variance + b.variance) + count / 2 * (a.mean - b.mean).square()
    return Moments((a.mean + b.mean) / 2, squares / (2 * count - 1))


def _write(file: Path, reference: Reference) -> None:
    content = io.BytesIO()
    sure = {} if reference.confidence is None else {"confidence": reference.confidence}
    np.savez(
        content,
        **sure,
        predictions=np.stack([reference.prediction, *reference.half_predictions]),
        stds=np.stack([reference.std, *reference.half_stds]),
        seconds=reference.seconds,
    )
    write_atomically(file, content.getbuffer())


def _read(file: Path) -> Reference | None:
    """None for a file that is not there or that somebody has damaged: it is made again."""
    try:
        with np.load(file, allow_pickle=False) as kept:
            arrays: dict[str, Any] = dict(kept)
        predictions, stds = arrays["predictions"], arrays["stds"]
        return Reference(
            predictions[0], stds[0], arrays.get("confidence"), tuple(predictions[1:]),
            tuple(stds[1:]), float(arrays["seconds"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None

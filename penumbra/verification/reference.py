"""The Monte-Carlo reference of a frame: sampled by PyTorch from the bundle's weights, cached."""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penumbra.bundle import WEIGHTS, Bundle
from penumbra.errors import PenumbraError
from penumbra.files import cache_folder, write_atomically
from penumbra.offline.models import load_model
from penumbra.offline.models.network import normalised_for
from penumbra.offline.models.segnet import Probabilities
from penumbra.propagation import Moments
from penumbra.propagation.montecarlo import monte_carlo

FORMAT = 3  # of the cached files: increase it when the computation changes
FEWEST = 8  # samples: two halves with a meaningful variance
TIMED = 20  # samples to measure the time of one

Map = np.ndarray


@dataclass(frozen=True)
class Reference:
    """Sampled moments of one frame; the halves are two independent references of half the samples.

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
    seconds: float  # of computing it


class References:
    """The references of one bundle, computed frame by frame and cached at once.

    The cache is under `PENUMBRA_CACHE`, keyed by the pixels, the weights, the number of samples and
    the seed: an interrupted run continues, and a changed model starts anew.
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
        self._weights = bundle.files[WEIGHTS]
        self._folder = cache_folder() / "references"
        self._model = load_model(bundle.weights_file)
        self._segments = bundle.task == "segmentation"

    def of(self, image: np.ndarray) -> Reference:
        """For an image as the network sees it: `uint8`, in the bundle's channel order."""
        file = self._folder / f"{self._key(image)}.npz"
        cached = _read(file)
        if cached is not None:
            return cached
        start = time.perf_counter()
        half = self.samples // 2
        first, second = (self._sample(image, half, 2 * self.seed + number) for number in range(2))
        whole = _merged(first, second, half)
        height, width = image.shape[:2]
        (prediction, std), *halves = (
            self._maps(moments, (height, width)) for moments in (whole, first, second)
        )
        (first_prediction, first_std), (second_prediction, second_std) = halves
        confidence = _array(whole.mean[0].amax(0), np.float32) if self._segments else None
        reference = Reference(
            prediction,
            std,
            confidence,
            (first_prediction, second_prediction),
            (first_std, second_std),
            time.perf_counter() - start,
        )
        _write(file, reference)
        self.computed += 1
        return reference

    def seconds_per_frame(self, image: np.ndarray) -> tuple[float, float]:
        """The fixed time of a frame and the time of each sample, measured now on this image."""
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
        drawn = self.samples, self.seed, str(torch.__version__)  # whose generator draws the samples
        facts = (FORMAT, self._weights, *drawn, self._order, image.shape)
        digest = hashlib.sha256(repr(facts).encode())
        digest.update(np.ascontiguousarray(image).data)
        return digest.hexdigest()

    def _sample(self, image: np.ndarray, samples: int, seed: int) -> Moments:
        rgb = image if self._order == "rgb" else image[..., ::-1]
        x = normalised_for(self._model, torch.from_numpy(np.ascontiguousarray(rgb))[None])
        if self._segments:
            return monte_carlo(Probabilities(self._model).eval(), x, samples=samples, seed=seed)
        if self._model.input_size is not None:
            x = F.interpolate(x, self._model.input_size, mode="bilinear", align_corners=False)
        return monte_carlo(self._model, x, samples=samples, seed=seed)

    def _maps(self, moments: Moments, shape: tuple[int, int]) -> tuple[Map, Map]:
        mean, std = moments.mean, moments.std
        if self._segments:
            return _array(mean[0].argmax(0), np.uint8), _array(std[0].mean(0), np.float32)

        # Scaled as in the exported graph: the uncertainty of the network's pixels. Between two of
        # them, whose errors are not fully correlated, the true uncertainty is smaller.
        def scaled(values: Tensor) -> Map:
            larger = F.interpolate(values, shape, mode="bilinear", align_corners=False)
            return _array(larger[0, 0], np.float32)

        return scaled(mean), scaled(std)


def _array(values: Tensor, dtype: type) -> Map:
    return values.numpy().astype(dtype)


def _merged(a: Moments, b: Moments, count: int) -> Moments:
    """Mean and unbiased variance of two sets of `count` samples together (Chan et al. 1979)."""
    squares = (count - 1) * (a.variance + b.variance) + count / 2 * (a.mean - b.mean).square()
    return Moments((a.mean + b.mean) / 2, squares / (2 * count - 1))


def _write(file: Path, reference: Reference) -> None:
    content = io.BytesIO()
    save = partial(
        np.savez,
        content,
        predictions=np.stack([reference.prediction, *reference.half_predictions]),
        stds=np.stack([reference.std, *reference.half_stds]),
        seconds=reference.seconds,
    )
    if reference.confidence is None:
        save()
    else:
        save(confidence=reference.confidence)
    write_atomically(file, content.getbuffer())


def _read(file: Path) -> Reference | None:
    """A cached reference; None if the file is missing or damaged."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays: dict[str, np.ndarray] = dict(stored)
        prediction, *half_predictions = arrays["predictions"]
        std, *half_stds = arrays["stds"]
        return Reference(
            prediction,
            std,
            arrays.get("confidence"),
            (half_predictions[0], half_predictions[1]),
            (half_stds[0], half_stds[1]),
            float(arrays["seconds"]),
        )
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile):
        return None

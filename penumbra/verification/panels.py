"""A panel of images for each frame, and all panels as a film."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.vehicle.colours import colour_depth, colour_labels, colour_uncertainty, panel
from penumbra.verification.comparison import Comparison, FrameFigures
from penumbra.verification.frames import Answer
from penumbra.verification.reference import Reference, References

_CODECS = {".mp4": "mp4v", ".avi": "MJPG"}
_TOO_SURE = np.array([178, 24, 43], np.float32)  # red: less uncertainty than Monte Carlo
_TOO_UNSURE = np.array([33, 102, 172], np.float32)  # blue: more
_WIDEST = 480  # pixels of one image of a panel


def panels_of(
    frames: Callable[[], Iterable[Answer]],
    references: References,
    comparison: Comparison,
    bundle: Bundle,
    places: Collection[int],
) -> Iterator[np.ndarray]:
    """The panels (RGB) of the frames at these places, with one colour scale for the bag."""
    top = max(frame.brightest for frame in comparison.frames) or 1.0
    start = comparison.frames[0].stamp_ns
    for place, (answer, figures) in enumerate(zip(frames(), comparison.frames, strict=True)):
        if place in places:
            reference = references.of(answer.image)
            seconds = (figures.stamp_ns - start) / 1e9
            yield _panel(answer, reference, figures, seconds, bundle, top)


def _panel(
    answer: Answer, reference: Reference, figures: FrameFigures, seconds: float, bundle: Bundle,
    top: float,
) -> np.ndarray:  # fmt: skip
    order, std_agreement = bundle.input.channel_order, figures.std_agreement
    rgb = answer.image if order == "rgb" else cv2.cvtColor(answer.image, cv2.COLOR_BGR2RGB)
    if bundle.depth is None:
        prediction = colour_labels(answer.prediction, bundle.classes)
        title = f"prediction: {figures.label_agreement:.2%} equal to Monte Carlo"
    else:
        prediction = colour_depth(answer.prediction, bundle.depth.max_depth_m)
        title = f"prediction: disparity {figures.disparity_relative_error:.2%} off Monte Carlo"
    images = [
        (f"input, {seconds:.2f} s", rgb),
        (title, prediction),
        ("errors against ground truth" if answer.truth is not None else "no ground truth",
         _errors(answer, rgb, bundle.depth is None)),
        (f"Monte Carlo: standard deviation, 0 to {top:.3g}",
         colour_uncertainty(reference.std, top)),
        (f"propagated: {std_agreement.std_relative_error:.1%} off, "
         f"Spearman {std_agreement.spearman:.3f}",
         colour_uncertainty(answer.std, top)),
        ("difference; red: too small, blue: too large",
         difference(answer.std - reference.std, top)),
    ]  # fmt: skip
    return panel([(title, _small(image)) for title, image in images], columns=3)


def difference(signed: np.ndarray, top: float) -> np.ndarray:
    """White at 0; red down to -top, blue up to top."""
    share = np.clip(signed / np.float32(top), -1, 1)[..., None]
    ends = np.where(share < 0, _TOO_SURE, _TOO_UNSURE)
    return np.round(255 + (ends - 255) * np.abs(share)).astype(np.uint8)


def _errors(answer: Answer, rgb: np.ndarray, segments: bool) -> np.ndarray:
    """The dimmed image, with errors in red: wrong labels, or depth more than 25 % off.

    Correct depth is green; pixels without ground truth stay grey.
    """
    grey = cv2.cvtColor(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    image = (grey * 0.5).astype(np.uint8)
    if answer.truth is None:
        return image
    if segments:
        known = answer.truth != IGNORE
        wrong = known & (answer.prediction != answer.truth)
    else:
        known = np.isfinite(answer.truth) & (answer.truth > 0)
        found = np.maximum(answer.prediction, 1e-3)
        measured = np.where(known, answer.truth, 1)
        wrong = known & (np.maximum(found / measured, measured / found) > 1.25)
        # A LiDAR point is one pixel: too small to be visible.
        known, wrong = (cv2.dilate(m.astype(np.uint8), np.ones((2, 2))) > 0 for m in (known, wrong))
        image[known & ~wrong] = (40, 150, 70)
    image[wrong] = (220, 40, 40)
    return image


def _small(image: np.ndarray) -> np.ndarray:
    scale = min(1.0, _WIDEST / image.shape[1])
    if scale == 1:
        return image
    size = (round(image.shape[1] * scale), round(image.shape[0] * scale))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def film_rate(stamps: list[int]) -> float:
    """Frames per second as in the bag, limited to 1 … 30."""
    seconds = (stamps[-1] - stamps[0]) / 1e9
    return float(np.clip((len(stamps) - 1) / seconds, 1, 30)) if seconds > 0 else 1.0


class Film:
    """A video file of images (RGB) of one size, written atomically."""

    def __init__(self, path: Path) -> None:
        if path.suffix not in _CODECS:
            raise PenumbraError(f"--video {path}: give a name that ends in {' or '.join(_CODECS)}")
        self._path = path

    def write(self, images: Iterable[np.ndarray], rate_hz: float) -> None:
        """Encode all images, then give the file its name."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(f".{os.getpid()}.{self._path.name}")
        writer = None
        try:
            for image in images:
                if writer is None:
                    codec = cv2.VideoWriter.fourcc(*_CODECS[self._path.suffix])
                    size = image.shape[1] & ~1, image.shape[0] & ~1  # codecs need even sizes
                    writer = cv2.VideoWriter(str(part), codec, rate_hz, size)
                    if not writer.isOpened():
                        raise PenumbraError(
                            f"OpenCV cannot write {self._path}: try a name that ends in .avi, or "
                            "another folder"
                        )
                writer.write(cv2.cvtColor(image[: size[1], : size[0]], cv2.COLOR_RGB2BGR))
            if writer is not None:
                writer.release()
                part.replace(self._path)
        finally:
            part.unlink(missing_ok=True)

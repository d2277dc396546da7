"""All faults by name, and how they are applied to an image or to the frames of a drive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penumbra.errors import PenumbraError
from penumbra.offline.faults import lens, light, published, readout

SEVERITIES = (1, 2, 3, 4, 5)

FaultFunction = Callable[[np.ndarray, Any, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Fault:
    """One kind of fault: `make(image, constants[severity - 1], rng)` puts it into an image.

    `stays`: what is drawn at random (the place of dirt, the side of a colour cast) is the same in
    all frames of a drive. Otherwise every frame draws anew.
    """

    make: FaultFunction
    constants: tuple[Any, ...]
    unit: str
    stays: bool = False


# The first ten: ImageNet-C (Hendrycks and Dietterich 2019, create_c/make_imagenet_c.py).
FAULTS: dict[str, Fault] = {
    "gaussian_noise": Fault(
        published.gaussian_noise, (0.08, 0.12, 0.18, 0.26, 0.38), "standard deviation, white is 1"
    ),
    "shot_noise": Fault(published.shot_noise, (60, 25, 12, 5, 3), "photons of a white pixel"),
    "impulse_noise": Fault(
        published.impulse_noise, (0.03, 0.06, 0.09, 0.17, 0.27), "share of the values"
    ),
    "defocus_blur": Fault(
        published.defocus_blur,
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        "radius of the disk, σ of its edge, pixels of 224",
    ),
    "motion_blur": Fault(
        published.motion_blur,
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        "radius and σ of the streak, pixels of 224",
    ),
    "fog": Fault(
        published.fog,
        ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
        "brightness of the fog, white is 1; decay of its roughness",
    ),
    "brightness": Fault(published.brightness, (0.1, 0.2, 0.3, 0.4, 0.5), "added, white is 1"),
    "contrast": Fault(published.contrast, (0.4, 0.3, 0.2, 0.1, 0.05), "share that is left"),
    "jpeg": Fault(published.jpeg, (25, 18, 15, 10, 7), "quality"),
    "pixelate": Fault(published.pixelate, (0.6, 0.5, 0.4, 0.3, 0.25), "scale, at 224"),
    # In physical units.
    "underexposure": Fault(light.exposure, (-1, -2, -3, -4, -5), "stops"),
    "overexposure": Fault(light.exposure, (1, 2, 3, 4, 5), "stops"),
    "black": Fault(light.black, (0.9, 0.95, 0.98, 0.99, 1.0), "share of the signal that is lost"),
    "white": Fault(light.white, (0.9, 0.95, 0.98, 0.99, 1.0), "share of the way to white"),
    "haze": Fault(light.haze, (400, 200, 100, 60, 30), "visibility in m (Koschmieder)"),
    "colour_cast": Fault(
        light.colour_cast, (1.15, 1.3, 1.5, 1.8, 2.5), "gain of red, loss of blue, or reverse", True
    ),
    "swapped_channels": Fault(light.swapped_channels, (None,) * 5, "red and blue; one severity"),
    "upside_down": Fault(readout.upside_down, (None,) * 5, "one severity"),
    "dirt": Fault(lens.dirt, (0.02, 0.05, 0.1, 0.2, 0.4), "covered share of the image", True),
    "drops": Fault(lens.drops, (0.02, 0.05, 0.1, 0.2, 0.4), "covered share of the image", True),
    "tape": Fault(lens.tape, (0.02, 0.05, 0.1, 0.2, 0.4), "covered share of the image", True),
    "blocked_tiles": Fault(readout.blocked_tiles, (1, 2, 4, 8, 16), "tiles of 48", True),
    "half_missing": Fault(
        readout.missing_rows, (0.125, 0.25, 0.5, 0.625, 0.75), "share of rows, at the bottom", True
    ),
    "torn_rows": Fault(readout.torn_rows, (4, 8, 16, 32, 64), "shift in pixels of 480"),
    "repeated_rows": Fault(readout.repeated_rows, (4, 8, 16, 32, 64), "rows of 360"),
    "row_noise": Fault(readout.row_noise, (1, 2, 4, 8, 16), "standard deviation, grey levels"),
    "banding": Fault(light.banding, (0.02, 0.04, 0.08, 0.16, 0.32), "amplitude of the gain"),
    "dead_columns": Fault(readout.dead_columns, (1, 2, 4, 8, 16), "columns, black or white", True),
    # In time: only `apply_sequence` shows it; `apply` gives one frame of it.
    "flicker": Fault(light.flicker, (0.02, 0.05, 0.1, 0.2, 0.4), "amplitude of the gain"),
}


def apply(name: str, severity: int, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The image with a fault: BGR, `uint8`, height x width x 3, of the same size; not in place."""
    fault = _fault(name, severity)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        shape = " x ".join(map(str, image.shape))
        raise PenumbraError(f"a fault needs a BGR image of uint8, not {image.dtype} of {shape}")
    return fault.make(image, fault.constants[severity - 1], rng)


def apply_sequence(
    name: str, severity: int, images: Iterable[np.ndarray], seed: int
) -> Iterator[np.ndarray]:
    """The frames of a drive with a fault that lasts: what stays in place does so."""
    stays = _fault(name, severity).stays
    for number, image in enumerate(images):
        rng = np.random.default_rng(seed if stays else (seed, number))
        yield apply(name, severity, image, rng)


def _fault(name: str, severity: int) -> Fault:
    if name not in FAULTS:
        raise PenumbraError(f"no camera fault {name!r}: there are {', '.join(FAULTS)}")
    if severity not in SEVERITIES:
        raise PenumbraError(f"severity {severity} of {name}: it must be 1 to {SEVERITIES[-1]}")
    return FAULTS[name]

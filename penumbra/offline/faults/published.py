"""Faults with the constants of ImageNet-C (Hendrycks and Dietterich 2019).

The constants hold for images of 224 x 224. Here lengths (radius, streak, block, texture of the fog)
grow with the shorter side, so that they cover the same share of the image: at 480 x 360 by 360 /
224 = 1.61. What belongs to single pixels (noise, quality of JPEG) and what has no length
(brightness, contrast) is as published.
"""

from __future__ import annotations

import cv2
import numpy as np

from penumbra.image_files import decode_image

PUBLISHED_SIDE = 224


def length_scale(image: np.ndarray) -> float:
    """Pixels of the image for one of ImageNet-C's."""
    return min(image.shape[:2]) / PUBLISHED_SIDE


def to_uint8(values: np.ndarray) -> np.ndarray:
    """Grey levels, rounded and clipped."""
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def gaussian_noise(image: np.ndarray, std: float, rng: np.random.Generator) -> np.ndarray:
    """Gaussian noise, independent in every value."""
    noise = rng.standard_normal(image.shape, np.float32)
    return to_uint8(image + 255 * std * noise)


def shot_noise(image: np.ndarray, photons: float, rng: np.random.Generator) -> np.ndarray:
    """Poisson noise of so many photons in a white pixel."""
    return to_uint8(rng.poisson(image / 255 * photons) / photons * 255)


def impulse_noise(image: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """A share of the values is 0 or 255, half of it each."""
    drawn = rng.random(image.shape, np.float32)
    faulty = np.where(drawn < share / 2, np.uint8(0), image)
    return np.where(drawn > 1 - share / 2, np.uint8(255), faulty)


def defocus_blur(
    image: np.ndarray, disk: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
    """Convolution with a disk whose edge is softened."""
    radius, softening = (value * length_scale(image) for value in disk)
    reach = int(np.ceil(radius + 2))
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    kernel = (x**2 + y**2 <= radius**2).astype(np.float32)
    kernel = cv2.GaussianBlur(kernel, (0, 0), softening)
    return cv2.filter2D(image, -1, kernel / kernel.sum(), borderType=cv2.BORDER_REFLECT_101)


def motion_blur(
    image: np.ndarray, streak: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
    """A streak in a direction of -45 to 45 degrees, half of a Gaussian as ImageMagick's."""
    radius, std = (value * length_scale(image) for value in streak)
    angle = np.deg2rad(rng.uniform(-45, 45))
    steps = np.arange(int(2 * radius) + 1, dtype=np.float32)
    weights = np.exp(-(steps**2) / (2 * std**2))
    reach = len(steps)
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1), np.float32)
    # A step falls between four pixels: each has its bilinear share.
    x, y = reach + steps * np.cos(angle), reach + steps * np.sin(angle)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    for dx in (0, 1):
        for dy in (0, 1):
            share = (1 - np.abs(x - left - dx)) * (1 - np.abs(y - top - dy))
            np.add.at(kernel, (top + dy, left + dx), weights * share)
    return cv2.filter2D(image, -1, kernel / kernel.sum(), borderType=cv2.BORDER_REFLECT_101)


def fog(image: np.ndarray, fog: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """A bright plasma over the image, then darkened as a whole."""
    amount, decay = fog
    height, width = image.shape[:2]
    values = image.astype(np.float32) / 255
    brightest = float(values.max())
    # The published fractal has 256 pixels, of which 224 are used; its texture grows with the image.
    side = int(np.ceil(256 / PUBLISHED_SIDE * max(height, width)))
    plasma = cv2.resize(_plasma(decay, rng), (side, side), interpolation=cv2.INTER_CUBIC)
    values += amount * plasma[:height, :width, None]
    return to_uint8(255 * values * brightest / (brightest + amount))


def _plasma(decay: float, rng: np.random.Generator, side: int = 256) -> np.ndarray:
    """A fractal of 0 to 1 by midpoint displacement; each octave is weaker by decay squared."""
    heights: np.ndarray = np.zeros((1, 1), np.float32)
    amplitude = 1.0
    while len(heights) < side:
        cells = 2 * len(heights)
        # Periodic, as the published one: the first row and column continue behind the last.
        wrapped = np.pad(heights, (0, 1), mode="wrap")
        between = np.arange(cells, dtype=np.float32) / 2
        x, y = np.meshgrid(between, between)
        heights = cv2.remap(wrapped, x, y, cv2.INTER_LINEAR)
        heights = heights + amplitude * rng.uniform(-1, 1, heights.shape).astype(np.float32)
        amplitude /= decay**2
    heights -= heights.min()
    return heights / heights.max()


def brightness(image: np.ndarray, added: float, rng: np.random.Generator) -> np.ndarray:
    """Added to the value of HSV: the largest channel grows by it, the others in proportion."""
    values = image.astype(np.float32) / 255
    largest = values.max(axis=2, keepdims=True)
    lifted = np.minimum(largest + added, 1)
    return to_uint8(255 * np.where(largest > 0, values / np.maximum(largest, 1e-6), 1) * lifted)


def contrast(image: np.ndarray, left: float, rng: np.random.Generator) -> np.ndarray:
    """The difference to the mean of each channel, of which a share is left."""
    means = image.mean(axis=(0, 1), keepdims=True)
    return to_uint8((image - means) * left + means)


def jpeg(image: np.ndarray, quality: int, rng: np.random.Generator) -> np.ndarray:
    """Compressed and decompressed."""
    _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return decode_image(data.tobytes(), cv2.IMREAD_COLOR)


def pixelate(image: np.ndarray, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Blocks of one colour, as many along the shorter side as in an image of 224 pixels."""
    height, width = image.shape[:2]
    scale = int(PUBLISHED_SIDE * scale) / min(height, width)
    if scale >= 1:
        return image.copy()
    small = (max(1, round(scale * width)), max(1, round(scale * height)))
    blocks = cv2.resize(image, small, interpolation=cv2.INTER_AREA)
    return cv2.resize(blocks, (width, height), interpolation=cv2.INTER_NEAREST)

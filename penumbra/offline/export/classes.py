"""Colours of classes: SegNet's published palette, and distinct hues for other names."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable
from typing import Any

# Red, green, blue, as in the demo of SegNet's authors.
SEGNET_PALETTE = {
    "sky": (128, 128, 128),
    "building": (128, 0, 0),
    "pole": (192, 192, 128),
    "road": (128, 64, 128),
    "pavement": (60, 40, 222),
    "tree": (128, 128, 0),
    "sign": (192, 128, 128),
    "fence": (64, 64, 128),
    "car": (64, 0, 128),
    "pedestrian": (64, 64, 0),
    "bicyclist": (0, 128, 192),
}


def classes_with_colours(names: Iterable[str]) -> list[dict[str, Any]]:
    """The manifest's entries of classes, in the order of their labels."""
    return [
        {"name": name, "colour": list(SEGNET_PALETTE.get(name) or _colour(number))}
        for number, name in enumerate(names)
    ]


def _colour(number: int) -> tuple[int, int, int]:
    """Hues a golden section apart, so that consecutive classes differ."""
    red, green, blue = colorsys.hsv_to_rgb(number * 0.618034 % 1, 0.65, 0.9)
    return round(red * 255), round(green * 255), round(blue * 255)

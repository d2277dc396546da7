"""Parsing of options that hold two numbers: `480x360`, `1,1.3`."""

from __future__ import annotations

from penumbra.errors import PenumbraError


def width_and_height(text: str, name: str = "--size") -> tuple[int, int]:
    """Parse a size such as `480x360`, given as the option `name`."""
    try:
        width, height = map(int, text.lower().split("x"))
    except ValueError:
        width = height = 0
    if width < 1 or height < 1:
        raise PenumbraError(f"{name} {text!r}: write it as WIDTHxHEIGHT, such as 480x360")
    return width, height


def least_and_most(text: str, name: str) -> tuple[float, float]:
    """Parse a range such as `1,1.3`, given as the option `name`."""
    try:
        least, most = map(float, text.split(","))
        is_range = least <= most
    except ValueError:
        is_range = False
    if not is_range:
        raise PenumbraError(f"{name} {text!r}: write it as LEAST,MOST, such as 1,1.3")
    return least, most

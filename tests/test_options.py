"""Options that hold two numbers, and the errors for anything else."""

import re

import pytest

from penumbra.errors import PenumbraError
from penumbra.options import least_and_most, width_and_height


def test_valid_options():
    assert width_and_height("480x360") == width_and_height("480X360") == (480, 360)
    assert least_and_most("1,1.3", "--scales") == (1.0, 1.3)


@pytest.mark.parametrize("text", ["", "480", "480x", "480x360x3", "wide", "4.5x3", "0x360", "-4x3"])
def test_an_invalid_size_is_rejected(text):
    with pytest.raises(PenumbraError, match=f"--crop '{text}': write it as WIDTHxHEIGHT"):
        width_and_height(text, "--crop")


@pytest.mark.parametrize("text", ["", "1", "1,", "1,2,3", "2,1", "few,many", "nan,2"])
def test_an_invalid_range_is_rejected(text):
    with pytest.raises(PenumbraError, match=re.escape(f"--zoom {text!r}: write it as LEAST,MOST")):
        least_and_most(text, "--zoom")

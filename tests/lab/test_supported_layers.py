"""docs/layers.md is the table that the registry makes."""

import subprocess
import sys
from pathlib import Path

import pytest

from penumbra.lab.supported_layers import _FAMILIES, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "layers.md"


@pytest.mark.slow
def test_the_page_is_up_to_date():
    # In a process of its own: other tests and the models register rules in this one.
    command = [sys.executable, "-m", "penumbra.lab.supported_layers"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert made == PAGE.read_text(), "run python -m penumbra.lab.supported_layers > docs/layers.md"


def test_the_table_has_the_usual_layers():
    for name in ("nn.Hardswish", "F.scaled_dot_product_attention", "nn.Conv2d"):
        assert f"`{name}`" in table()


@pytest.mark.parametrize("family", _FAMILIES)
def test_every_family_says_how_far_it_is_right(family):
    assert all(_FAMILIES[family])

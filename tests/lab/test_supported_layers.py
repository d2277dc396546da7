"""docs/layers.md is the table that the registry makes."""

from pathlib import Path

import pytest

from penumbra.lab.supported_layers import _FAMILIES, page, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "layers.md"


def test_the_page_is_up_to_date():
    # Rules of other tests and of the models are registered in the same process.
    lines = [line for line in page().splitlines() if not line.startswith("| ")]
    written = PAGE.read_text()
    assert all(line in written for line in lines), "run python -m penumbra.lab.supported_layers"
    for name in (
        "nn.Hardswish",
        "F.scaled_dot_product_attention",
        "nn.Conv2d",
        "torch.functional.einsum",
    ):
        assert f"`{name}`" in written and f"`{name}`" in table()


@pytest.mark.parametrize("family", _FAMILIES)
def test_every_family_says_how_far_it_is_right(family):
    assert all(_FAMILIES[family])

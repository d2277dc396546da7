"""The catalogue of networks: every one goes through as it is installed."""

from collections import Counter

import pytest
import torch

from penumbra.lab.experiments.networks.__main__ import table
from penumbra.lab.experiments.networks.catalogue import DROPOUT, ENTRIES, build
from penumbra.lab.experiments.networks.measurement import Row, image, measure
from penumbra.propagation import add_dropout, propagate
from penumbra.propagation.propagate import leaves


def test_the_catalogue_is_what_was_promised():
    counts = Counter(entry.source for entry in ENTRIES)
    assert len({entry.title for entry in ENTRIES}) == len(ENTRIES) >= 40
    for source in ("timm", "torchvision", "segmentation_models_pytorch"):
        assert counts[source] >= 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.title)
def test_it_goes_through(entry):
    try:
        model = build(entry)
    except ImportError as error:
        pytest.skip(f"{entry.source} is not installed: {error}")
    if entry.dropout is not None:
        model = add_dropout(model, DROPOUT, entry.dropout)
    x = image(entry.size)
    with torch.no_grad():
        found = leaves(propagate(model, example=x)(x))
    assert all(bool(value.std.isfinite().all()) for value in found)
    assert any(bool((value.std > 0).any()) for value in found)


def test_a_row_is_measured_and_shown():
    entry = next(e for e in ENTRIES if e.title == "own depth")
    row = measure(entry, samples=20)
    assert row.noise == 1 and row.coherent_error is not None
    shown = table([row, Row("another", 0, reason="no rule")])
    assert "| own depth | 1 |" in shown and "1 of 2 go through" in shown

"""Cached results are reused for the same facts only, and computed again if damaged."""

import numpy as np

from penumbra.lab.experiments.images.result_cache import cached


def test_cached_arrays_are_not_computed_again(tmp_path):
    file, made = tmp_path / "frames" / "a.npz", []

    def compute():
        made.append(1)
        return {"values": np.arange(3.0)}

    for facts, times in (({"seed": 0}, 1), ({"seed": 0}, 1), ({"seed": 1}, 2)):
        found = cached(file, facts, compute)
        assert list(found) == ["values"]
        np.testing.assert_array_equal(found["values"], [0, 1, 2])
        assert len(made) == times
    for damage in (b"", b"PK\x03\x04 cut off", file.read_bytes()[:-30]):
        file.write_bytes(damage)
        cached(file, {"seed": 1}, compute)
    assert len(made) == 5

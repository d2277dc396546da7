"""The first frame in a fresh process, and the peak of its memory."""

import numpy as np
import pytest
import tiny_bundles

from penumbra.lab.benchmarks.cold_start import fresh_process


def test_a_fresh_process_has_a_peak_of_its_own(tmp_path):
    """Not that of its parent, at which Linux's ru_maxrss starts."""
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    ballast = np.ones(800 << 20, np.uint8)
    found = fresh_process(bundle, (36, 48), "onnxruntime", 1, frames=2)
    assert ballast[-1] == 1
    assert 20 < found.megabytes < 800  # Python with numpy and the runtime has a tenth of that
    parts = found.import_seconds + found.load_seconds + found.infer_seconds
    assert found.seconds == pytest.approx(parts)

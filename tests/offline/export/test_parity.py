"""ONNX Runtime on the exported graph against PyTorch's propagation, on real frames.

There are two kinds of differences. Rounding differs everywhere, in the last digits. And where one
value of a pooling window exceeds another by just the margin, the two sides may select different
positions, which moves a value of the decoder by a pixel. Such flips are counted, and each is shown
to be that close; with the same selections on both sides everything else has to agree.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from exported_networks import network, reference, run, street

from penumbra.verification.parity import SIZES, Choices, selections, within


def compare(
    bundle, kind: str, image: np.ndarray, relu: str = "moment", softmax: str = "jacobian"
) -> Choices:
    names = selections(onnx.load(bundle.model_file))
    assert len(names) == 5
    found = run(bundle, image, names)
    flips = Choices([found[name] for name in names])
    expected = reference(kind, image, relu, flips, softmax)
    assert np.mean(found["labels"] == expected["labels"]) >= 0.9999
    assert within(found["uncertainty"], expected["uncertainty"], 1e-4, 1e-6) >= 0.999
    for name in ("confidence", "entropy", "max_logit"):
        assert within(found[name], expected[name], 1e-3, 1e-4) >= 0.9999
    assert found["frame_score"] == pytest.approx(expected["frame_score"], rel=1e-4)
    for name, value in expected.items():
        assert found[name].shape == np.shape(value)
        assert found[name].dtype == (np.uint8 if name == "labels" else np.float32)
    return flips


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[1]}x{size[0]}")
@pytest.mark.parametrize("kind", ["class", "encdec"])
def test_real_frames_of_any_size(exported, frame, kind, size):
    flips = compare(exported(kind), kind, frame(*size))
    print(f"\n{kind} {size}: {flips.flipped} flips in {flips.windows}, widest {flips.widest:.1e}")
    # Measured: 1 to 10 of 0.3 to 1.8 million.
    assert flips.flipped <= 1e-4 * flips.windows
    # Values of order one, sums of up to 4,608 rounded products: √4608 · 6e-8 = 4e-6.
    assert flips.widest <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("relu", ["moment", "jacobian"])
def test_fixed_size(exported, relu):
    image = street(67, 101)
    flips = compare(exported("encdec", height=67, width=101, relu=relu), "encdec", image, relu)
    assert flips.widest <= 1e-5


@pytest.mark.slow
def test_class_covariance(exported, frame):
    """One size: only the last layer differs from the test above."""
    options = {"height": 360, "width": 480, "softmax": "moment"}
    flips = compare(exported("class", **options), "class", frame(360, 480), softmax="moment")
    assert flips.widest <= 1e-5


@pytest.mark.slow
def test_flips_are_noticed(exported):
    """The tests above can fail: another selection in one window is detected."""
    bundle = exported("class")
    image = street(67, 101)
    names = selections(onnx.load(bundle.model_file))
    found = run(bundle, image, names)
    found[names[0]][0, 0, 3, 5] = (found[names[0]][0, 0, 3, 5] + 1) % 4
    flips = Choices([found[name] for name in names])
    reference("class", image, flips=flips)
    assert flips.flipped >= 1
    assert flips.widest > 1e-3
    assert network("class").training is False

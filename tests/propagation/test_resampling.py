"""Interpolation and padding as matrices: squared weights, exactly."""

import pytest
import torch
import torch.nn.functional as F
from function_models import Call
from torch import nn

from penumbra.propagation import Moments, PropagationError, propagate

RNG = torch.Generator().manual_seed(0)


def resampled(**settings):
    return Call(lambda x: F.interpolate(x, **settings))


SHAPES = {1: (1, 2, 5), 2: (1, 2, 4, 5), 3: (1, 1, 3, 2, 4)}
INTERPOLATIONS = {
    f"{mode}, {dimensions}d, {name}": (resampled(mode=mode, **settings), SHAPES[dimensions])
    for mode, dimensions, align in (
        ("nearest", 1, False), ("nearest", 2, False), ("nearest", 3, False),
        ("nearest-exact", 1, False), ("nearest-exact", 2, False), ("nearest-exact", 3, False),
        ("area", 1, False), ("area", 2, False), ("area", 3, False),
        ("linear", 1, True), ("bilinear", 2, True), ("trilinear", 3, True), ("bicubic", 2, True),
    )
    for name, settings in {
        "to a size": {"size": 7},
        "to a smaller size": {"size": 3},
        "by a factor": {"scale_factor": 2},
        "by a broken factor": {"scale_factor": 1.7},
        "by a broken factor, recomputed": {"scale_factor": 1.7, "recompute_scale_factor": True},
        "by a factor below one": {"scale_factor": 0.6},
        **({
            "corners, to a size": {"size": 7, "align_corners": True},
            "corners, by a factor": {"scale_factor": 2.3, "align_corners": True},
        } if align else {}),
        **({
            "antialias": {"size": 2, "antialias": True},
            "antialias, by a factor": {"scale_factor": 0.55, "antialias": True},
            "antialias, corners": {"size": 3, "antialias": True, "align_corners": True},
        } if mode in ("bilinear", "bicubic") else {}),
        **({
            "two sizes": {"size": (3, 9)},
            "two factors": {"scale_factor": (1.5, 0.7)},
        } if dimensions == 2 else {}),
    }.items()
}  # fmt: skip
LAYERS = {
    "Upsample": (nn.Upsample(scale_factor=2), (1, 2, 3, 4)),
    "Upsample to a size": (nn.Upsample((5, 3), mode="bilinear"), (1, 2, 3, 4)),
    "Upsample, corners": (
        nn.Upsample(scale_factor=(2, 3), mode="bilinear", align_corners=True), (1, 2, 3, 4),
    ),
    "Upsample, bicubic, recomputed": (
        nn.Upsample(scale_factor=1.3, mode="bicubic", recompute_scale_factor=True), (1, 2, 3, 4),
    ),
    "UpsamplingNearest2d": (nn.UpsamplingNearest2d(scale_factor=2), (1, 2, 3, 4)),
    "UpsamplingBilinear2d": (nn.UpsamplingBilinear2d((5, 6)), (1, 2, 3, 4)),
    "PixelShuffle": (nn.PixelShuffle(2), (1, 8, 2, 3)),
    "PixelUnshuffle": (nn.PixelUnshuffle(2), (1, 2, 4, 2)),
    "ChannelShuffle": (nn.ChannelShuffle(2), (1, 4, 2, 3)),
}  # fmt: skip
PADDINGS = {
    "zeros": (Call(lambda x: F.pad(x, (1, 2))), (1, 2, 3)),
    "zeros, negative": (Call(lambda x: F.pad(x, (-1, 2, 1, -1))), (1, 2, 3, 4)),
    "zeros, channels": (Call(lambda x: F.pad(x, (0, 0, 0, 0, 1, 1))), (1, 2, 2, 3)),
    "a constant": (Call(lambda x: F.pad(x, (1, 0, 2, 1), value=3.5)), (1, 2, 3, 4)),
    "a constant, explicit mode": (Call(lambda x: F.pad(x, (1, 1), "constant", -1.0)), (2, 2, 3)),
    "reflect": (Call(lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect")), (1, 2, 3, 4)),
    "replicate": (Call(lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate")), (1, 2, 3, 4)),
    "circular": (Call(lambda x: F.pad(x, (2, 1, 1, 1), mode="circular")), (1, 2, 3, 4)),
    "ZeroPad1d": (nn.ZeroPad1d(2), (1, 2, 3)),
    "ZeroPad2d": (nn.ZeroPad2d((1, 2, 0, 1)), (1, 2, 3, 3)),
    "ZeroPad3d": (nn.ZeroPad3d(1), (1, 1, 2, 2, 2)),
    "ConstantPad1d": (nn.ConstantPad1d(2, 1.5), (1, 2, 3)),
    "ConstantPad2d": (nn.ConstantPad2d((1, 0, 2, 1), -2.0), (1, 2, 3, 3)),
    "ConstantPad3d": (nn.ConstantPad3d(1, 0.5), (1, 1, 2, 2, 2)),
    "ReflectionPad1d": (nn.ReflectionPad1d((2, 1)), (1, 2, 4)),
    "ReflectionPad2d": (nn.ReflectionPad2d((2, 1, 1, 0)), (1, 2, 3, 4)),
    "ReflectionPad3d": (nn.ReflectionPad3d(1), (1, 1, 2, 2, 3)),
    "ReplicationPad1d": (nn.ReplicationPad1d(2), (1, 2, 3)),
    "ReplicationPad2d": (nn.ReplicationPad2d((0, 1, 2, 3)), (1, 2, 3, 3)),
    "ReplicationPad3d": (nn.ReplicationPad3d(1), (1, 1, 2, 2, 2)),
    "CircularPad1d": (nn.CircularPad1d(2), (1, 2, 3)),
    "CircularPad2d": (nn.CircularPad2d((1, 2, 0, 1)), (1, 2, 3, 3)),
    "CircularPad3d": (nn.CircularPad3d(1), (1, 1, 2, 2, 2)),
    "ReflectionPad2d without batch": (nn.ReflectionPad2d(1), (2, 3, 4)),
}
EVERYTHING = {**INTERPOLATIONS, **LAYERS, **PADDINGS}


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.filterwarnings("ignore:The default behavior for interpolate")
def test_variance_is_the_matrix_with_squared_weights(name, matrix_of):
    model, shape = EVERYTHING[name]
    mean = torch.randn(shape, dtype=torch.float64, generator=RNG)
    variance = torch.rand(shape, dtype=torch.float64, generator=RNG)
    out = propagate(model)(Moments(mean, variance))
    matrix, _ = matrix_of(model, shape)
    expected = (matrix.square() @ variance.flatten()).reshape(out.mean.shape)
    assert torch.equal(out.mean, model(mean))
    # sums of at most 64 weights, each rounded in another order than in the matrix
    torch.testing.assert_close(out.variance, expected, rtol=1e-13, atol=1e-15)


def test_bilinear_shrinks_the_variance_between_two_elements():
    """Half of each of two: a quarter of each variance, not half of it."""
    x = Moments(torch.zeros(1, 1, 2), torch.ones(1, 1, 2))
    out = propagate(resampled(size=3, mode="linear", align_corners=True))(x)
    assert out.variance.flatten().tolist() == [1.0, 0.5, 1.0]


def test_an_uncertain_constant_is_refused():
    class PadWith(nn.Module):
        def forward(self, x, value):
            return F.pad(x, (1, 1), value=value)

    x = Moments(torch.zeros(1, 2), torch.ones(1, 2))
    with pytest.raises(PropagationError, match="constant of a padding"):
        propagate(PadWith())(x, Moments(torch.tensor(0.0), torch.tensor(1.0)))

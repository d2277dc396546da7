"""The resizing in a depth graph equals F.interpolate."""

import pytest
import torch
import torch.nn.functional as F

from penumbra.offline.export.frame import bilinear, scaled


@pytest.mark.parametrize("size", [(375, 1242), (243, 321), (128, 384), (40, 100), (1, 3)])
def test_equals_torch(size):
    x = torch.randn(1, 2, 128, 384, generator=torch.Generator().manual_seed(0))
    expected = F.interpolate(x, size, mode="bilinear", align_corners=False)
    # Positions are rounded: 384 · 6e-8 of a pixel, between neighbours that differ by up to 8.
    torch.testing.assert_close(bilinear(x, *size), expected, rtol=0, atol=8 * 384 * 6e-8)


@pytest.mark.parametrize("size", [(375, 1242), (243, 321), (128, 384), (40, 100), (1, 3), (2, 1)])
def test_equals_torch_for_the_image(size):
    pixels = torch.randint(256, (*size, 3), generator=torch.Generator().manual_seed(0)).float()
    expected = F.interpolate(
        pixels.permute(2, 0, 1).unsqueeze(0), (128, 384), mode="bilinear", align_corners=False
    )
    # As above, between neighbours that differ by up to 255; and two roundings of the value.
    result = scaled(pixels, 128, 384).unsqueeze(0)
    torch.testing.assert_close(result, expected, rtol=0, atol=255 * (max(size) + 2) * 6e-8)

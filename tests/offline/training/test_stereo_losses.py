"""The losses of Monodepth against hand-made cases and the exact stereo of the renderer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from penumbra.offline.datasets.stereo_matching import UNKNOWN
from penumbra.offline.scenes import Camera, stereo, street
from penumbra.offline.training.stereo_losses import (
    StereoLossWeights,
    appearance,
    dissimilarity,
    known_disparity,
    shifted,
    smoothness,
    stereo_loss,
)

torch.set_num_threads(1)


def constant(value: float, height: int = 4, width: int = 8) -> Tensor:
    return torch.full((1, 1, height, width), value)


# --- shifting -------------------------------------------------------------------------------------


def test_a_shift_by_whole_pixels_moves_the_columns():
    image = torch.arange(8.0).expand(1, 1, 4, 8)
    by_two = shifted(image, constant(2 / 8))
    assert torch.allclose(by_two[0, 0, 0], torch.tensor([2.0, 3, 4, 5, 6, 7, 7, 7]))
    back = shifted(image, constant(-1.5 / 8))
    assert torch.allclose(back[0, 0, 3], torch.tensor([0.0, 0, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5]))


def test_rows_do_not_move():
    image = torch.arange(4.0).view(1, 1, 4, 1).expand(1, 1, 4, 8).contiguous()
    assert torch.allclose(shifted(image, constant(0.37)), image, atol=1e-6)


# --- terms ----------------------------------------------------------------------------------------


def test_dissimilarity_by_hand():
    """One window: x is 0 … 8 in ninths, y the same plus a half. μ, σ² and the covariance follow."""
    x = (torch.arange(9.0) / 9).view(1, 1, 3, 3)
    y = x + 0.5
    mean_x = float(x.mean())
    variance = float(x.square().mean()) - mean_x**2  # of x, of y, and their covariance
    mean_y, c1, c2 = mean_x + 0.5, 1e-4, 9e-4
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    structure = (2 * variance + c2) / (2 * variance + c2)
    expected = (1 - luminance * structure) / 2
    found = dissimilarity(x, y)
    assert found.shape == (1, 1, 1, 1)
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_opposite_contrast_is_the_most_dissimilar():
    x = torch.tensor([[1.0, 0, 1], [0, 1, 0], [1, 0, 1]]).view(1, 1, 3, 3)
    # Covariance -σ²: nearly -1, times the luminance of means 5/9 and 4/9.
    assert 0.95 < float(dissimilarity(x, 1 - x)) <= 1


def test_appearance_weighs_structure_and_difference():
    x = torch.full((1, 3, 5, 5), 0.4, dtype=torch.float64)
    y = x + 0.2
    luminance = (2 * 0.4 * 0.6 + 1e-4) / (0.4**2 + 0.6**2 + 1e-4)
    expected = 0.85 * (1 - luminance) / 2 + 0.15 * 0.2
    assert float(appearance(x, y)) == pytest.approx(expected, rel=1e-4)
    assert float(appearance(x, x)) == pytest.approx(0, abs=1e-6)


def test_smoothness_lets_disparity_jump_at_an_edge_of_the_image():
    disparity = torch.zeros(1, 1, 2, 4)
    disparity[..., 2:] = 0.1  # one step in each of 2 rows with 3 differences
    flat, edged = torch.zeros(1, 3, 2, 4), torch.zeros(1, 3, 2, 4)
    edged[..., 2:] = 0.7
    assert float(smoothness(disparity, flat)) == pytest.approx(0.1 / 3)
    assert float(smoothness(disparity, edged)) == pytest.approx(0.1 / 3 * math.exp(-0.7))
    upright = disparity.transpose(2, 3)
    assert float(smoothness(upright, flat.transpose(2, 3))) == pytest.approx(0.1 / 3)


def test_known_disparities_count_as_relative_errors_where_they_are_known():
    disparity = torch.tensor([0.02, 0.04, 0.3, 0.001, 0.01, 0.01]).view(1, 1, 1, 6)
    truth = torch.tensor([0.01, 0.04, UNKNOWN, 0.0, 0.02, 0.06]).view(1, 1, 1, 6)
    # Half as far, right, left out, beyond the cap of 0.004 nothing is asked, twice as far, and six
    # times, where the error goes on as a logarithm.
    expected = (0.5 + 0 + 0 + 1 + 2 + 3 * math.log(2)) / 5
    assert float(known_disparity(disparity, truth, 0.004)) == pytest.approx(expected)
    nothing = torch.full_like(truth, UNKNOWN)
    assert float(known_disparity(disparity, nothing, 0.004)) == 0


def test_the_loss_is_the_weighted_sum_over_scales_and_images():
    torch.manual_seed(0)
    left, right = torch.rand(2, 2, 3, 16, 32).unbind()
    disparities = [torch.rand(2, 2, 16 // s, 32 // s) * 0.1 for s in (1, 2, 4)]
    known = torch.rand(2, 2, 16, 32) * 0.1
    parts = {
        name: float(
            stereo_loss(
                disparities, left, right, StereoLossWeights(**{**NOTHING, name: 1.0}), known, 1e-3
            )
        )
        for name in NOTHING
    }
    expected = 0.0
    for level, disparity in enumerate(disparities):
        small = [torch.nn.functional.avg_pool2d(image, 2**level) for image in (left, right)]
        for side, sign in ((0, -1), (1, 1)):
            own = disparity[:, side : side + 1]
            expected += float(smoothness(own, small[side])) / 2**level
            other = shifted(disparity[:, 1 - side : 2 - side], sign * own)
            parts["consistency"] -= float((own - other).abs().mean())
            parts["appearance"] -= float(
                appearance(small[side], shifted(small[1 - side], sign * own))
            )
    assert parts["smoothness"] == pytest.approx(expected, rel=1e-5)
    assert parts["consistency"] == pytest.approx(0, abs=1e-6)
    assert parts["appearance"] == pytest.approx(0, abs=1e-5)
    assert parts["known"] > 0


NOTHING = {"appearance": 0.0, "smoothness": 0.0, "consistency": 0.0, "known": 0.0}

# --- geometry, on a street with exact depth -------------------------------------------------------

CAMERA = Camera.kitti(384, 116, noise=0.0, supersample=2)


@pytest.fixture(scope="module")
def pair():
    left, right = stereo(street(4), CAMERA)

    def image(view):
        rgb = np.ascontiguousarray(view.image[..., ::-1])
        return torch.from_numpy(rgb).permute(2, 0, 1)[None].float() / 255

    def disparity(view):
        return torch.from_numpy(view.disparity(CAMERA) / CAMERA.width)[None, None].float()

    return image(left), image(right), disparity(left), disparity(right)


def visible(mine: Tensor, theirs: Tensor, sign: int) -> Tensor:
    """Where both images agree to half a pixel: visible in both, no edge in between."""
    width = mine.shape[-1]
    agree = (shifted(theirs, sign * mine) - mine).abs() < 0.5 / width
    column = torch.arange(width) + sign * mine * width
    return agree & (column >= 0) & (column <= width - 1)


@pytest.mark.parametrize("side", ["left", "right"])
def test_true_disparity_rebuilds_an_image_from_the_other(pair, side):
    left, right, of_left, of_right = pair
    image, other, own, theirs, sign = (
        (left, right, of_left, of_right, -1)
        if side == "left"
        else (right, left, of_right, of_left, 1)
    )
    seen = visible(own, theirs, sign)
    assert 0.6 < seen.float().mean() < 0.999  # most pixels are visible in both images

    def error(by: Tensor) -> float:
        return float(((shifted(other, by) - image).abs() * seen).sum() / seen.sum() / 3)

    right_way, not_moved, wrong_way = error(sign * own), error(0 * own), error(-sign * own)
    assert right_way < 0.02  # five of 255 grey levels: resampling, and highlights that move
    assert right_way < 0.5 * not_moved and right_way < 0.5 * wrong_way


def test_true_disparity_has_almost_no_loss_away_from_occlusions(pair):
    left, right, of_left, of_right = pair
    seen = visible(of_left, of_right, -1)[..., 1:-1, 1:-1].expand(-1, 3, -1, -1)
    structure = dissimilarity(left, shifted(right, -of_left))[seen].mean()
    unshifted = dissimilarity(left, right)[seen].mean()
    assert structure < 0.4 * unshifted
    consistency = (shifted(of_right, -of_left) - of_left).abs()[visible(of_left, of_right, -1)]
    assert float(consistency.mean()) * CAMERA.width < 0.1  # pixels


def test_descending_finds_the_disparity_of_a_shifted_texture():
    """A textured wall at one depth: from half of its disparity the gradient leads to it."""
    torch.manual_seed(1)
    height, width, truth = 32, 128, 6.0
    texture = torch.nn.functional.avg_pool2d(torch.rand(1, 3, height + 8, width + 40), 9, 1)
    texture = ((texture - 0.5) * 7 + 0.5).clamp(0, 1)  # the average has taken its contrast
    left, right = texture[..., 8 : 8 + width - 8], texture[..., 14 : 14 + width - 8]
    left, right = left[..., :height, :], right[..., :height, :]
    width = left.shape[-1]
    scores = torch.full((1, 2, 1, 1), 3.0 / width).requires_grad_()
    optimizer = torch.optim.Adam([scores], lr=0.3 / width)
    losses = []
    for _ in range(60):
        loss = stereo_loss([scores.expand(1, 2, height, width)], left, right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.3 * losses[0]
    assert torch.allclose(scores * width, torch.tensor(truth), atol=0.25)

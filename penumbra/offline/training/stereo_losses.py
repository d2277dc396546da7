"""The losses of Monodepth (Godard et al. 2017): reconstruction of each image from the other one.

Images are float in [0, 1], N x 3 x H x W; a disparity is N x 1 x H x W, in fractions of the width.
Column x of the left image is column x - d W of the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from penumbra.offline.datasets.stereo_matching import UNKNOWN

SSIM_SHARE = 0.85
"""Share of SSIM in the appearance term; the rest is the absolute difference."""


@dataclass(frozen=True)
class StereoLossWeights:
    """Weights of the terms. `known` (rendered or matched disparities) is not in the paper."""

    appearance: float = 1.0
    smoothness: float = 0.1
    consistency: float = 1.0
    known: float = 0.0


def stereo_loss(
    disparities: Sequence[Tensor],
    left: Tensor,
    right: Tensor,
    weights: StereoLossWeights = StereoLossWeights(),  # noqa: B008 (frozen)
    known: Tensor | None = None,
    least_disparity: float = 0.0,
) -> Tensor:
    """The sum of all terms over scales and both images.

        C = Σ_s  appearance + 0.1/r_s · smoothness + consistency,   r_s = 1, 2, 4, 8

    Args:
        disparities: from the finest scale on, each N x 2 x h x w (left, right).
        left, right: the pair at full size.
        weights: of the terms.
        known: N x 2 x H x W disparities, `UNKNOWN` where there is none.
        least_disparity: smaller `known` disparities are clamped to it (the maximal depth).
    """
    total = left.new_zeros(())
    for level, disparity in enumerate(disparities):
        if level:
            left, right = F.avg_pool2d(left, 2), F.avg_pool2d(right, 2)
        of_left, of_right = disparity[:, :1], disparity[:, 1:]
        total = total + weights.appearance * (
            appearance(left, shifted(right, -of_left)) + appearance(right, shifted(left, of_right))
        )
        total = total + weights.smoothness / 2**level * (
            smoothness(of_left, left) + smoothness(of_right, right)
        )
        total = total + weights.consistency * (
            (of_left - shifted(of_right, -of_left)).abs().mean()
            + (of_right - shifted(of_left, of_right)).abs().mean()
        )
        if known is not None and weights.known:
            step = 2**level
            truth = known[..., step // 2 :: step, step // 2 :: step]
            total = total + weights.known * known_disparity(disparity, truth, least_disparity)
    return total


def shifted(image: Tensor, by: Tensor) -> Tensor:
    """`image` sampled at x + by · W, linear between columns, with replicated borders.

    The left view is `shifted(right, -left disparity)`, the right `shifted(left, right disparity)`.
    """
    height, width = image.shape[-2:]
    # Pixel centres in the coordinates of grid_sample: -1 to 1 between the outer edges.
    columns = (torch.arange(width, device=by.device, dtype=by.dtype) * 2 + 1) / width - 1
    rows = (torch.arange(height, device=by.device, dtype=by.dtype) * 2 + 1) / height - 1
    x = columns + 2 * by.squeeze(1)
    y = rows.unsqueeze(1).expand_as(x)
    grid = torch.stack((x, y), dim=-1)
    return F.grid_sample(image, grid, padding_mode="border", align_corners=False)


def appearance(image: Tensor, reconstructed: Tensor) -> Tensor:
    """0.85 (1 - SSIM)/2 + 0.15 |I - Ĩ|, each averaged over the pixels."""
    return SSIM_SHARE * dissimilarity(image, reconstructed).mean() + (1 - SSIM_SHARE) * (
        (image - reconstructed).abs().mean()
    )


def dissimilarity(x: Tensor, y: Tensor) -> Tensor:
    """(1 - SSIM)/2 of every 3x3 window (Wang et al. 2004), from 0 to 1.

    SSIM = (2 μ_x μ_y + c₁)(2 σ_xy + c₂) / ((μ_x² + μ_y² + c₁)(σ_x² + σ_y² + c₂))
    """
    c1, c2 = 0.01**2, 0.03**2
    mean_x, mean_y = F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 1)
    var_x = F.avg_pool2d(x * x, 3, 1) - mean_x * mean_x
    var_y = F.avg_pool2d(y * y, 3, 1) - mean_y * mean_y
    covariance = F.avg_pool2d(x * y, 3, 1) - mean_x * mean_y
    ssim = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    ssim = ssim / ((mean_x * mean_x + mean_y * mean_y + c1) * (var_x + var_y + c2))
    return ((1 - ssim) / 2).clamp(0, 1)


def smoothness(disparity: Tensor, image: Tensor) -> Tensor:
    """|∂x d| e^-|∂x I| + |∂y d| e^-|∂y I|: penalises gradients except at edges of the image."""
    total = disparity.new_zeros(())
    for dim in (-1, -2):
        edge = torch.exp(-image.diff(dim=dim).abs().mean(1, keepdim=True))
        total = total + (disparity.diff(dim=dim).abs() * edge).mean()
    return total


_LINEAR_UP_TO = 3.0  # times the true depth; beyond, the loss is logarithmic


def known_disparity(disparity: Tensor, truth: Tensor, least_disparity: float) -> Tensor:
    """|z/z* - 1|, the relative error of depth, averaged over the pixels where d* is known.

    This is the metric abs_rel. Beyond three times the true depth it continues as a logarithm with
    the same slope, so that a few pixels mistaken for sky do not dominate the gradient.
    """
    is_known = truth > UNKNOWN / 2
    least = max(least_disparity, 1e-6)
    ratio = truth.clamp(min=least) / disparity.clamp(min=least)  # z / z*
    error = torch.where(
        ratio < _LINEAR_UP_TO,
        (ratio - 1).abs(),
        _LINEAR_UP_TO - 1 + _LINEAR_UP_TO * (ratio.clamp(min=_LINEAR_UP_TO) / _LINEAR_UP_TO).log(),
    )
    error = torch.where(is_known, error, torch.zeros_like(error))
    return error.sum() / is_known.sum().clamp(min=1)

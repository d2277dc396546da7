"""The whole frame as one module: the camera's image in, what the vehicle asks for out.

Everything between the camera driver and the decision is in the graph, so that nothing can differ
between the workshop and the road, and no byte more than needed crosses to the GPU and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from penumbra.errors import PenumbraError
from penumbra.propagation import Moments


@dataclass(frozen=True)
class OutputEntry:
    """An output's place in the manifest."""

    name: str
    dtype: str
    is_map: bool  # of the image's height and width; otherwise one number for the frame
    meaning: str
    unit: str
    optional: bool = False

    def entry(self, height: int | None, width: int | None) -> dict[str, Any]:
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": [height, width] if self.is_map else [],
            "meaning": self.meaning,
            "unit": self.unit,
            "optional": self.optional,
        }


class Scores(nn.Module):
    """A segmentation network's class scores (logits) and their softmax.

    The scores are `float32` whatever precision the network has: in half precision the variance of
    a softmax leaves the range of the numbers.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.softmax = nn.Softmax(dim=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.model(image).float()
        return scores, self.softmax(scores)


class FrameModule(nn.Module):
    """From a `uint8` image, height x width x 3, to the outputs in the order of `OUTPUTS`.

    `propagated` is the network, walked with moments. `mean` and `std` are its pixel statistics
    (RGB, 0 to 255); `size` is the height and width that it wants, None if it takes any.
    """

    OUTPUTS: tuple[OutputEntry, ...]

    def __init__(
        self,
        propagated: nn.Module,
        channel_order: str,
        mean: list[float],
        std: list[float],
        size: tuple[int, int] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.propagated = propagated
        self.size, self.dtype = size, dtype
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))
        # A Gather: torch's own flip and indexing become three transpositions in ONNX.
        order = torch.tensor([2, 1, 0]) if channel_order == "bgr" else None
        self.register_buffer("to_rgb", order)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        # Converted first: TensorRT has uint8 at its borders only.
        x = image.to(torch.float32)
        x = (x.permute(2, 0, 1) if self.size is None else scaled(x, *self.size)).unsqueeze(0)
        if self.to_rgb is not None:
            x = x.index_select(1, self.to_rgb)
        x = (x - self.mean) / self.std
        return self.outputs(self.propagated(x.to(self.dtype)), image)

    def outputs(self, result: Any, image: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError


class SegmentationFrame(FrameModule):
    """Labels, where they are unsure, and the scores that others judge by."""

    OUTPUTS = (
        OutputEntry(
            "labels", "uint8", True, "the most probable class of each pixel", "class number"
        ),
        OutputEntry(
            "uncertainty",
            "float32",
            True,
            "mean over the classes of the standard deviation of the class probability",
            "probability",
        ),
        OutputEntry(
            "confidence", "float32", True, "the largest mean class probability", "probability"
        ),
        OutputEntry(
            "frame_score", "float32", False, "mean uncertainty of the frame", "probability"
        ),
        OutputEntry(
            "entropy", "float32", True, "entropy of the mean class probabilities", "nat", True
        ),
        OutputEntry("max_logit", "float32", True, "the largest mean class score", "logit", True),
    )

    def outputs(self, result: tuple[Moments, Moments], image: Tensor) -> tuple[Tensor, ...]:
        logits, probabilities = result
        p = probabilities.mean
        uncertainty = probabilities.std.mean(1).squeeze(0)
        entropy = -(p * p.clamp(min=torch.finfo(p.dtype).tiny).log()).sum(1)
        return (
            p.argmax(1).squeeze(0).to(torch.uint8),
            uncertainty,
            p.amax(1).squeeze(0),
            uncertainty.mean(),
            entropy.squeeze(0),
            logits.mean.amax(1).squeeze(0),
        )


class DepthFrame(FrameModule):
    """Disparity at the camera's own size; metres are made of it where the camera is known."""

    OUTPUTS = (
        OutputEntry("disparity", "float32", True, "disparity to a right camera", "image widths"),
        OutputEntry(
            "uncertainty", "float32", True, "standard deviation of the disparity", "image widths"
        ),
        OutputEntry(
            "frame_score", "float32", False, "mean uncertainty of the frame", "image widths"
        ),
    )

    def outputs(self, result: Moments, image: Tensor) -> tuple[Tensor, ...]:
        height, width = image.shape[:2]
        disparity = bilinear(result.mean.float().squeeze((0, 1)), height, width)
        uncertainty = bilinear(result.std.float().squeeze((0, 1)), height, width)
        return disparity, uncertainty, uncertainty.mean()


def bilinear(x: Tensor, height: int, width: int) -> Tensor:
    """`x` (N, C, h, w) at another size, as F.interpolate does it (align_corners=False).

    Rows are copied as they are, columns as the rows of the transposed picture. That takes OpenVINO
    a tenth of the time of its own Interpolate, and ONNX Runtime three quarters (two maps of 384x128
    to 1242x375: 1.1 ms and 1.0 ms).
    """
    return _between_rows(_between_rows(x.mT, width).mT, height)


def scaled(image: Tensor, height: int, width: int) -> Tensor:
    """`bilinear` of an image whose channels are last; they are first in what is returned.

    The rows first: a camera has more of them than the network, and there is less to transpose.
    """
    rows = _between_rows(image.flatten(1), height).unflatten(1, image.shape[1:])
    return _between_rows(rows.permute(2, 1, 0), width).mT


def _between_rows(x: Tensor, size: int) -> Tensor:
    rows = x.shape[-2]
    centres = torch.arange(size, dtype=x.dtype, device=x.device) + 0.5
    positions = (centres * (rows / size) - 0.5).clamp(0, rows - 1)
    before = positions.floor()
    index, share = before.to(torch.int64), (positions - before).unsqueeze(1)
    above = x.index_select(-2, index)
    below = x.index_select(-2, (index + 1).clamp(max=rows - 1))
    return above + (below - above) * share


def _itself(model: nn.Module) -> nn.Module:
    return model


# Architecture → its task, its frame, and what is propagated of it.
FRAMES: dict[str, tuple[str, type[FrameModule], Callable[[nn.Module], nn.Module]]] = {
    "segnet": ("segmentation", SegmentationFrame, Scores),
    "monodepth": ("depth", DepthFrame, _itself),
}


def frame_of(architecture: str) -> tuple[str, type[FrameModule], Callable[[nn.Module], nn.Module]]:
    """Task, frame and head of an architecture; PenumbraError where none is known."""
    if architecture not in FRAMES:
        raise PenumbraError(
            f"no export for the architecture {architecture!r}: add it to "
            f"penumbra.offline.export.frame (known: {', '.join(FRAMES)})"
        )
    return FRAMES[architecture]

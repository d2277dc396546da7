"""The exported module: camera image in; prediction, uncertainty and scores out.

Pre- and post-processing are part of the graph, so that they cannot differ between export and
vehicle, and only the image and the outputs are copied to and from the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from penumbra.errors import PenumbraError
from penumbra.propagation import Moments


@dataclass(frozen=True)
class OutputEntry:
    """An output as the manifest describes it."""

    name: str
    dtype: str
    is_map: bool  # of the size of the image; otherwise one number or a vector per frame
    meaning: str
    unit: str
    optional: bool = False
    role: str = "map"
    length: int | None = None  # of a vector

    def entry(self, height: int | None, width: int | None) -> dict[str, Any]:
        """The entry in the manifest, for images of this size."""
        vector = [] if self.length is None else [self.length]
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": [height, width] if self.is_map else vector,
            "meaning": self.meaning,
            "unit": self.unit,
            "optional": self.optional,
            "role": self.role,
        }


class Scores(nn.Module):
    """A segmentation network's class scores (logits) and their softmax.

    The scores are always `float32`: in half precision the variance of a softmax is out of range.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.softmax = nn.Softmax(dim=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and probabilities of a batch."""
        scores = self.model(image).float()
        return scores, self.softmax(scores)


class FrameModule(nn.Module):
    """From a `uint8` image (height x width x 3) to the outputs in the order of `entries`.

    Args:
        propagated: the network, which returns moments; with `statistics`, as `add_taps` leaves it.
        channel_order: of the image, `bgr` or `rgb`.
        mean, std: pixel statistics of the network (RGB, 0 to 255).
        size: its input height and width; None: any.
        dtype: its precision.
        statistics: how many statistics of each tap it returns beside the moments.
    """

    OUTPUTS: tuple[OutputEntry, ...]
    mean: Tensor
    std: Tensor
    to_rgb: Tensor | None

    def __init__(
        self,
        propagated: nn.Module,
        channel_order: str,
        mean: list[float],
        std: list[float],
        size: tuple[int, int] | None = None,
        dtype: torch.dtype = torch.float32,
        statistics: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.propagated = propagated
        self.size, self.dtype, self.statistics = size, dtype, statistics
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))
        # A Gather: torch's flip and indexing become three transpositions in ONNX.
        order = torch.tensor([2, 1, 0]) if channel_order == "bgr" else None
        self.register_buffer("to_rgb", order)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """The outputs of one image."""
        # Converted first: TensorRT supports uint8 only as an input or output.
        x = image.to(torch.float32)
        x = (x.permute(2, 0, 1) if self.size is None else scaled(x, *self.size)).unsqueeze(0)
        if self.to_rgb is not None:
            x = x.index_select(1, self.to_rgb)
        x = (x - self.mean) / self.std
        result = self.propagated(x.to(self.dtype))
        if not self.statistics:
            return self.outputs(result, image)
        result, statistics = result
        return *self.outputs(result, image), torch.cat([tap.mean for tap in statistics])

    @property
    def entries(self) -> tuple[OutputEntry, ...]:
        """All outputs: those of the task, and the statistics of features."""
        if not self.statistics:
            return self.OUTPUTS
        return *self.OUTPUTS, OutputEntry(
            "statistics",
            "float32",
            False,
            "means and standard deviations of the channels of features, tap by tap",
            "feature",
            role="statistics",
            length=sum(self.statistics),
        )

    def outputs(self, result: Any, image: Tensor) -> tuple[Tensor, ...]:
        """The outputs from the moments of the network."""
        raise NotImplementedError


class SegmentationFrame(FrameModule):
    """Labels, uncertainty, confidence and scores of a segmentation."""

    OUTPUTS = (
        OutputEntry(
            "labels",
            "uint8",
            True,
            "the most probable class of each pixel",
            "class number",
            role="prediction",
        ),
        OutputEntry(
            "uncertainty",
            "float32",
            True,
            "mean over the classes of the standard deviation of the class probability",
            "probability",
            role="uncertainty",
        ),
        OutputEntry(
            "confidence",
            "float32",
            True,
            "the largest mean class probability",
            "probability",
            role="confidence",
        ),
        OutputEntry(
            "frame_score",
            "float32",
            False,
            "mean uncertainty of the frame",
            "probability",
            role="score",
        ),
        OutputEntry(
            "entropy", "float32", True, "entropy of the mean class probabilities", "nat", True
        ),
        OutputEntry("max_logit", "float32", True, "the largest mean class score", "logit", True),
    )

    def outputs(self, result: tuple[Moments, Moments], image: Tensor) -> tuple[Tensor, ...]:
        """The outputs from the moments of scores and probabilities."""
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
    """Disparity and its uncertainty at the size of the image; the vehicle converts to metres."""

    OUTPUTS = (
        OutputEntry(
            "disparity",
            "float32",
            True,
            "disparity to a right camera",
            "image widths",
            role="prediction",
        ),
        OutputEntry(
            "uncertainty",
            "float32",
            True,
            "standard deviation of the disparity",
            "image widths",
            role="uncertainty",
        ),
        OutputEntry(
            "frame_score",
            "float32",
            False,
            "mean uncertainty of the frame",
            "image widths",
            role="score",
        ),
    )

    def outputs(self, result: Moments, image: Tensor) -> tuple[Tensor, ...]:
        """The outputs from the moments of the disparity."""
        height, width = image.shape[:2]
        disparity = bilinear(result.mean.float().squeeze((0, 1)), height, width)
        uncertainty = bilinear(result.std.float().squeeze((0, 1)), height, width)
        return disparity, uncertainty, uncertainty.mean()


def bilinear(x: Tensor, height: int, width: int) -> Tensor:
    """`x` (…, h, w) at another size, like bilinear F.interpolate (align_corners=False).

    Interpolates rows, and columns as the rows of the transposed map. That takes OpenVINO a tenth of
    the time of its Interpolate, and ONNX Runtime three quarters (two maps from 384x128 to 1242x375:
    1.1 ms and 1.0 ms).
    """
    return _between_rows(_between_rows(x.mT, width).mT, height)


def scaled(image: Tensor, height: int, width: int) -> Tensor:
    """`bilinear` of a channels-last image; the result is channels-first.

    Rows come first: the image has more of them than the network's input, so less is transposed.
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


class FrameSpec(NamedTuple):
    """How an architecture is exported."""

    task: str
    frame: type[FrameModule]
    head: Callable[[nn.Module], nn.Module]  # from the network to the module that is propagated


FRAMES = {
    "segnet": FrameSpec("segmentation", SegmentationFrame, Scores),
    "monodepth": FrameSpec("depth", DepthFrame, _itself),
}


def frame_of(architecture: str) -> FrameSpec:
    """How `architecture` is exported; PenumbraError if it is unknown."""
    if architecture not in FRAMES:
        raise PenumbraError(
            f"no export for the architecture {architecture!r}: add it to "
            f"penumbra.offline.export.frame (it has {', '.join(FRAMES)})"
        )
    return FRAMES[architecture]

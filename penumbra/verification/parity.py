"""What the runners make of a bundle's graph, against PyTorch's propagation of the network itself.

Two kinds of differences are told apart. Rounding differs everywhere, in the last digits. And where
one value of a pooling window leads another by just the margin that it needs (`pooling.MARGIN`), one
side takes the one and one the other, and a decoder layer is moved by a pixel there. Such flips are
counted; with the same choices made on both sides, all the rest has to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import onnx
import torch
from torch import Tensor

from penumbra.bundle import MODEL, Bundle
from penumbra.errors import PenumbraError
from penumbra.image_files import read_image_file
from penumbra.offline.export.frame import FrameModule, frame_of
from penumbra.offline.export.walk import walk_of_bundle
from penumbra.offline.models import load_model, pooling
from penumbra.vehicle.runners import create

PREDICTION, UNCERTAINTY = 0.9999, 0.999  # the shares of equal pixels that are asked for
RELATIVE, ABSOLUTE = 1e-4, 1e-6  # differences of an uncertainty, or a disparity, that are none
SIZES = [(360, 480), (375, 1242), (243, 321)]  # CamVid's, KITTI's, and one that nothing divides
_SUFFIXES = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class Agreement:
    """The shares of pixels with an equal label (or disparity), and with an equal uncertainty."""

    prediction: float
    uncertainty: float

    @classmethod
    def of(cls, found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> Agreement:
        if "labels" in expected:
            prediction = float(np.mean(found["labels"] == expected["labels"]))
        else:
            prediction = within(found["disparity"], expected["disparity"])
        return cls(prediction, within(found["uncertainty"], expected["uncertainty"]))

    @property
    def enough(self) -> bool:
        return self.prediction >= PREDICTION and self.uncertainty >= UNCERTAINTY


@dataclass(frozen=True)
class Parity:
    """One image on one runner."""

    runner: str
    height: int
    width: int
    image: str
    free: Agreement  # as the runner is
    aligned: Agreement  # with the runner's choices in all poolings of the reference
    windows: int
    flipped: int  # windows in which the runner chose another value
    widest: float  # by how much, at most, a lead in such a window missed the margin or passed it


def within(
    found: np.ndarray, expected: np.ndarray, relative: float = RELATIVE, absolute: float = ABSOLUTE
) -> float:
    """The share of pixels that are within the tolerance."""
    return float(np.mean(np.abs(found - expected) <= relative * np.abs(expected) + absolute))


def measure(
    bundle: Bundle,
    files: Sequence[Path],
    runners: Sequence[str],
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> Iterator[Parity]:
    """Every image in every size (height, width) on every runner, as each is done."""
    frame = reference_frame(bundle)
    wanted = [frame.OUTPUTS[0].name, "uncertainty"]
    with TemporaryDirectory() as scratch:
        shown, names = showing_choices(bundle, Path(scratch))
        for size in sizes:
            pictures = {file.name: _scaled(file, size, bundle) for file in files}
            expected = {name: outputs_of(frame, image) for name, image in pictures.items()}
            for kind in runners:
                with (
                    create(kind, bundle, wanted) as runner,
                    create(kind, shown, [*wanted, *names]) as telling,
                ):
                    for name, image in pictures.items():
                        free = Agreement.of(runner.infer(image), expected[name])
                        told = telling.infer(image)
                        choices = Choices([told[chosen] for chosen in names])
                        aligned = Agreement.of(told, outputs_of(frame, image, choices))
                        yield Parity(
                            kind, *size, name, free, aligned,
                            choices.windows, choices.flipped, choices.widest,
                        )  # fmt: skip


def spread(folder: Path, count: int) -> list[Path]:
    """So many of the pictures in `folder`, evenly from the first on."""
    if not folder.is_dir():
        raise PenumbraError(f"no folder {folder}: --images is one with pictures (PNG or JPEG)")
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
    if not files:
        raise PenumbraError(f"no image (JPEG or PNG) in {folder}")
    count = min(count, len(files))
    return [files[number * len(files) // count] for number in range(count)]


def _scaled(file: Path, size: tuple[int, int], bundle: Bundle) -> np.ndarray:
    image = cv2.resize(
        read_image_file(file, cv2.IMREAD_COLOR), size[::-1], interpolation=cv2.INTER_AREA
    )
    return image if bundle.input.channel_order == "bgr" else image[..., ::-1]


@dataclass
class Choices:
    """Poolings that take what another has chosen, and note where they would have differed."""

    forced: list[np.ndarray]  # phases 0 to 3 of each window, pooling by pooling
    own: Callable[..., Tensor] = pooling.winner
    windows: int = 0
    flipped: int = 0
    widest: float = 0.0  # the farthest that a flipped lead was from the margin

    def winner(self, *phases: Tensor) -> Tensor:
        """The other's choice in each window, and a note of how the own one differs."""
        forced = torch.from_numpy(self.forced.pop(0))
        own = self.own(*phases)
        flipped = own != forced
        self.windows += own.numel()
        self.flipped += int(flipped.sum())
        if flipped.any():
            self.widest = max(self.widest, float(_distance(phases, own, forced)[flipped].max()))
        return forced

    @contextmanager
    def made(self) -> Iterator[None]:
        """Within, every pooling with a selection is this one: the walk knows of no other way in."""
        pooling.winner = self.winner
        try:
            yield
        finally:
            pooling.winner = self.own


def _distance(phases: Sequence[Tensor], own: Tensor, other: Tensor) -> Tensor:
    """How far the comparison on which two choices disagree was from tipping over, relatively."""

    def from_margin(challenger: Tensor, holder: Tensor) -> Tensor:
        smaller = torch.minimum(challenger.abs(), holder.abs())
        return ((challenger - holder) / (1 + smaller) - pooling.MARGIN).abs()

    first, second, third, fourth = phases
    between = from_margin(torch.maximum(third, fourth), torch.maximum(first, second))
    within_half = torch.where(own < 2, from_margin(second, first), from_margin(fourth, third))
    return torch.where((own < 2) == (other < 2), within_half, between)


def reference_frame(bundle: Bundle) -> FrameModule:
    """The frame that was exported, but of the network as it was trained, with native poolings."""
    model = load_model(bundle.weights_file)
    _, kind, _ = frame_of(bundle.manifest["variant"]["architecture"])
    walk = walk_of_bundle(bundle, model, folded=False)
    size = tuple(model.config["size"]) if "size" in model.config else None
    order = bundle.input.channel_order
    return kind(walk, order, model.config["mean"], model.config["std"], size).eval()


def outputs_of(
    frame: FrameModule, image: np.ndarray, choices: Choices | None = None
) -> dict[str, np.ndarray]:
    """By name, computed by PyTorch."""
    pixels = torch.from_numpy(np.ascontiguousarray(image))
    with torch.inference_mode():
        if choices is None:
            values = frame(pixels)
        else:
            with choices.made():
                values = frame(pixels)
    return {out.name: value.numpy() for out, value in zip(frame.OUTPUTS, values, strict=True)}


def selections(model: onnx.ModelProto) -> list[str]:
    """The names of the poolings' selections in a graph, from the first to the last."""
    integers = {
        value.name
        for value in model.graph.value_info
        if value.type.tensor_type.elem_type == onnx.TensorProto.INT32
    }
    chosen = (node.output[0] for node in model.graph.node if node.op_type == "Where")
    return [name for name in chosen if name in integers]


def showing_choices(bundle: Bundle, folder: Path) -> tuple[Bundle, list[str]]:
    """A copy of the bundle that also puts out what its poolings select, and the outputs' names."""
    model = onnx.load(bundle.model_file)
    names = selections(model)
    for name in names:
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    onnx.save(model, folder / MODEL)
    shown = [
        {"name": name, "dtype": "int32", "shape": [], "meaning": "", "unit": "", "optional": True}
        for name in names
    ]
    manifest = {**bundle.manifest, "outputs": [*bundle.manifest["outputs"], *shown]}
    return Bundle(folder, manifest), names

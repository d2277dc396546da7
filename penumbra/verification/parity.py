"""Parity: the runners' results of a bundle's graph against PyTorch's propagation of the network.

There are two kinds of differences. Rounding differs everywhere, in the last digits. And where one
value of a pooling window leads another by just the required margin (`pooling.MARGIN`), the two
sides may select different values, which moves a decoder layer by a pixel there. Such flips are
counted; with the same selections on both sides, everything else has to agree.
"""

from __future__ import annotations

import hashlib
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

PREDICTION, UNCERTAINTY = 0.9999, 0.999  # required shares of equal pixels
RELATIVE, ABSOLUTE = 1e-4, 1e-6  # of uncertainty or disparity: rounding
SIZES = [(360, 480), (375, 1242), (243, 321)]  # CamVid, KITTI, and one without common divisors
_SUFFIXES = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class Agreement:
    """The shares of pixels with an equal label (or disparity), and with an equal uncertainty."""

    prediction: float
    uncertainty: float

    @classmethod
    def of(cls, found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> Agreement:
        """Compare the outputs of one image."""
        if "labels" in expected:
            prediction = float(np.mean(found["labels"] == expected["labels"]))
        else:
            prediction = within(found["disparity"], expected["disparity"])
        return cls(prediction, within(found["uncertainty"], expected["uncertainty"]))

    @property
    def enough(self) -> bool:
        """Whether both shares reach what is required."""
        return self.prediction >= PREDICTION and self.uncertainty >= UNCERTAINTY


@dataclass(frozen=True)
class Parity:
    """One image on one runner."""

    runner: str
    height: int
    width: int
    image: str
    free: Agreement  # each side with its own selections
    aligned: Agreement  # the reference with the runner's selections in all poolings
    windows: int
    flipped: int  # windows with different selections
    widest: float  # largest distance of a flipped lead from the margin


def within(
    found: np.ndarray, expected: np.ndarray, relative: float = RELATIVE, absolute: float = ABSOLUTE
) -> float:
    """The share of pixels within the tolerance."""
    return float(np.mean(np.abs(found - expected) <= relative * np.abs(expected) + absolute))


def measure(
    bundle: Bundle,
    files: Sequence[Path],
    runners: Sequence[str],
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> Iterator[Parity]:
    """Every image in every size (height, width) on every runner, one result at a time."""
    frame = reference_frame(bundle)
    wanted = [frame.OUTPUTS[0].name, "uncertainty"]
    with TemporaryDirectory() as scratch:
        shown, names = showing_choices(bundle, Path(scratch))
        for size in sizes:
            images = {file.name: _scaled(file, size, bundle) for file in files}
            expected = {name: outputs_of(frame, image) for name, image in images.items()}
            for kind in runners:
                with (
                    create(kind, bundle, wanted) as runner,
                    create(kind, shown, [*wanted, *names]) as showing,
                ):
                    for name, image in images.items():
                        free = Agreement.of(runner.infer(image), expected[name])
                        outputs = showing.infer(image)
                        choices = Choices([outputs[chosen] for chosen in names])
                        aligned = Agreement.of(outputs, outputs_of(frame, image, choices))
                        yield Parity(
                            kind, *size, name, free, aligned,
                            choices.windows, choices.flipped, choices.widest,
                        )  # fmt: skip


def spread(folder: Path, count: int) -> list[Path]:
    """`count` of the images in `folder`, evenly spaced from the first on."""
    if not folder.is_dir():
        raise PenumbraError(f"no folder {folder}: --images needs one with images (PNG or JPEG)")
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
    """Forces the selections of another side on all poolings, and counts where they differ."""

    forced: list[np.ndarray]  # phases 0 to 3 of each window, pooling by pooling
    own: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = pooling.winner
    windows: int = 0
    flipped: int = 0
    widest: float = 0.0  # largest distance of a flipped lead from the margin

    def winner(self, first: Tensor, second: Tensor, third: Tensor, fourth: Tensor) -> Tensor:
        """The forced selection in each window; flips against the own one are counted."""
        phases = first, second, third, fourth
        forced = torch.from_numpy(self.forced.pop(0))
        own = self.own(*phases)
        flipped = own != forced
        self.windows += own.numel()
        self.flipped += int(flipped.sum())
        if flipped.any():
            self.widest = max(self.widest, float(_distance(phases, own, forced)[flipped].max()))
        return forced

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within, every pooling with a selection uses this one; the walk has no other hook."""
        before = pooling.winner
        pooling.winner = self.winner
        try:
            yield
        finally:
            pooling.winner = before


def _distance(phases: Sequence[Tensor], own: Tensor, other: Tensor) -> Tensor:
    """The relative distance from the margin of the comparison in which two selections differ."""

    def from_margin(challenger: Tensor, holder: Tensor) -> Tensor:
        smaller = torch.minimum(challenger.abs(), holder.abs())
        return ((challenger - holder) / (1 + smaller) - pooling.MARGIN).abs()

    first, second, third, fourth = phases
    between = from_margin(torch.maximum(third, fourth), torch.maximum(first, second))
    within_half = torch.where(own < 2, from_margin(second, first), from_margin(fourth, third))
    return torch.where((own < 2) == (other < 2), within_half, between)


def reference_frame(bundle: Bundle) -> FrameModule:
    """The exported frame, but of the network as it was trained, with native poolings."""
    model = load_model(bundle.weights_file)
    _, kind, _ = frame_of(bundle.variant["architecture"])
    walk = walk_of_bundle(bundle, model, folded=False)
    order = bundle.input.channel_order
    return kind(walk, order, model.pixel_mean, model.pixel_std, model.input_size).eval()


def outputs_of(
    frame: FrameModule, image: np.ndarray, choices: Choices | None = None
) -> dict[str, np.ndarray]:
    """The outputs by name, computed by PyTorch."""
    pixels = torch.from_numpy(np.ascontiguousarray(image))
    with torch.inference_mode():
        if choices is None:
            values = frame(pixels)
        else:
            with choices.applied():
                values = frame(pixels)
    return {out.name: value.numpy() for out, value in zip(frame.entries, values, strict=True)}


def selections(model: onnx.ModelProto) -> list[str]:
    """The names of the poolings' selections in a graph, in order."""
    integers = {
        value.name
        for value in model.graph.value_info
        if value.type.tensor_type.elem_type == onnx.TensorProto.INT32
    }
    chosen = (node.output[0] for node in model.graph.node if node.op_type == "Where")
    return [name for name in chosen if name in integers]


def showing_choices(bundle: Bundle, folder: Path) -> tuple[Bundle, list[str]]:
    """A copy of the bundle that also outputs the selections of its poolings, and their names."""
    model = onnx.load(bundle.model_file)
    names = selections(model)
    for name in names:
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    graph = model.SerializeToString()
    (folder / MODEL).write_bytes(graph)
    shown = [
        {
            "name": name,
            "dtype": "int32",
            "shape": [],
            "meaning": "",
            "unit": "",
            "optional": True,
            "role": "map",
        }
        for name in names
    ]
    manifest = {
        **bundle.manifest,
        "outputs": [*bundle.manifest["outputs"], *shown],
        "files": {**bundle.files, MODEL: hashlib.sha256(graph).hexdigest()},
    }
    return Bundle(folder, manifest), names

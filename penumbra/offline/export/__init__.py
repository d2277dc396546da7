"""From a checkpoint to a bundle: the model, walked with moments, as one graph for the vehicle."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import penumbra
from penumbra.bundle import Bundle, write_bundle
from penumbra.errors import PenumbraError
from penumbra.offline.export.classes import classes_with_colours
from penumbra.offline.export.frame import FrameModule, frame_of
from penumbra.offline.export.graph import to_bytes, to_onnx
from penumbra.offline.export.operators import refuse_unsupported
from penumbra.offline.export.precision import mean_in_half
from penumbra.offline.export.walk import walk_of
from penumbra.offline.gains_file import GAINS, gains_file, load_gains
from penumbra.offline.models import WEIGHTS, build_model, load_model, read_header
from penumbra.propagation.registry import diagonal
from penumbra.propagation.tracing import is_noise

# Smaller images have nothing to see; larger ones are a mistake in the arguments.
_SMALLEST, _LARGEST = 32, 8192


@dataclass(frozen=True)
class ExportOptions:
    """How a model is to be seen by the vehicle; no height and width means: any."""

    height: int | None = None
    width: int | None = None
    channel_order: str = "bgr"
    precision: str = "fp32"
    relu: str = "moment"
    softmax: str = "jacobian"
    variance: str = "truthful"  # of a calibrated network, see `calibration.Options`

    def __post_init__(self) -> None:
        if (self.height is None) != (self.width is None):
            raise PenumbraError("height and width go together: give both, or neither for any size")
        for name, value in (("height", self.height), ("width", self.width)):
            if value is not None and not _SMALLEST <= value <= _LARGEST:
                raise PenumbraError(
                    f"a {name} of {value} pixels: it must be between {_SMALLEST} and {_LARGEST}"
                )


# How near another runner must come on the same frame, by precision: the share of equal labels; the
# share of pixels whose uncertainty is within `relative` of it (plus `absolute`); the relative
# difference of the frame score. Worst of six CamVid test frames (quarter width, early in
# its training, `class` and `encdec`): fp32 on ONNX Runtime 0.99999, 0.92, 2e-5; fp16 in PyTorch,
# which rounds after every operation, 0.9958, 0.86, 3e-3. ONNX Runtime's CPU computes stretches of
# FP16 in FP32 and looks better than a GPU may (mixed there: 0.9975, 0.88, 2e-3); none was measured
# on a GPU. What is left in fp32 is poolings in which rounding decides (README, Speed): most frames
# have 1.0, but a flip in a deep one was also seen to take 13 % of a frame's uncertainty with it.
TOLERANCES = {
    "fp32": {
        "labels": 0.9999,
        "uncertainty": 0.9,
        "relative": 1e-4,
        "absolute": 1e-6,
        "frame_score": 1e-3,
    },
    "mixed": {
        "labels": 0.99,
        "uncertainty": 0.8,
        "relative": 0.05,
        "absolute": 1e-6,
        "frame_score": 1e-2,
    },
    "fp16": {
        "labels": 0.99,
        "uncertainty": 0.8,
        "relative": 0.05,
        "absolute": 1e-6,
        "frame_score": 1e-2,
    },
}

# How near the node must come to Monte Carlo (`penumbra verify`), by architecture, dropout and how
# much of the covariance is kept: what is asked of each, and what the shipped ones reach
# (docs/TRUTH.md). `class`, diagonal, and `class covariance` without calibration: chosen after
# measuring (CamVid, quarter width: 15 to 27 % off, Spearman 0.90 to 0.93, labels 0.991; 4.7 % off).
# `encdec` without calibration is 87 % off: nothing can be promised, so it is reported only.
_MONTE_CARLO = {
    ("segnet", "class", "diagonal"): (0.98, 0.3, 0.88),
    ("segnet", "class", "class covariance"): (0.99, 0.1, 0.97),
    ("segnet", "class", "calibrated"): (0.995, 0.05, 0.99),
    ("segnet", "encdec", "calibrated"): (0.98, 0.15, 0.95),
    ("segnet", "encdec", "calibrated, fast"): (0.98, 0.25, 0.9),
    ("monodepth", "final", "diagonal"): (None, 0.03, 0.995),
}
_FIGURES = ("label_agreement", "std_relative_error", "spearman")


def tolerances_of(precision: str, variant: dict[str, Any]) -> dict[str, Any]:
    """What a bundle of this variant promises, against other runners and against Monte Carlo."""
    kind = (variant["architecture"], str(variant["dropout"]), variant["variance"])
    promised = {
        figure: limit
        for figure, limit in zip(_FIGURES, _MONTE_CARLO.get(kind, ()), strict=False)
        if limit is not None
    }
    return TOLERANCES[precision] | ({"monte_carlo": promised} if promised else {})


def make_frame(
    model: nn.Module,
    architecture: str,
    options: ExportOptions,
    gains: Mapping[str, Tensor] | None = None,
) -> FrameModule:
    """The module that becomes the graph: pre-processing, propagated network, outputs."""
    dtype = torch.float16 if options.precision == "fp16" else torch.float32
    model = copy.deepcopy(model).eval().to(dtype)
    gains = {name: gain.to(dtype) for name, gain in (gains or {}).items()}
    walk = walk_of(
        model, architecture, options.relu, options.softmax, gains, variance=options.variance
    )
    if not any(is_noise(node, walk.model, diagonal) for node in walk.model.graph.nodes):
        raise PenumbraError(
            "the model has no noise layer, so nothing would ever be uncertain: export one with "
            "dropout (for SegNet: --dropout class or encdec in training)"
        )
    return _around(walk, model, architecture, options, dtype)


def _around(
    network: nn.Module,
    model: nn.Module,
    architecture: str,
    options: ExportOptions,
    dtype: torch.dtype,
) -> FrameModule:
    """`network`, which returns moments, between the pre- and post-processing of `model`."""
    _, kind, _ = frame_of(architecture)
    return kind(
        network,
        options.channel_order,
        model.config["mean"],
        model.config["std"],
        tuple(model.config["size"]) if "size" in model.config else None,
        dtype,
    ).eval()


def export_graph(
    frame: FrameModule, options: ExportOptions, progress: Callable[[str], None] = lambda _: None
) -> bytes:
    """The frame as an ONNX file that TensorRT will compile, in the precision that was asked for."""
    height, width = options.height or 64, options.width or 96
    image = torch.zeros(height, width, 3, dtype=torch.uint8)
    names = [output.name for output in frame.OUTPUTS]
    progress("tracing and translating")
    model = to_onnx(frame, image, names, dynamic=options.height is None)
    progress("checking")
    if options.precision == "mixed":
        mean_in_half(model, dict(frame.named_parameters()))
    refuse_unsupported(model)
    return to_bytes(model)


def export_bundle(
    checkpoint: Path | str,
    out: Path | str,
    options: ExportOptions,
    *,
    name: str | None = None,
    calibrated: bool = True,
    command: str = "penumbra.offline.export.export_bundle",
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Export the model file `checkpoint` (or the folder that holds it) as the bundle `out`.

    If it was calibrated, its gains go into the graph and its rules are those of the calibration.
    """
    header, asked = read_header(checkpoint), options.variance
    architecture, config = header["architecture"], header["config"]
    task, kind, _ = frame_of(architecture)
    model = load_model(checkpoint)
    calibration = load_gains(checkpoint, options.variance) if calibrated else None
    if calibrated and calibration is None and options.variance != "truthful":
        raise PenumbraError(
            f"{checkpoint} is not calibrated for '--variance {options.variance}': run 'penumbra "
            f"calibrate {checkpoint} --variance {options.variance} --images DIR' first"
        )
    gains, fitted = calibration or (None, None)
    if fitted is not None:
        options = _with_rules_of(fitted, options)
    graph = export_graph(make_frame(model, architecture, options, gains), options, progress)
    variant = {
        "architecture": architecture,
        "dropout": config["dropout"],
        "rate": config["rate"],
        "width": config["width"],
        "relu": options.relu,
        "softmax": options.softmax,
        "variance": _variance(options, fitted is not None),
    }
    manifest = {
        "name": name or Path(out).name,
        "task": task,
        "variant": variant,
        "precision": options.precision,
        "input": {
            "name": "image",
            "height": options.height,
            "width": options.width,
            "channel_order": options.channel_order,
        },
        "outputs": [output.entry(options.height, options.width) for output in kind.OUTPUTS],
        "classes": classes_with_colours(config["classes"]) if task == "segmentation" else [],
        "depth": config["depth"] if task == "depth" else None,
        "calibration": fitted,
        "thresholds": None,
        "tolerances": tolerances_of(options.precision, variant),
        "provenance": _provenance(header["provenance"], command),
    }
    progress("writing")
    file = Path(checkpoint)
    folder = file.parent if file.suffix == ".safetensors" else file
    files: dict[str, bytes | Path] = {
        "model.onnx": graph,
        WEIGHTS: file if file.suffix == ".safetensors" else file / WEIGHTS,
    }
    if fitted is not None:
        files[GAINS] = gains_file(folder, asked)
        # Of a bundle that has both, the other form can be made without any calibrating.
        other = gains_file(folder, "fast")
        if asked == "truthful" and other.is_file():
            files[other.name] = other
    return write_bundle(out, manifest, files)


def _with_rules_of(fitted: Mapping[str, Any], options: ExportOptions) -> ExportOptions:
    """Gains are right for the rules that they were fitted with, and for no others."""
    how = fitted.get("variance", "truthful")
    return replace(options, relu=fitted["relu"], softmax=fitted["softmax"], variance=how)


def _variance(options: ExportOptions, is_calibrated: bool) -> str:
    if is_calibrated:
        return "calibrated" if options.variance == "truthful" else "calibrated, fast"
    return "diagonal" if options.softmax == "jacobian" else "class covariance"


def plain_bundle(bundle: Bundle, out: Path | str) -> Bundle:
    """The same network without its noise: what uncertainty is compared with when it is timed."""
    header = read_header(bundle.weights_file)
    architecture = header["architecture"]
    model = build_model(architecture, header["config"] | {"dropout": "none"}).eval()
    model.load_state_dict(load_model(bundle.weights_file).state_dict())
    image = bundle.input
    options = ExportOptions(image.height, image.width, image.channel_order)
    walk = walk_of(model, architecture, options.relu, options.softmax)  # without noise: exact
    frame = _around(walk, model, architecture, options, torch.float32)
    manifest = {k: v for k, v in bundle.manifest.items() if k not in ("schema", "files")}
    manifest |= {"name": f"{bundle.name}-plain", "precision": options.precision}
    graph = export_graph(frame, options)
    return write_bundle(out, manifest, {"model.onnx": graph, WEIGHTS: bundle.weights_file})


def _provenance(of_model: dict[str, Any], command: str) -> dict[str, Any]:
    """Where it comes from: what the model file says of its training, and this export."""
    return {
        "command": re.sub(r"(?<=\s)/\S*/", "", command),  # no folders of this machine
        "version": penumbra.__version__,
        "seed": of_model.get("seed"),
        "data": of_model.get("data"),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "torch": str(torch.__version__),
        "training": of_model,
    }

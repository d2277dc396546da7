"""Export of a checkpoint as a bundle: the propagated network as one graph for the vehicle."""

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
from penumbra.bundle import MODEL, WEIGHTS, Bundle, write_bundle
from penumbra.errors import PenumbraError
from penumbra.offline.export.classes import classes_with_colours
from penumbra.offline.export.frame import FrameModule, frame_of
from penumbra.offline.export.graph import to_bytes, to_onnx
from penumbra.offline.export.operators import refuse_unsupported
from penumbra.offline.export.precision import mean_in_half
from penumbra.offline.export.taps import add_taps
from penumbra.offline.export.tolerances import tolerances_of
from penumbra.offline.export.walk import walk_of
from penumbra.offline.gains_file import GAINS, GainFacts, gains_name, load_gains
from penumbra.offline.models import ARCHITECTURES, build_model, load_model, read_header
from penumbra.offline.models.network import Network
from penumbra.propagation.registry import diagonal
from penumbra.propagation.tracing import is_noise

# Sizes outside of this range are taken for mistakes in the arguments.
_SMALLEST, _LARGEST = 32, 8192


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export; without height and width the graph takes any size.

    `variance` selects the gains, see `GainFitOptions`. `taps` are the modules whose outputs the
    familiarity of a scene is judged by; None: before each reduction of resolution; (): no
    statistics.
    """

    height: int | None = None
    width: int | None = None
    channel_order: str = "bgr"
    precision: str = "fp32"
    relu: str = "moment"
    softmax: str = "jacobian"
    variance: str = "truthful"
    taps: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if (self.height is None) != (self.width is None):
            raise PenumbraError("give both height and width, or neither for any size")
        for name, value in (("height", self.height), ("width", self.width)):
            if value is not None and not _SMALLEST <= value <= _LARGEST:
                raise PenumbraError(
                    f"a {name} of {value} pixels: it must be between {_SMALLEST} and {_LARGEST}"
                )


def make_frame(
    model: Network,
    architecture: str,
    options: ExportOptions,
    gains: Mapping[str, Tensor] | None = None,
) -> FrameModule:
    """The module that is exported: pre-processing, propagated network, outputs."""
    dtype = torch.float16 if options.precision == "fp16" else torch.float32
    model = copy.deepcopy(model).eval().to(dtype)
    gains = {name: gain.to(dtype) for name, gain in (gains or {}).items()}
    walk = walk_of(
        model, architecture, options.relu, options.softmax, gains, variance=options.variance
    )
    if not any(is_noise(node, walk.model, diagonal) for node in walk.model.graph.nodes):
        raise PenumbraError(
            "the model has no noise source, so its uncertainty would be zero: export one with "
            "dropout (for SegNet: --dropout class or encdec in training)"
        )
    statistics = () if options.taps == () else add_taps(walk, model.input_size, options.taps)
    return _framed(walk, model, architecture, options, dtype, statistics)


def _framed(
    propagated: nn.Module,
    model: Network,
    architecture: str,
    options: ExportOptions,
    dtype: torch.dtype,
    statistics: tuple[int, ...] = (),
) -> FrameModule:
    """`propagated` between the pre-processing of `model` and the outputs."""
    return (
        frame_of(architecture)
        .frame(
            propagated,
            options.channel_order,
            model.pixel_mean,
            model.pixel_std,
            model.input_size,
            dtype,
            statistics,
        )
        .eval()
    )


def export_graph(
    frame: FrameModule, options: ExportOptions, progress: Callable[[str], None] = lambda _: None
) -> bytes:
    """The frame as an ONNX file that TensorRT can compile, in the precision of `options`."""
    height, width = options.height or 64, options.width or 96
    image = torch.zeros(height, width, 3, dtype=torch.uint8)
    names = [output.name for output in frame.entries]
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
    use_gains: bool = True,
    command: str = "penumbra.offline.export.export_bundle",
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Export the model file `checkpoint` (or the folder that contains it) as the bundle `out`.

    If there are gains beside it, they go into the graph, and the rules are those of their fit.
    """
    header, asked = read_header(checkpoint), options.variance
    architecture, config = header.architecture, header.config
    model = load_model(checkpoint)
    gains = load_gains(checkpoint, asked) if use_gains else None
    if use_gains and gains is None and asked != "truthful":
        raise PenumbraError(
            f"{checkpoint} has no gains for '--variance {asked}': run 'penumbra fit-gains "
            f"{checkpoint} --variance {asked} --images DIR' first"
        )
    if gains is not None:
        options = _with_rules_of(gains.facts, options)
    tensors = gains.tensors if gains is not None else None
    frame = make_frame(model, architecture, options, tensors)
    graph = export_graph(frame, options, progress)
    task = frame_of(architecture).task
    variance = _variance(options, gains is not None)
    manifest = {
        "name": name or Path(out).name,
        "task": task,
        "licence": None,
        "model": {
            "entry_point": architecture,
            "reference": ARCHITECTURES[architecture],
            "arguments": {name: config[name] for name in ("dropout", "rate", "width")},
        },
        "rules": {"relu": options.relu, "softmax": options.softmax, "variance": variance},
        "precision": options.precision,
        "input": {
            "name": "image",
            "height": options.height,
            "width": options.width,
            "channel_order": options.channel_order,
            "working_size": None,
        },
        "outputs": [output.entry(options.height, options.width) for output in frame.entries],
        "classes": classes_with_colours(config["classes"]) if task == "segmentation" else [],
        "depth": config["depth"] if task == "depth" else None,
        "gains": gains.facts.to_json() if gains is not None else None,
        "alerts": None,
        "tolerances": tolerances_of(
            options.precision, architecture, str(config["dropout"]), variance
        ),
        "provenance": _provenance(header.provenance, command, frame.statistics),
    }
    progress("writing")
    file = Path(checkpoint)
    files: dict[str, bytes | Path] = {
        MODEL: graph,
        WEIGHTS: file if file.suffix == ".safetensors" else file / WEIGHTS,
    }
    if gains is not None:
        files[GAINS] = gains.file
        # With both in the bundle, the fast form can be exported from it without another fit.
        fast = load_gains(checkpoint, "fast") if asked == "truthful" else None
        if fast is not None and fast.file != gains.file:
            files[gains_name("fast")] = fast.file
    return write_bundle(out, manifest, files)


def _with_rules_of(facts: GainFacts, options: ExportOptions) -> ExportOptions:
    """Gains are valid only for the rules that they were fitted with."""
    return replace(options, relu=facts.relu, softmax=facts.softmax, variance=facts.variance)


def _variance(options: ExportOptions, has_gains: bool) -> str:
    """The form of the variance, as the manifest names it."""
    if has_gains:
        return "calibrated" if options.variance == "truthful" else "calibrated, fast"
    return "diagonal" if options.softmax == "jacobian" else "class covariance"


def plain_bundle(bundle: Bundle, out: Path | str) -> Bundle:
    """The same network without noise, as the baseline of benchmarks."""
    header = read_header(bundle.weights_file)
    architecture = header.architecture
    model = build_model(architecture, header.config | {"dropout": "none"}).eval()
    model.load_state_dict(load_model(bundle.weights_file).state_dict())
    image = bundle.input
    options = ExportOptions(image.height, image.width, image.channel_order)
    walk = walk_of(model, architecture, options.relu, options.softmax, noiseless=True)
    frame = _framed(walk, model, architecture, options, torch.float32)
    manifest = {k: v for k, v in bundle.manifest.items() if k not in ("schema", "files")}
    manifest |= {
        "name": f"{bundle.name}-plain",
        "precision": options.precision,
        # Without noise the uncertainty is 0, which would be an error of a network with noise.
        "outputs": [
            output.entry(image.height, image.width) | ({"role": "map"} if spread else {})
            for output in frame.entries
            for spread in [output.role == "uncertainty"]
        ],
    }
    graph = export_graph(frame, options)
    return write_bundle(out, manifest, {MODEL: graph, WEIGHTS: bundle.weights_file})


def _provenance(of_model: dict[str, Any], command: str, taps: tuple[int, ...]) -> dict[str, Any]:
    """The provenance of the model file, and of this export."""
    return {
        "command": re.sub(r"(?<=\s)/\S*/", "", command),  # without local folders
        "version": penumbra.__version__,
        "seed": of_model.get("seed"),
        "data": of_model.get("data"),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "torch": str(torch.__version__),
        "taps": list(taps),  # how many statistics each has, for fitting
        "training": of_model,
    }

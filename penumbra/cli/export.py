"""Export a trained network as a bundle for the vehicle.

The bundle is a folder with model.onnx (camera image in; prediction, uncertainty and scores out),
weights.safetensors and manifest.yaml. If `penumbra fit-gains` wrote gains beside the weights, they
go into the graph. A graph of fixed size is the fastest; with --dynamic one bundle takes images of
any size. Operators that TensorRT cannot compile are an error.

--precision mixed computes the mean in FP16 and the variance in FP32; fp16 computes the variance in
FP16 as well, whose range is small. Both are for TensorRT: on a CPU fp32 is the fastest.
"""

from __future__ import annotations

import argparse
import json
import shlex

from penumbra.errors import PenumbraError
from penumbra.offline.gains_file import VARIANCES

EXAMPLE = (
    "penumbra export ~/.cache/penumbra/runs/street/best --out bundles/street "
    "--height 360 --width 480"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="folder with a weights.safetensors, or the file"
    )
    parser.add_argument("--out", required=True, metavar="BUNDLE", help="folder to write")
    parser.add_argument("--name", help="of the model (default: that of the folder)")
    parser.add_argument("--height", type=int, metavar="PIXELS", help="of the camera's image")
    parser.add_argument("--width", type=int, metavar="PIXELS", help="of the camera's image")
    parser.add_argument("--dynamic", action="store_true", help="images of any size")
    parser.add_argument(
        "--channel-order", choices=("bgr", "rgb"), default="bgr", help="of the image (default bgr)"
    )
    parser.add_argument(
        "--precision", choices=("fp32", "fp16", "mixed"), default="fp32", help="(default fp32)"
    )
    parser.add_argument(
        "--relu",
        choices=("moment", "jacobian"),
        default="moment",
        help="rule: moments of a rectified Gaussian, or first order (default moment)",
    )
    parser.add_argument(
        "--softmax",
        choices=("jacobian", "moment"),
        default="jacobian",
        help="rule: first order without covariances, or moments with the covariance of the "
        "classes, which is closer to Monte Carlo and slower (default jacobian)",
    )
    parser.add_argument(
        "--variance",
        choices=VARIANCES,
        default="truthful",
        help="with gains: propagate the noise of every dropout, or of the last one only, with "
        "gains fitted for that (default truthful)",
    )
    parser.add_argument(
        "--no-gains",
        action="store_true",
        help="ignore gains beside the weights; with gains, --relu and --softmax are those of "
        "their fit",
    )
    parser.add_argument(
        "--taps",
        metavar="LAYER,…",
        help="layers whose features tell how familiar a scene is, or 'none' (default: before each "
        "reduction of resolution)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    fixed = arguments.height is not None or arguments.width is not None
    if fixed == arguments.dynamic:
        raise PenumbraError(
            "the size of the image is missing: give --height and --width (the fastest), "
            "or --dynamic for any"
        )
    from tqdm import tqdm

    from penumbra.offline.export import ExportOptions, export_bundle

    options = ExportOptions(
        arguments.height,
        arguments.width,
        arguments.channel_order,
        arguments.precision,
        arguments.relu,
        arguments.softmax,
        arguments.variance,
        _taps(arguments.taps),
    )
    steps = tqdm(total=3, desc="export", unit="step", leave=False)

    def progress(step: str) -> None:
        steps.set_postfix_str(step)
        steps.update()

    with steps:
        bundle = export_bundle(
            arguments.checkpoint,
            arguments.out,
            options,
            name=arguments.name,
            use_gains=not arguments.no_gains,
            command=_command(arguments),
            progress=progress,
        )
    size_in_bytes = bundle.model_file.stat().st_size
    if arguments.json:
        result = {
            "bundle": str(bundle.path),
            "name": bundle.name,
            "precision": bundle.precision,
            "bytes": size_in_bytes,
            "sha256": bundle.sha256,
        }
        print(json.dumps(result))
    else:
        size = "any size" if arguments.dynamic else f"{arguments.width}x{arguments.height}"
        print(
            f"{bundle.path}: {bundle.name} for images of {size}, {bundle.precision}, "
            f"{size_in_bytes / 2**20:.1f} MiB, sha256 {bundle.sha256[:12]}"
        )
    return 0


def _taps(option: str | None) -> tuple[str, ...] | None:
    if option is None:
        return None
    return () if option == "none" else tuple(option.split(","))


def _command(arguments: argparse.Namespace) -> str:
    """The command that reproduces this bundle, for the manifest."""
    parts = ["penumbra", "export", arguments.checkpoint, "--out", arguments.out]
    if arguments.dynamic:
        parts.append("--dynamic")
    else:
        parts += ["--height", arguments.height, "--width", arguments.width]
    parts += ["--channel-order", arguments.channel_order]
    parts += ["--precision", arguments.precision, "--relu", arguments.relu]
    parts += ["--softmax", arguments.softmax]
    parts += [] if arguments.variance == "truthful" else ["--variance", arguments.variance]
    parts += [] if arguments.taps is None else ["--taps", arguments.taps]
    parts += ["--no-gains"] if arguments.no_gains else []
    return shlex.join(map(str, parts))

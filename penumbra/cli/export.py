"""Turn a trained network into a bundle that the vehicle runs.

The bundle is a folder: model.onnx (the whole frame in one graph: camera image in; prediction,
uncertainty and scores out), weights.safetensors, manifest.yaml. A graph of a fixed size is the
fastest; with --dynamic one bundle serves cameras of any size. Operators that TensorRT could not
compile are refused here.

--precision mixed computes the mean in FP16 and the variance in FP32; fp16 computes the variance in
FP16 as well, whose range is narrow. Both are for TensorRT: on a CPU fp32 is the fastest.
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
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="folder with a weights.safetensors, or the file"
    )
    parser.add_argument("--out", required=True, metavar="BUNDLE", help="folder to write")
    parser.add_argument("--name", help="the model's name (default: that of the folder)")
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
        help="moments of a rectified Gaussian, or the paper's first order (default moment)",
    )
    parser.add_argument(
        "--softmax",
        choices=("jacobian", "moment"),
        default="jacobian",
        help="the paper's first order over the classes one by one, or moments over their covariance"
        ": nearer to Monte Carlo, and dearer (default jacobian)",
    )
    parser.add_argument(
        "--variance",
        choices=VARIANCES,
        default="truthful",
        help="of a calibrated network: the noise of every dropout, or of the last one only, which "
        "gains make to stand for all (default truthful)",
    )
    parser.add_argument(
        "--no-calibration",
        action="store_true",
        help="leave out what `penumbra fit-gains` wrote beside the weights; with it, --relu and "
        "--softmax are those of the calibration",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    fixed = arguments.height is not None or arguments.width is not None
    if fixed == arguments.dynamic:
        raise PenumbraError(
            "which size has the camera's image? Give --height and --width (the fastest), "
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
            calibrated=not arguments.no_calibration,
            command=_command(arguments),
            progress=progress,
        )
    result = {
        "bundle": str(bundle.path),
        "name": bundle.name,
        "precision": bundle.precision,
        "bytes": bundle.model_file.stat().st_size,
        "sha256": bundle.sha256,
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        size = "any size" if arguments.dynamic else f"{arguments.width}x{arguments.height}"
        print(
            f"{bundle.path}: {bundle.name} for images of {size}, {bundle.precision}, "
            f"{result['bytes'] / 2**20:.1f} MiB, sha256 {bundle.sha256[:12]}"
        )
    return 0


def _command(arguments: argparse.Namespace) -> str:
    """The command that makes this bundle again, as the manifest tells it."""
    parts = ["penumbra", "export", arguments.checkpoint, "--out", arguments.out]
    if arguments.dynamic:
        parts.append("--dynamic")
    else:
        parts += ["--height", arguments.height, "--width", arguments.width]
    parts += ["--channel-order", arguments.channel_order]
    parts += ["--precision", arguments.precision, "--relu", arguments.relu]
    parts += ["--softmax", arguments.softmax]
    parts += [] if arguments.variance == "truthful" else ["--variance", arguments.variance]
    parts += ["--no-calibration"] if arguments.no_calibration else []
    return shlex.join(map(str, parts))

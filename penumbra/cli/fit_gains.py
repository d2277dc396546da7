"""Fit the gains of the propagated variance to Monte Carlo.

After several dropouts the elements of a layer are correlated, which the propagation of variances
ignores: its variance is far too small. This command samples the network on views of images (use
training images, not test images), fits one gain for each pair of channels, and writes
gains.safetensors beside the weights. `penumbra export` folds the gains into the kernels of the
variance, at no cost on the vehicle. With --corrupted a share of the views is corrupted (noise,
darkness, haze, blur, enlargement, other colours, shuffled parts), so that the uncertainty is
calibrated on out-of-distribution images as well. --resume starts from the existing gains. A bundle
is exported again; its alert thresholds, fitted to another uncertainty, are removed.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from penumbra.errors import PenumbraError
from penumbra.offline.fitting.gains import GainFitOptions
from penumbra.offline.gains_file import VARIANCES, GainFacts
from penumbra.options import least_and_most, width_and_height

if TYPE_CHECKING:
    from torch import Tensor

    from penumbra.bundle import Bundle

EXAMPLE = "penumbra fit-gains ~/.cache/penumbra/runs/street/best --images streets/train"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "checkpoint", type=Path, help="folder with a weights.safetensors: a checkpoint or a bundle"
    )
    parser.add_argument("--images", type=Path, required=True, help="folder of images")
    for name, text in (
        ("views", "number of random views of the images"),
        ("samples", "Monte-Carlo samples per view"),
        ("steps", "of gradient descent"),
        ("seed", "of views, samples and fit"),
    ):
        default = getattr(GainFitOptions, name)
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{text} (default {default})"
        )
    for name, text in (
        ("corrupted", "share of corrupted views"),
        ("rate", "learning rate"),
    ):
        default = getattr(GainFitOptions, name)
        parser.add_argument(
            f"--{name}", type=float, default=default, help=f"{text} (default {default:g})"
        )
    height, width = GainFitOptions.size
    least, most = GainFitOptions.scales
    parser.add_argument(
        "--size",
        default=f"{width}x{height}",
        metavar="WIDTHxHEIGHT",
        help="of a view; that of the images avoids additional borders (default %(default)s)",
    )
    parser.add_argument(
        "--scales",
        default=f"{least},{most}",
        metavar="LEAST,MOST",
        help="range of the random scale of the images (default %(default)s)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="start from the gains beside the weights"
    )
    parser.add_argument(
        "--relu",
        choices=("moment", "jacobian"),
        default=GainFitOptions.relu,
        help="rule, as in the export (default %(default)s)",
    )
    parser.add_argument(
        "--variance",
        choices=VARIANCES,
        default=GainFitOptions.variance,
        help="propagate the noise of every dropout, or of the last one only, which is faster "
        "(default truthful)",
    )
    parser.add_argument("--threads", type=int, help="number of CPU threads")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    import cv2
    import torch
    from tqdm import tqdm

    from penumbra.bags.frames import FrameSelection
    from penumbra.bags.sources import images_drive
    from penumbra.bundle import MANIFEST, load_bundle
    from penumbra.offline.fitting.gains import fit_network_gains
    from penumbra.offline.gains_file import load_gains, save_gains

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if not arguments.images.is_dir():
        raise PenumbraError(f"no folder {arguments.images}: give a folder of images")
    width, height = width_and_height(arguments.size)
    options = GainFitOptions(
        arguments.views,
        arguments.samples,
        arguments.steps,
        arguments.seed,
        arguments.relu,
        variance=arguments.variance,
        size=(height, width),
        scales=least_and_most(arguments.scales, "--scales"),
        corrupted=arguments.corrupted,
        rate=arguments.rate,
    )
    folder = arguments.checkpoint
    folder = folder.parent if folder.is_file() else folder
    bundle = load_bundle(folder) if (folder / MANIFEST).is_file() else None
    start = load_gains(arguments.checkpoint, arguments.variance) if arguments.resume else None
    if arguments.resume and start is None:
        raise PenumbraError(f"{arguments.checkpoint} has no gains to resume from")
    drive = images_drive(arguments.images, FrameSelection())
    images = [cv2.cvtColor(frame.image, cv2.COLOR_BGR2RGB) for frame in drive.frames]
    totals = {"Monte Carlo": options.views, "fitting": options.steps}
    gains, facts = fit_network_gains(
        arguments.checkpoint,
        images,
        options,
        lambda work, what: tqdm(work, desc=what, total=totals[what], unit="step", mininterval=1),
        start,
    )
    if bundle is None:
        file = save_gains(folder, gains, facts)
    else:
        file = _export_again(bundle, gains, facts, arguments)
    if arguments.json:
        print(json.dumps({"file": str(file), **facts.to_json()}))
        return 0
    error, ratio = facts.std_relative_error, facts.std_ratio
    if error is not None and ratio is not None:
        print(
            f"standard deviation against {options.samples} samples, on held-out views: relative "
            f"error {error.before:.1%}, ratio {ratio.before:.2f} before; {error.after:.1%}, "
            f"{ratio.after:.2f} after"
        )
    print(f"{file}: written")
    return 0


def _export_again(
    bundle: Bundle,
    gains: Mapping[str, Tensor],
    facts: GainFacts,
    arguments: argparse.Namespace,
) -> Path:
    """Export the bundle again with the gains in its graph; returns the file of the gains.

    They are written beside a copy of the weights first, since a bundle with other gains than those
    of its graph is invalid and the export takes a while.
    """
    from penumbra.offline.export import ExportOptions, export_bundle
    from penumbra.offline.gains_file import GAINS, save_gains

    folder, image = bundle.path, bundle.input
    options = ExportOptions(
        image.height, image.width, image.channel_order, bundle.precision,
        variance=arguments.variance,
    )  # fmt: skip
    command = f"penumbra fit-gains {folder.name} --images {arguments.images.name}"
    with TemporaryDirectory() as scratch:
        for file in folder.glob("*.safetensors"):
            shutil.copy(file, scratch)
        save_gains(Path(scratch), gains, facts)
        export_bundle(scratch, folder, options, name=bundle.name, command=command)
    return folder / GAINS

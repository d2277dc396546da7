"""Fit the propagated variance to Monte Carlo's, offline and once.

Behind several dropouts the elements of a layer vary together, which variance propagation does not
see: its result is far too small. This command samples the network on views of pictures like those
it will meet (not those it is judged by), fits one gain for each pair of channels, and writes them
as calibration.safetensors beside the weights. `penumbra export` folds them into the variance's
kernels: on the vehicle nothing is added. With --strange a share of the views is made noisy, dark,
hazy, blurred, enlarged, recoloured or put in disorder, so that the size is right where the network
is out of its depth as well; --go-on begins with the gains that are there. A bundle is exported
again at once; its thresholds for alerts, which were measured with another uncertainty, are dropped.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError
from penumbra.offline.fitting.gains import GainFitOptions
from penumbra.offline.gains_file import VARIANCES
from penumbra.options import least_and_most, width_and_height

if TYPE_CHECKING:
    from torch import Tensor

    from penumbra.bundle import Bundle

EXAMPLE = "penumbra fit-gains ~/.cache/penumbra/runs/street/best --images streets/train"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint", type=Path, help="folder with a weights.safetensors: a checkpoint or a bundle"
    )
    parser.add_argument("--images", type=Path, required=True, help="folder of pictures")
    for name, text in (
        ("views", "random parts of the pictures to sample on"),
        ("samples", "of Monte Carlo on each"),
        ("steps", "of the fit"),
        ("seed", "of views, samples and fit"),
    ):
        default = getattr(GainFitOptions, name)
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{text} (default {default})"
        )
    for name, text in (
        ("strange", "share of the views that are made unlike any the network was trained on"),
        ("rate", "of the descent"),
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
        help="of a view; as large as the pictures it has no borders that they do not have "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--scales",
        default=f"{least},{most}",
        metavar="LEAST,MOST",
        help="by which pictures are scaled before a view is cut out (default %(default)s)",
    )
    parser.add_argument("--go-on", action="store_true", help="begin with the gains that are there")
    parser.add_argument(
        "--relu",
        choices=("moment", "jacobian"),
        default=GainFitOptions.relu,
        help="as at the export",
    )
    parser.add_argument(
        "--variance",
        choices=VARIANCES,
        default=GainFitOptions.variance,
        help="follow the noise of every dropout, or of the last one only, for less "
        "(default truthful)",
    )
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--json", action="store_true", help="one JSON object, no text")


def run(arguments: argparse.Namespace) -> int:
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
        raise PenumbraError(f"no folder {arguments.images}: give one with pictures")
    options = GainFitOptions(
        arguments.views,
        arguments.samples,
        arguments.steps,
        arguments.seed,
        arguments.relu,
        variance=arguments.variance,
        size=width_and_height(arguments.size)[::-1],
        scales=least_and_most(arguments.scales, "--scales"),
        strange=arguments.strange,
        rate=arguments.rate,
    )
    folder = arguments.checkpoint
    folder = folder.parent if folder.is_file() else folder
    bundle = load_bundle(folder) if (folder / MANIFEST).is_file() else None
    start = load_gains(arguments.checkpoint, arguments.variance) if arguments.go_on else None
    if arguments.go_on and start is None:
        raise PenumbraError(f"{arguments.checkpoint} has no calibration to go on with")
    drive = images_drive(arguments.images, FrameSelection())
    pictures = [cv2.cvtColor(frame.image, cv2.COLOR_BGR2RGB) for frame in drive.frames]
    totals = {"Monte Carlo": options.views, "fitting": options.steps}
    gains, facts = fit_network_gains(
        arguments.checkpoint,
        pictures,
        options,
        lambda work, what: tqdm(work, desc=what, total=totals[what], unit="step", mininterval=1),
        start,
    )
    if bundle is None:
        file = save_gains(folder, gains, facts)
    else:
        file = _export_again(bundle, gains, facts, arguments)
    if arguments.json:
        print(json.dumps({"file": str(file), **facts}))
        return 0
    error, ratio = facts["std_relative_error"], facts["std_ratio"]
    print(
        f"standard deviation against {options.samples} samples, on views that were not fitted to: "
        f"{error['before']:.1%} off, {ratio['before']:.2f} times as large; now "
        f"{error['after']:.1%} off, {ratio['after']:.2f} times\n{file}: written"
    )
    return 0


def _export_again(
    bundle: Bundle,
    gains: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    arguments: argparse.Namespace,
) -> Path:
    """The same bundle with the gains in its graph; where they are kept.

    They are written beside a copy of the weights first: with other gains than those of its graph
    a bundle would not load, and the export takes a while.
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

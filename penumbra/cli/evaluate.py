"""Evaluate a trained network against ground truth.

Segmentation: global accuracy, class average (mean recall) and mean intersection over union of the
deterministic, Monte-Carlo or propagated prediction, over all labelled pixels of a CamVid split at
full size, and the expected calibration error of the largest probability (15 bins). Classes that the
network was trained without are excluded. The propagated prediction uses the gains of `penumbra
fit-gains` if they are beside the weights.

Depth: abs_rel, sq_rel, rmse (metres), rmse_log and the shares a1, a2, a3 of pixels within a factor
of 1.25, 1.25², 1.25³, over the pixels with measured depth up to 80 m inside the crop of Garg et
al., without median scaling, averaged over the frames. Methods with uncertainty also report
coverage: the share of those pixels whose disparity is within ±zσ of the measured one, against the
share of a Gaussian. Epistemic uncertainty alone is expected to be below it. `--baseline FOLDER …`
evaluates a baseline without a network: the median over those (training) pairs of each pixel's depth
by semi-global matching.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError

if TYPE_CHECKING:
    from penumbra.offline.metrics.segmentation import Confusion
    from penumbra.offline.models.network import Network
    from penumbra.propagation import Propagated

EXAMPLE = "penumbra evaluate segnet ~/.cache/penumbra/runs/street/best --data streets --split test"
METHODS = ("deterministic", "monte-carlo", "propagated")
_NO_PERCENTAGES = ("abs_rel", "sq_rel", "rmse", "rmse_log", "a1", "a2", "a3")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    networks = parser.add_subparsers(metavar="NETWORK", dest="network", required=True)
    segnet = networks.add_parser("segnet", help="semantic segmentation on CamVid")
    segnet.add_argument(
        "--split", default="test", choices=("train", "val", "test"), help="(default test)"
    )
    segnet.set_defaults(evaluate=_segnet)
    monodepth = networks.add_parser("monodepth", help="depth on KITTI or similar data")
    monodepth.add_argument(
        "--baseline", type=Path, nargs="+", metavar="FOLDER", help="pairs for the median baseline"
    )
    monodepth.set_defaults(evaluate=_monodepth)
    for network, data in ((segnet, "CamVid's folder"), (monodepth, "folder with measured depth")):
        network.description = __doc__
        network.formatter_class = argparse.RawDescriptionHelpFormatter
        network.add_argument(
            "checkpoint", type=Path, help="a model's folder or weights.safetensors"
        )
        network.add_argument("--data", type=Path, required=True, help=data)
        network.add_argument(
            "--method", default="deterministic", choices=METHODS, help="(default deterministic)"
        )
        network.add_argument("--samples", type=int, default=50, help="of monte-carlo (default 50)")
        network.add_argument("--seed", type=int, default=0, help="of monte-carlo (default 0)")
        network.add_argument("--limit", type=int, help="number of frames (default: all)")
        network.add_argument("--threads", type=int, help="number of CPU threads")
        network.add_argument("--skip-bad", action="store_true", help="skip unreadable frames")
        network.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)
    result = arguments.evaluate(arguments)
    print(json.dumps(result) if arguments.json else _table(result))
    return 0


def _segnet(arguments: argparse.Namespace) -> dict[str, Any]:
    from functools import partial

    from tqdm import tqdm

    from penumbra.offline.datasets.camvid import load_camvid
    from penumbra.offline.datasets.camvid_classes import CLASSES
    from penumbra.offline.evaluation.segmentation import confusion_of, probability_predictor
    from penumbra.offline.metrics.segmentation import Reliability
    from penumbra.offline.models import load_model, read_header

    if read_header(arguments.checkpoint).architecture != "segnet":
        raise PenumbraError(f"{arguments.checkpoint} is not a SegNet")
    model = load_model(arguments.checkpoint)
    classes = model.config["classes"]
    withheld = [name for name in CLASSES if name not in classes]
    data = load_camvid(arguments.data, arguments.split, withheld, arguments.skip_bad)
    if list(data.classes) != classes:
        raise PenumbraError(f"{arguments.checkpoint} does not have CamVid's classes: {classes}")
    data.truncate(arguments.limit)
    for line in data.skipped:
        print(f"skipped: {line}", file=sys.stderr)
    how = arguments.method, arguments.samples, arguments.seed
    predict = probability_predictor(model, *how, _walk(arguments, model))
    reliability = Reliability()
    confusion = confusion_of(predict, data, partial(tqdm, unit="frame"), reliability)
    described = _described(arguments) | {"split": arguments.split}
    counted = {"frames": len(data), "skipped": len(data.skipped)}
    figures = confusion.summary()
    figures["expected_calibration_error"] = reliability.expected_calibration_error()
    return described | counted | figures | {"classes": _per_class(classes, confusion)}


def _monodepth(arguments: argparse.Namespace) -> dict[str, Any]:
    from functools import partial

    from tqdm import tqdm

    from penumbra.bundle import DepthSpec
    from penumbra.offline.datasets.kitti import find_measured, find_pairs, readable
    from penumbra.offline.evaluation.depth import (
        depth_errors_of,
        depth_predictor,
        median_predictor,
    )
    from penumbra.offline.metrics.coverage import Coverage
    from penumbra.offline.models import load_model, read_header

    if read_header(arguments.checkpoint).architecture != "monodepth":
        raise PenumbraError(f"{arguments.checkpoint} is not a Monodepth")
    model = load_model(arguments.checkpoint)
    scale = DepthSpec(**model.config["depth"])
    found = find_measured(arguments.data)[: arguments.limit]
    recordings, skipped = readable(found, arguments.skip_bad)
    for line in skipped:
        print(f"skipped: {line}", file=sys.stderr)
    how = arguments.method, arguments.samples, arguments.seed
    predict = depth_predictor(model, *how, _walk(arguments, model))
    coverage = None if arguments.method == "deterministic" else Coverage()
    bar = partial(tqdm, unit="frame", desc=arguments.method)
    result = _described(arguments) | {"frames": len(recordings), "skipped": len(skipped)}
    result |= depth_errors_of(predict, recordings, scale, bar, coverage).summary()
    if coverage is not None:
        result["coverage"] = coverage.summary()
    if arguments.baseline:
        pairs = [pair for folder in arguments.baseline for pair in find_pairs(folder)]
        bar = partial(tqdm, unit="pair", desc="matching")
        baseline = median_predictor(bar(pairs), scale)
        median = depth_errors_of(baseline, recordings, scale).summary()
        result["better_by"] = 1 - result["abs_rel"] / median["abs_rel"]
        result["baseline"] = {"pairs": len(pairs)} | median
    return result


def _walk(arguments: argparse.Namespace, model: Network) -> Propagated | None:
    """The propagated network, with gains if there are any; None for the other methods."""
    from penumbra.offline.export.walk import walk_of_checkpoint

    propagates = arguments.method == "propagated"
    return walk_of_checkpoint(arguments.checkpoint, model) if propagates else None


def _described(arguments: argparse.Namespace) -> dict[str, Any]:
    from penumbra.offline.gains_file import load_gains

    described: dict[str, Any] = {"method": arguments.method}
    if arguments.method == "monte-carlo":
        described |= {"samples": arguments.samples, "seed": arguments.seed}
    if arguments.method == "propagated":
        described["gains"] = load_gains(arguments.checkpoint) is not None
    return described


def _per_class(classes: list[str], confusion: Confusion) -> dict[str, dict[str, float]]:
    recall, iou = confusion.recall().tolist(), confusion.iou().tolist()
    return {name: {"recall": r, "iou": i} for name, r, i in zip(classes, recall, iou, strict=True)}


def _table(result: dict[str, Any]) -> str:
    from penumbra.offline.metrics.coverage import NOTE, coverage_table

    lines = []
    for name, value in result.items():
        if name == "classes":
            lines.append(f"{'class':16}{'recall':>8}{'IoU':>8}")
            lines += [f"{c:16}{v['recall']:8.1%}{v['iou']:8.1%}" for c, v in value.items()]
        elif name == "coverage":
            lines += ["", coverage_table({"observed": value}), textwrap.fill(NOTE, 78), ""]
        elif name == "baseline":
            lines += ["", "median depth", _table(value)]
        else:
            how = ".3f" if name in _NO_PERCENTAGES else ".1%"
            shown = format(value, how) if isinstance(value, float) else value
            lines.append(f"{name.replace('_', ' '):27} {shown}")
    return "\n".join(lines)

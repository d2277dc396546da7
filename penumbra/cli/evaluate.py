"""Measure a trained network against ground truth.

For segmentation: global accuracy, class average (mean recall) and mean intersection over union of
the plain, the Monte-Carlo or the propagated prediction, over all labelled pixels of a CamVid split
at full size. Classes that the network was trained without are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError

if TYPE_CHECKING:
    from penumbra.training.metrics import Confusion

EXAMPLE = (
    "penumbra evaluate segnet config/models/segnet-camvid --data ../shared/data/camvid --split test"
)
METHODS = ("deterministic", "monte-carlo", "propagated")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    networks = parser.add_subparsers(metavar="NETWORK", dest="network", required=True)
    segnet = networks.add_parser("segnet", help="semantic segmentation on CamVid")
    segnet.add_argument("checkpoint", type=Path, help="a model's folder or weights.safetensors")
    segnet.add_argument("--data", type=Path, required=True, help="CamVid's folder")
    segnet.add_argument("--split", default="test", choices=("train", "val", "test"))
    segnet.add_argument("--method", default="deterministic", choices=METHODS)
    segnet.add_argument("--samples", type=int, default=50, help="of monte-carlo (default 50)")
    segnet.add_argument("--seed", type=int, default=0, help="of monte-carlo (default 0)")
    segnet.add_argument("--limit", type=int, help="only the first so many frames")
    segnet.add_argument("--threads", type=int, help="CPU threads")
    segnet.add_argument("--skip-bad", action="store_true", help="leave unreadable frames out")
    segnet.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    segnet.set_defaults(evaluate=_segnet)


def run(arguments: argparse.Namespace) -> int:
    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)
    result = arguments.evaluate(arguments)
    print(json.dumps(result) if arguments.json else _table(result))
    return 0


def _segnet(arguments: argparse.Namespace) -> dict[str, Any]:
    from functools import partial

    from tqdm import tqdm

    from penumbra.models import load_model, read_header
    from penumbra.training.camvid import CLASSES, load_camvid
    from penumbra.training.segmentation import confusion_of, predictor

    if read_header(arguments.checkpoint)["architecture"] != "segnet":
        raise PenumbraError(f"{arguments.checkpoint} is not a SegNet")
    model = load_model(arguments.checkpoint)
    classes = model.config["classes"]
    withheld = [name for name in CLASSES if name not in classes]
    data = load_camvid(arguments.data, arguments.split, withheld, arguments.skip_bad)
    if list(data.classes) != classes:
        raise PenumbraError(f"{arguments.checkpoint} has other classes than CamVid: {classes}")
    data.truncate(arguments.limit)
    for line in data.skipped:
        print(f"skipped: {line}", file=sys.stderr)
    predict = predictor(model, arguments.method, arguments.samples, arguments.seed)
    confusion = confusion_of(predict, data, partial(tqdm, unit="frame"))
    described = {"method": arguments.method, "split": arguments.split}
    if arguments.method == "monte-carlo":
        described |= {"samples": arguments.samples, "seed": arguments.seed}
    counted = {"frames": len(data), "skipped": len(data.skipped)}
    return described | counted | confusion.summary() | {"classes": _per_class(classes, confusion)}


def _per_class(classes: list[str], confusion: Confusion) -> dict[str, dict[str, float]]:
    recall, iou = confusion.recall().tolist(), confusion.iou().tolist()
    return {name: {"recall": r, "iou": i} for name, r, i in zip(classes, recall, iou, strict=True)}


def _table(result: dict[str, Any]) -> str:
    lines = []
    for name, value in result.items():
        if name == "classes":
            lines.append(f"{'class':16}{'recall':>8}{'IoU':>8}")
            lines += [f"{c:16}{v['recall']:8.1%}{v['iou']:8.1%}" for c, v in value.items()]
        else:
            shown = f"{value:.1%}" if isinstance(value, float) else value
            lines.append(f"{name.replace('_', ' '):16} {shown}")
    return "\n".join(lines)

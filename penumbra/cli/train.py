"""Train a network; stop it and continue whenever you like.

A run lives in its own folder (default: ~/.cache/penumbra/runs/NAME, see PENUMBRA_CACHE) and
remembers its arguments: the same `--run NAME` alone continues it, exactly where it was, after
Ctrl-C, SIGTERM or a crash. Without `--steps` it goes on at the full learning rate until stopped;
`--finish` then anneals it over `--decay-steps` and ends it. To keep the run going as well, anneal a
branch: `--run OTHER --branch-from NAME --finish`. Under `torchrun` it trains on several GPUs.

In the folder: best/ and last/ (averaged weights), metrics.jsonl, curves.png, state.pt, run.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError

if TYPE_CHECKING:
    from penumbra.training.loop import Task

EXAMPLE = "penumbra train segnet --data ../shared/data/camvid --run camvid --width 0.25"

# A run's memory: defaults, overruled by its run.json, overruled by the command line.
LOOP_DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw",
    "rate": 1e-3,
    "weight_decay": 0.01,
    "batch": 8,
    "warmup": 200,
    "steps": None,
    "decay_steps": 1000,
    "average": 0.999,
    "patience": None,
    "validate_every": 1000,
    "save_every": 200,
    "seed": 0,
    "threads": None,
    "workers": 0,
}
SEGNET_DEFAULTS: dict[str, Any] = {
    "data": None,
    "width": 1.0,
    "dropout": "encdec",
    "dropout_rate": 0.5,
    "withhold": "",
    "crop": "256x192",
    "scales": "0.55,1.5",
    "balance": 1.0,
    "skip_bad": False,
    "init": None,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    networks = parser.add_subparsers(metavar="NETWORK", dest="network", required=True)
    segnet = networks.add_parser("segnet", help="semantic segmentation", description=__doc__)
    segnet.formatter_class = argparse.RawDescriptionHelpFormatter
    _add(segnet, SEGNET_DEFAULTS, _SEGNET_HELP)
    add_loop_arguments(segnet)


def add_loop_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that every network's training shares."""
    parser.add_argument(
        "--run",
        dest="run_name",
        metavar="NAME",
        required=True,
        help="a name, or a folder with a slash",
    )
    parser.add_argument("--finish", action="store_true", help="anneal from here over --decay-steps")
    parser.add_argument("--branch-from", metavar="RUN", help="begin with another run's last state")
    _add(parser, LOOP_DEFAULTS, _LOOP_HELP)


def run(arguments: argparse.Namespace) -> int:
    from penumbra.training.loop import Settings, train
    from penumbra.training.state import seed_everything

    folder = _run_folder(arguments.run_name)
    options = _remembered(arguments, folder, LOOP_DEFAULTS | SEGNET_DEFAULTS)
    seed_everything(options["seed"])
    task = _segnet_task(options)
    _begin(folder, options, arguments)
    settings = Settings(**{name: options[name] for name in LOOP_DEFAULTS})
    outcome = train(task, settings, folder)
    print(
        f"{outcome.reason} at step {outcome.step}; best {task.metric} {outcome.best:.4f}; {folder}"
    )
    return 0


def _segnet_task(options: dict[str, Any]) -> Task:
    from penumbra.models import load_model
    from penumbra.models.segnet import SegNet
    from penumbra.training.camvid import load_camvid
    from penumbra.training.segmentation import SegmentationTask

    if options["data"] is None:
        raise PenumbraError("--data is missing: give CamVid's folder (with train/, trainannot/ …)")
    withhold = [name for name in options["withhold"].split(",") if name]
    train, validation = (
        load_camvid(Path(options["data"]), split, withhold, options["skip_bad"])
        for split in ("train", "val")
    )
    for line in train.skipped + validation.skipped:
        print(f"skipped: {line}", file=sys.stderr)
    if options["skip_bad"]:
        print(f"skipped {len(train.skipped) + len(validation.skipped)} frames", file=sys.stderr)
    model = SegNet(train.classes, options["width"], options["dropout"], options["dropout_rate"])
    if options["init"]:
        other = load_model(options["init"])
        try:
            model.load_state_dict(other.state_dict())
        except RuntimeError as error:
            raise PenumbraError(
                f"--init {options['init']} has another width or other classes: {other.config}"
            ) from error
    width, height = _pair(options["crop"], "x", int, "--crop")
    scales = _pair(options["scales"], ",", float, "--scales")
    return SegmentationTask(
        model, train, validation, (height, width), scales, options["balance"], options["seed"]
    )


def _remembered(
    arguments: argparse.Namespace, folder: Path, defaults: dict[str, Any]
) -> dict[str, Any]:
    """Defaults, then what this run (or the one it branches from) was started with, then this."""
    options = dict(defaults)
    source = folder if (folder / "run.json").is_file() else None
    if source is None and arguments.branch_from:
        source = _run_folder(arguments.branch_from)
        if not (source / "state.pt").is_file():
            raise PenumbraError(f"--branch-from {arguments.branch_from}: no state in {source}")
    if source is not None:
        options.update(json.loads((source / "run.json").read_text()))
    given = {name: value for name, value in vars(arguments).items() if name in defaults}
    return options | given


def _begin(folder: Path, options: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Make the run's folder; on a branch, take over the other's state; set the end to anneal to."""
    from penumbra.files import write_atomically
    from penumbra.training.state import load_state, save_state

    state = load_state(folder)
    if state is None and arguments.branch_from:
        state = load_state(_run_folder(arguments.branch_from))
        save_state(folder, state | {"best": float("-inf"), "best_step": state["step"]})
    if arguments.finish:
        if state is None:
            raise PenumbraError(f"nothing to finish: {folder} holds no state; train first")
        options["steps"] = state["step"] + options["decay_steps"]
    write_atomically(folder / "run.json", json.dumps(options, indent=2) + "\n")


def _run_folder(name: str) -> Path:
    from penumbra.files import cache_folder

    return Path(name) if "/" in name else cache_folder() / "runs" / name


def _pair(text: str, separator: str, kind: type, option: str) -> tuple[Any, Any]:
    try:
        first, second = (kind(part) for part in text.split(separator))
    except ValueError:
        raise PenumbraError(f"{option} {text!r}: write it as A{separator}B") from None
    return first, second


def _add(
    parser: argparse.ArgumentParser, defaults: dict[str, Any], help_: dict[str, tuple]
) -> None:
    """One option per default. What is not given stays out of the namespace (see `_remembered`)."""
    for name, default in defaults.items():
        kind, text = help_[name]
        extra = (
            {"action": "store_true"} if kind is bool else {"type": kind, "metavar": name.upper()}
        )
        shown = "" if default in (None, "", False) else f" (default {default})"
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, default=argparse.SUPPRESS, help=text + shown, **extra)


_LOOP_HELP: dict[str, tuple[type, str]] = {
    "optimizer": (str, "adamw or sgd"),
    "rate": (float, "learning rate"),
    "weight_decay": (float, "on convolution weights only"),
    "batch": (int, "images per step, over all GPUs"),
    "warmup": (int, "steps of linear warm-up"),
    "steps": (int, "end after so many steps; without it, train until stopped"),
    "decay_steps": (int, "the last steps, in which the rate falls to zero"),
    "average": (float, "decay of the running average of the weights that is judged and kept"),
    "patience": (int, "stop after so many validations without a new best"),
    "validate_every": (int, "steps between validations"),
    "save_every": (int, "steps between saved states"),
    "seed": (int, "of weights, order, augmentation and dropout"),
    "threads": (int, "CPU threads"),
    "workers": (int, "processes that prepare the data; 0 does it in line"),
}
_SEGNET_HELP: dict[str, tuple[type, str]] = {
    "data": (str, "CamVid's folder"),
    "width": (float, "factor on all channel counts"),
    "dropout": (str, "encdec, class, none, or places such as encoder3,decoder3"),
    "dropout_rate": (float, "share of activations dropped"),
    "withhold": (str, "classes to leave out, e.g. pedestrian,bicyclist"),
    "crop": (str, "WIDTHxHEIGHT of the training crops, multiples of 32"),
    "scales": (str, "range of the random scale"),
    "balance": (float, "1: median-frequency balancing; 0: none; between: its power"),
    "skip_bad": (bool, "leave unreadable frames out and count them"),
    "init": (str, "weights to start from (a model's folder or file)"),
}

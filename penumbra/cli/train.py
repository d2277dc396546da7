"""Train a network. A run can be interrupted and resumed at any time.

A run has its own folder (default: ~/.cache/penumbra/runs/NAME, see PENUMBRA_CACHE) and stores its
arguments: `--run NAME` alone resumes it exactly after Ctrl-C, SIGTERM or a crash. Without `--steps`
it trains at the full learning rate until stopped; `--finish` then anneals it over `--decay-steps`
and ends it. To continue the run as well, anneal a branch: `--run OTHER --branch-from NAME
--finish`. Under `torchrun` it trains on several GPUs.

The folder contains best/ and last/ (averaged weights), metrics.jsonl, curves.png, state.pt and
run.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import typing
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from penumbra.errors import PenumbraError
from penumbra.files import cache_folder, write_atomically
from penumbra.offline.training.settings import MonodepthOptions, SegNetOptions, TrainingSettings

EXAMPLE = "penumbra train segnet --data streets --run street --width 0.25 --steps 4000"


class TrainableNetwork(NamedTuple):
    """A network that can be trained.

    `options` are its own options; `task` names the function (module:function) that creates its
    task from them and the seed.
    """

    summary: str
    options: type[SegNetOptions] | type[MonodepthOptions]
    task: str


NETWORKS = {
    "segnet": TrainableNetwork(
        "semantic segmentation with SegNet",
        SegNetOptions,
        "penumbra.offline.training.segmentation:segnet_task",
    ),
    "monodepth": TrainableNetwork(
        "depth from one image with Monodepth, learnt from stereo pairs",
        MonodepthOptions,
        "penumbra.offline.training.depth:monodepth_task",
    ),
}

# Options without an effect on the weights, or recorded elsewhere in their header.
_NOT_RECORDED = {
    "seed", "threads", "workers", "validate_every", "save_every", "log_every", "skip_bad"
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    networks = parser.add_subparsers(metavar="NETWORK", dest="network", required=True)
    for name, trainable in NETWORKS.items():
        network = networks.add_parser(
            name,
            help=trainable.summary,
            description=__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        network.add_argument(
            "--run", dest="run_name", metavar="NAME", required=True, help="name, or a path with a /"
        )
        network.add_argument(
            "--finish", action="store_true", help="anneal from the current state, then end"
        )
        network.add_argument(
            "--branch-from", metavar="RUN", help="start from the state of another run"
        )
        _add_options(network, trainable.options)
        _add_options(network, TrainingSettings)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from penumbra.offline.training.loop import train
    from penumbra.offline.training.state import seed_everything

    trainable = NETWORKS[arguments.network]
    folder = _run_folder(arguments.run_name)
    options, settings = _stored_and_given(arguments, folder, trainable.options)
    seed_everything(settings.seed)  # for the initial weights
    module, _, function = trainable.task.partition(":")
    task = getattr(importlib.import_module(module), function)(options, settings.seed)
    _begin(folder, options, settings, arguments)
    outcome = train(task, settings, folder, _provenance(arguments.network, options, settings))
    print(
        f"{outcome.reason} at step {outcome.step}; best {task.metric} {outcome.best:.4f}; {folder}"
    )
    return 0


def _stored_and_given(
    arguments: argparse.Namespace, folder: Path, kind: type
) -> tuple[Any, TrainingSettings]:
    """Defaults, overridden by the stored arguments of the run (or its branch), then by these."""
    source = folder if (folder / "run.json").is_file() else None
    if source is None and arguments.branch_from:
        source = _run_folder(arguments.branch_from)
        if not (source / "state.pt").is_file():
            raise PenumbraError(f"--branch-from {arguments.branch_from}: no state in {source}")
    stored = json.loads((source / "run.json").read_text()) if source else {}
    if stored.get("network", arguments.network) != arguments.network:
        raise PenumbraError(f"{source} is a run of {stored['network']}: choose another --run")

    def read(of: type) -> Any:
        names = {part.name for part in fields(of)}
        return of(**{k: v for k, v in (stored | vars(arguments)).items() if k in names})

    return read(kind), read(TrainingSettings)


def _begin(
    folder: Path, options: Any, settings: TrainingSettings, arguments: argparse.Namespace
) -> None:
    """Copy the other run's state to a branch, set the end of annealing, store the arguments."""
    from penumbra.offline.training.state import load_state, save_state

    state = load_state(folder)
    if state is None and arguments.branch_from:
        other = _run_folder(arguments.branch_from)
        state = load_state(other)
        if state is None:
            raise PenumbraError(f"--branch-from {arguments.branch_from}: no state in {other}")
        save_state(folder, state | {"best": float("-inf"), "best_step": state["step"]})
    if arguments.finish:
        if state is None:
            raise PenumbraError(f"nothing to finish: {folder} has no state; train first")
        settings.steps = state["step"] + settings.decay_steps
    stored = {"network": arguments.network} | asdict(options) | asdict(settings)
    write_atomically(folder / "run.json", json.dumps(stored, indent=2) + "\n")


def _provenance(network: str, options: Any, settings: TrainingSettings) -> dict[str, Any]:
    """The provenance in the header of the weights: data, options, initial weights.

    Folders are given by name only; defaults and options without an effect on the weights are
    omitted.
    """
    from penumbra.offline.models import read_header

    chosen = {
        part.name: value
        for of in (options, settings)
        for part in fields(of)
        if (value := getattr(of, part.name)) != part.default and part.name not in _NOT_RECORDED
    }
    data = chosen.pop("data", None) or ()
    folders = [Path(place).resolve().name for place in ([data] if isinstance(data, str) else data)]
    if count := chosen.get("rendered"):
        folders.append(f"{count} rendered pairs")
    if teacher := chosen.get("teacher"):
        chosen["teacher"] = Path(teacher).resolve().name
    init = chosen.pop("init", None)
    return {
        "network": network,
        "data": ", ".join(folders),
        "options": chosen,
        **({"began_with": read_header(init).provenance} if init else {}),
    }


def _run_folder(name: str) -> Path:
    return Path(name) if "/" in name else cache_folder() / "runs" / name


def _add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """One option per field; those not given stay out of the namespace, see `_stored_and_given`."""
    hints = typing.get_type_hints(kind)
    for part in fields(kind):
        shown = "" if part.default in (None, "", False) else f" (default {part.default})"
        of = next(t for t in (*typing.get_args(hints[part.name]), hints[part.name]) if t)
        if of is bool:
            how: dict[str, Any] = {"action": "store_true"}
        elif typing.get_origin(of) is tuple:
            how = {"type": typing.get_args(of)[0], "metavar": "X", "nargs": "+"}
        else:
            how = {"type": of, "metavar": "X"}
        parser.add_argument(
            "--" + part.name.replace("_", "-"),
            default=argparse.SUPPRESS,
            help=part.metadata["help"] + shown,
            **how,
        )

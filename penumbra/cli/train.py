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
import importlib
import json
import typing
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from penumbra.errors import PenumbraError
from penumbra.files import cache_folder, write_atomically
from penumbra.offline.training.settings import MonodepthOptions, SegNetOptions, TrainingSettings

EXAMPLE = "penumbra train segnet --data streets --run street --width 0.25 --steps 4000"

# Network → its own options, and the function that makes its task of them and of the seed.
NETWORKS = {
    "segnet": (SegNetOptions, "penumbra.offline.training.segmentation:segnet_task"),
    "monodepth": (MonodepthOptions, "penumbra.offline.training.depth:monodepth_task"),
}

_TRACELESS = {"seed", "threads", "workers", "validate_every", "save_every", "log_every", "skip_bad"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    networks = parser.add_subparsers(metavar="NETWORK", dest="network", required=True)
    for name, (options, _) in NETWORKS.items():
        network = networks.add_parser(
            name,
            help=options.__doc__.partition("\n")[0],
            description=__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        network.add_argument(
            "--run", dest="run_name", metavar="NAME", required=True, help="name, or folder with a /"
        )
        network.add_argument("--finish", action="store_true", help="anneal from here, then end")
        network.add_argument("--branch-from", metavar="RUN", help="begin with another run's state")
        for kind in (options, TrainingSettings):
            _add_options(network, kind)


def run(arguments: argparse.Namespace) -> int:
    from penumbra.offline.training.loop import train
    from penumbra.offline.training.state import seed_everything

    kind, maker = NETWORKS[arguments.network]
    folder = _run_folder(arguments.run_name)
    options, settings = _remembered(arguments, folder, kind)
    seed_everything(settings.seed)  # the initial weights
    module, _, function = maker.partition(":")
    task = getattr(importlib.import_module(module), function)(options, settings.seed)
    _begin(folder, options, settings, arguments)
    outcome = train(task, settings, folder, _provenance(arguments.network, options, settings))
    print(
        f"{outcome.reason} at step {outcome.step}; best {task.metric} {outcome.best:.4f}; {folder}"
    )
    return 0


def _remembered(
    arguments: argparse.Namespace, folder: Path, kind: type
) -> tuple[Any, TrainingSettings]:
    """Defaults, then what this run (or the one it branches from) was started with, then this."""
    source = folder if (folder / "run.json").is_file() else None
    if source is None and arguments.branch_from:
        source = _run_folder(arguments.branch_from)
        if not (source / "state.pt").is_file():
            raise PenumbraError(f"--branch-from {arguments.branch_from}: no state in {source}")
    memory = json.loads((source / "run.json").read_text()) if source else {}
    if memory.get("network", arguments.network) != arguments.network:
        raise PenumbraError(f"{source} is a run of {memory['network']}: choose another --run")

    def read(of: type) -> Any:
        names = {part.name for part in fields(of)}
        return of(**{k: v for k, v in (memory | vars(arguments)).items() if k in names})

    return read(kind), read(TrainingSettings)


def _begin(
    folder: Path, options: Any, settings: TrainingSettings, arguments: argparse.Namespace
) -> None:
    """On a branch, take over the other's state; set the end to anneal to; remember it all."""
    from penumbra.offline.training.state import load_state, save_state

    state = load_state(folder)
    if state is None and arguments.branch_from:
        state = load_state(_run_folder(arguments.branch_from))
        save_state(folder, state | {"best": float("-inf"), "best_step": state["step"]})
    if arguments.finish:
        if state is None:
            raise PenumbraError(f"nothing to finish: {folder} holds no state; train first")
        settings.steps = state["step"] + settings.decay_steps
    memory = {"network": arguments.network} | asdict(options) | asdict(settings)
    write_atomically(folder / "run.json", json.dumps(memory, indent=2) + "\n")


def _provenance(network: str, options: Any, settings: TrainingSettings) -> dict[str, Any]:
    """What the weights' header says of their training: data, options, the weights it began with.

    Folders are named without their place on this machine; defaults and what leaves no trace in
    the weights are left out.
    """
    from penumbra.offline.models import read_header

    chosen = {
        part.name: value
        for of in (options, settings)
        for part in fields(of)
        if (value := getattr(of, part.name)) != part.default and part.name not in _TRACELESS
    }
    data = chosen.pop("data", None) or ()
    folders = [Path(place).resolve().name for place in ([data] if isinstance(data, str) else data)]
    if count := chosen.get("rendered"):
        folders.append(f"{count} rendered pairs")
    init = chosen.pop("init", None)
    return {
        "network": network,
        "data": ", ".join(folders),
        "options": chosen,
        **({"began_with": read_header(init)["provenance"]} if init else {}),
    }


def _run_folder(name: str) -> Path:
    return Path(name) if "/" in name else cache_folder() / "runs" / name


def _add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """One option per field. What is not given stays out of the namespace (see `_remembered`)."""
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

"""Run experiments, store their results, and draw and describe each."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

import torch

from penumbra.bundle import MANIFEST, load_bundle
from penumbra.errors import PenumbraError
from penumbra.files import write_atomically
from penumbra.lab.experiments.reporting.record import Checksums, ExperimentRecord, read_record
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.lab.figure_style import png
from penumbra.lab.timing import machine
from penumbra.share import bundle_folder

RESULT, FIGURE, TABLE, PANEL = "result.json", "figure.png", "table.md", "panel.png"


def load_experiment(name: str) -> ModuleType:
    """The experiment of that name."""
    return importlib.import_module(f"penumbra.lab.experiments.{name.replace('-', '_')}")


def experiment_title(name: str) -> str:
    """The first line of the experiment's docstring."""
    return (load_experiment(name).__doc__ or name).partition("\n")[0].rstrip(".")


def reproduce(
    names: Sequence[str],
    data: Path | None,
    out: Path,
    *,
    seed: int = 0,
    again: bool = False,
    panels: bool = True,
) -> list[ExperimentRecord]:
    """Measure what has no result yet, draw and describe each; returns the records in order."""
    missing = [name for name in names if not _is_there(load_experiment(name).NEEDS, data)]
    if missing:
        needed = ", ".join(f"{name} needs {load_experiment(name).NEEDS}/" for name in missing)
        raise PenumbraError(f"--data {data or 'is missing'}: {needed}")
    absent = [
        f"{name} needs the bundle {bundle}"
        for name in names
        for bundle in getattr(load_experiment(name), "BUNDLES", {}).values()
        if not (bundle_folder(bundle) / MANIFEST).is_file()
    ]
    if absent:
        raise PenumbraError(
            f"{', '.join(absent)}: train and export it (`penumbra train`, `penumbra export`) into "
            "config/models, or leave the experiment out"
        )
    return [_one(name, ExperimentSetting(data, out / name, seed), again, panels) for name in names]


def _is_there(needed: str | None, data: Path | None) -> bool:
    return needed is None or (data is not None and (data / needed).is_dir())


def _one(name: str, setting: ExperimentSetting, again: bool, panels: bool) -> ExperimentRecord:
    experiment, path = load_experiment(name), setting.folder / RESULT
    bundles = _checksums(experiment.BUNDLES.values()) if hasattr(experiment, "BUNDLES") else None
    stored = None if again else read_record(path)
    if stored is not None and stored.matches(setting.seed, bundles):
        record, is_new = stored, False
    else:
        record, is_new = _measured(name, setting, bundles), True
        record.write(path)
    write_atomically(setting.folder / FIGURE, png(lambda: experiment.draw(record.figures)))
    write_atomically(setting.folder / TABLE, experiment.table(record.figures) + "\n")
    panel = setting.folder / PANEL
    if panels and hasattr(experiment, "panel") and (is_new or not panel.is_file()):
        write_atomically(panel, png(lambda: experiment.panel(setting, record.figures)))
    return record


def _measured(name: str, setting: ExperimentSetting, bundles: Checksums | None) -> ExperimentRecord:
    start = time.perf_counter()
    figures = load_experiment(name).measure(setting)
    return ExperimentRecord(
        experiment=name,
        seed=setting.seed,
        seconds=time.perf_counter() - start,
        threads=torch.get_num_threads(),
        machine=machine(),
        figures=figures,
        bundles=bundles,
    )


def _checksums(names: Iterable[str]) -> Checksums:
    """Weights and gains of bundles, by their SHA-256."""
    files = {name: load_bundle(bundle_folder(name)).manifest["files"] for name in names}
    return {
        Path(name).name: {file: sha for file, sha in found.items() if file.endswith(".safetensors")}
        for name, found in files.items()
    }

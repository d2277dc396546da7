"""Run experiments, keep their figures, draw and describe them, and bind all into one report."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tqdm import tqdm

from penumbra.bundle import MANIFEST, load_bundle
from penumbra.errors import PenumbraError
from penumbra.files import write_atomically
from penumbra.lab.drawing import png
from penumbra.lab.timing import machine
from penumbra.share import bundle_folder

PANEL = "panel.png"


@dataclass(frozen=True)
class Setting:
    """What an experiment is given: the data sets, a folder of its own, the seed of its draws."""

    data: Path | None
    folder: Path
    seed: int = 0

    def bar(self, work: Iterable[Any], what: str) -> Iterable[Any]:
        """`work` under a progress bar."""
        return tqdm(work, desc=what, leave=False, mininterval=1.0, disable=None)


def load(name: str) -> ModuleType:
    """The experiment of that name."""
    return importlib.import_module(f"penumbra.lab.experiments.{name.replace('-', '_')}")


def reproduce(
    names: Sequence[str],
    data: Path | None,
    out: Path,
    *,
    seed: int = 0,
    again: bool = False,
    panels: bool = True,
) -> list[dict[str, Any]]:
    """Measure what is not there yet, and draw and describe each; their records, in order."""
    missing = [name for name in names if not _is_served(load(name).NEEDS, data)]
    if missing:
        needed = ", ".join(f"{name} needs {load(name).NEEDS}/" for name in missing)
        raise PenumbraError(f"--data {data or 'is missing'}: {needed}")
    absent = [
        f"{name} needs the bundle {bundle}"
        for name in names
        for bundle in getattr(load(name), "BUNDLES", {}).values()
        if not (bundle_folder(bundle) / MANIFEST).is_file()
    ]
    if absent:
        raise PenumbraError(
            f"{', '.join(absent)}: train and export it (`penumbra train`, `penumbra export`) into "
            "config/models, or leave the experiment out"
        )
    return [_one(name, Setting(data, out / name, seed), again, panels) for name in names]


def _is_served(needed: str | None, data: Path | None) -> bool:
    return needed is None or (data is not None and (data / needed).is_dir())


def _one(name: str, setting: Setting, again: bool, panels: bool) -> dict[str, Any]:
    experiment = load(name)
    path = setting.folder / "result.json"
    basis: dict[str, Any] = {"seed": setting.seed}
    if hasattr(experiment, "BUNDLES"):
        basis["bundles"] = _contents(experiment.BUNDLES.values())
    record = None if again else _kept(path, basis)
    is_new = record is None
    if record is None:
        start = time.perf_counter()
        figures = experiment.measure(setting)
        record = {
            "experiment": name, **basis, "seconds": time.perf_counter() - start,
            "threads": torch.get_num_threads(), "machine": machine(), "figures": figures,
        }  # fmt: skip
        write_atomically(path, json.dumps(record, indent=1) + "\n")
    picture = png(lambda: experiment.draw(record["figures"]))
    write_atomically(setting.folder / "figure.png", picture)
    write_atomically(setting.folder / "table.md", experiment.table(record["figures"]) + "\n")
    panel = setting.folder / PANEL
    if panels and hasattr(experiment, "panel") and (is_new or not panel.is_file()):
        write_atomically(panel, png(lambda: experiment.panel(setting, record["figures"])))
    return record


def _contents(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Weights and gains of bundles, by their checksums."""
    files = {name: load_bundle(bundle_folder(name)).manifest["files"] for name in names}
    return {
        Path(name).name: {file: sha for file, sha in found.items() if file.endswith(".safetensors")}
        for name, found in files.items()
    }


def _kept(path: Path, basis: dict[str, Any]) -> dict[str, Any] | None:
    """What an earlier run has written, if seed and bundles were the same."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise PenumbraError(f"cannot read {path}: {error}; --again measures anew") from error
    same = all(record.get(name) == value for name, value in basis.items())
    return record if same else None


def title(name: str) -> str:
    """The first line of the experiment's docstring."""
    return (load(name).__doc__ or name).partition("\n")[0].rstrip(".")


def write_report(out: Path, records: Sequence[dict[str, Any]], panels: bool = True) -> Path:
    """REPORT.md: how it was made, then every experiment's figure and table.

    Without `panels` it shows none, even if they are there: it can be given away.
    """
    where, seed = records[0]["machine"], records[0]["seed"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    lines = [
        "# The paper's experiments, reproduced",
        "",
        "Postels et al., *Sampling-free Epistemic Uncertainty Estimation Using Approximated "
        "Variance Propagation* (ICCV 2019), beside Penumbra.",
        "",
        "```bash",
        f"penumbra reproduce all --data DIR --out DIR --seed {seed}",
        "```",
        "",
        f"Made on {where['processor']}, {where['cores']} cores, {records[0]['threads']} thread(s), "
        f"Python {where['python']}, {versions}; seed {seed} for all draws. Beside each picture the "
        "command writes `result.json`, with every figure behind the table.",
    ]
    for record in records:
        name = record["experiment"]
        table = (out / name / "table.md").read_text().strip()
        lines += [
            "",
            f"## {title(name)}",
            "",
            f"![{title(name)}]({name}/figure.png)",
            "",
            table,
            "",
            *(_panel(out, name, panels) if hasattr(load(name), "panel") else ()),
        ]
        took = _minutes(record["seconds"])
        lines.append(f"*This took {took}, without what an earlier run had kept.*")
    path = out / "REPORT.md"
    write_atomically(path, "\n".join(lines) + "\n")
    return path


def _panel(out: Path, name: str, wanted: bool) -> list[str]:
    """The panel, or how to make it."""
    file = f"{name}/{PANEL}"
    if wanted and (out / file).is_file():
        return [f"![The pictures]({file})", ""]
    return [
        f"Pictures are made of the data set's own, which may not be passed on: `penumbra reproduce "
        f"{name} --data DIR --out DIR` writes `{file}`.",
        "",
    ]


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"

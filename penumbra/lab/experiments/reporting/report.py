"""REPORT.md: all experiments in one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penumbra.files import write_atomically
from penumbra.lab.experiments.reporting.record import ExperimentRecord
from penumbra.lab.experiments.reporting.reproduction import (
    FIGURE,
    PANEL,
    RESULT,
    TABLE,
    experiment_title,
    load_experiment,
)


def write_report(out: Path, records: Sequence[ExperimentRecord], panels: bool = True) -> Path:
    """How the results were made, then every experiment's figure and table.

    Without `panels` it shows no image of a data set, even if the panels exist, so that it can be
    published.
    """
    lines = _head(records[0])
    for record in records:
        name = record.experiment
        title = experiment_title(name)
        lines += [
            "",
            f"## {title}",
            "",
            f"![{title}]({name}/{FIGURE})",
            "",
            (out / name / TABLE).read_text().strip(),
            "",
            *(_panel(out, name, panels) if hasattr(load_experiment(name), "panel") else ()),
            f"*Measured in {_duration(record.seconds)}, not counting cached results of earlier "
            "runs.*",
        ]
    path = out / "REPORT.md"
    write_atomically(path, "\n".join(lines) + "\n")
    return path


def _head(record: ExperimentRecord) -> list[str]:
    machine, seed = record.machine, record.seed
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return [
        "# The paper's experiments, reproduced",
        "",
        "Postels et al., *Sampling-free Epistemic Uncertainty Estimation Using Approximated "
        "Variance Propagation* (ICCV 2019), beside Penumbra.",
        "",
        "```bash",
        f"penumbra reproduce all --data DIR --out DIR --seed {seed}",
        "```",
        "",
        f"Measured on {machine.processor}, {machine.cores} cores, {record.threads} thread(s), "
        f"Python {machine.python}, {versions}; random seed {seed}. Beside each figure the "
        f"command writes `{RESULT}` with all numbers behind the table.",
    ]


def _panel(out: Path, name: str, wanted: bool) -> list[str]:
    """The panel, or how to make it."""
    file = f"{name}/{PANEL}"
    if wanted and (out / file).is_file():
        return [f"![Images]({file})", ""]
    return [
        "The panel shows images of the data set, which may not be redistributed: "
        f"`penumbra reproduce {name} --data DIR --out DIR` writes `{file}`.",
        "",
    ]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"

"""The log of a training run: one JSON line per measurement, and a plot of the curves."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically

FILE = "metrics.jsonl"


class TrainingLog:
    """`metrics.jsonl` of a run. Lines have `step` and either `loss` … or `validation` …"""

    def __init__(self, folder: Path, step: int) -> None:
        """Open for appending; drop lines after `step`, left by an interrupted run."""
        self.folder = folder
        self.path = folder / FILE
        lines = [line for line in read_log(folder) if line["step"] <= step]
        write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in lines))

    def write(self, step: int, **values: Any) -> None:
        """Append a line."""
        line = json.dumps({"step": step} | values) + "\n"
        try:
            with self.path.open("a") as file:
                file.write(line)
        except OSError as error:
            raise PenumbraError(f"cannot write {self.path}: {error.strerror}") from error

    def draw(self) -> None:
        """Write `curves.png`: loss and validation figures over the steps."""
        draw_curves(read_log(self.folder), self.folder / "curves.png")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """All complete lines of a run's log (an interrupted run may leave a partial one)."""
    path = folder / FILE
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def draw_curves(lines: list[dict[str, Any]], path: Path) -> None:
    """Plot loss and validation figures over the steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    training = [line for line in lines if "loss" in line]
    left.plot([line["step"] for line in training], [line["loss"] for line in training])
    left.set(title="training loss", xlabel="step", yscale="log")
    validation = [line for line in lines if "validation" in line]
    for name in validation[-1]["validation"] if validation else ():
        points = [(line["step"], line["validation"].get(name)) for line in validation]
        right.plot(*zip(*points, strict=True), marker=".", label=name.replace("_", " "))
    right.set(title="validation", xlabel="step")
    if validation:
        right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_atomically(path, image.getvalue())

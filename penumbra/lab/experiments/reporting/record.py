"""The result of one experiment, as `result.json` stores it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically
from penumbra.lab.timing import Machine

Checksums = dict[str, dict[str, str]]  # by bundle, then by file


@dataclass(frozen=True)
class ExperimentRecord:
    """An experiment's figures, and what they were measured with."""

    experiment: str
    seed: int
    seconds: float
    threads: int
    machine: Machine
    figures: dict[str, Any]  # the experiment's own, as its `draw` and `table` read them
    bundles: Checksums | None = None  # None: the experiment uses no trained network

    def matches(self, seed: int, bundles: Checksums | None) -> bool:
        """Whether it was measured with this seed and these weights and gains."""
        return self.seed == seed and self.bundles == bundles

    def write(self, path: Path) -> None:
        """As JSON, by renaming a finished file."""
        facts = {name: value for name, value in asdict(self).items() if value is not None}
        write_atomically(path, json.dumps(facts, indent=1) + "\n")


def read_record(path: Path) -> ExperimentRecord | None:
    """The record of an earlier run, None if there is no file."""
    try:
        return _parsed(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PenumbraError(f"cannot read {path}: {error}; --again measures again") from error


def _parsed(facts: Mapping[str, Any]) -> ExperimentRecord:
    machine = Machine(**facts["machine"])
    return ExperimentRecord(**{**facts, "machine": machine})

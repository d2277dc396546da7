"""What an experiment is given to work with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from penumbra.errors import PenumbraError

Item = TypeVar("Item")


@dataclass(frozen=True)
class ExperimentSetting:
    """The data sets, a folder for the experiment's own files, and the seed of its random draws."""

    data: Path | None
    folder: Path
    seed: int = 0

    def data_set(self, name: str) -> Path:
        """The folder of a data set below --data."""
        if self.data is None:
            raise PenumbraError(f"--data is missing: give the folder that holds {name}/")
        return self.data / name

    def bar(self, work: Iterable[Item], what: str) -> Iterable[Item]:
        """`work` under a progress bar."""
        return tqdm(work, desc=what, leave=False, mininterval=1.0, disable=None)

"""The best runner that works here, and why it is not a better one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from penumbra.errors import PenumbraError
from penumbra.vehicle import runners
from penumbra.vehicle.runners.base import Lane, Runner, RunnerError

if TYPE_CHECKING:
    from penumbra.vehicle.runners.engine import Engine

log = logging.getLogger(__name__)


class AutoRunner(Runner):
    """When activated, it tries every runner, fastest first, and hands on to the one that works.

    `refused` then says of each better runner why it does not.
    """

    name = runners.AUTO
    refused: dict[str, str]
    chosen: Runner | None = None
    _excluded: Mapping[str, str] = MappingProxyType({})

    @property
    def description(self) -> str:
        return self.name if self.chosen is None else self.chosen.description

    def missing_engine(self) -> Engine | None:
        """The one that the first runner in question needs."""
        for candidate in self._candidates():
            try:
                return candidate.missing_engine()
            except Exception:  # `activate` will meet it again, and say it
                continue
        return None

    def exclude(self, name: str, reason: str) -> None:
        """Do not try this runner any more: its engine cannot be built."""
        self._excluded = {**self._excluded, name: reason}

    def _open(self) -> list[Lane]:
        for candidate in self._candidates():
            try:
                candidate.activate()
            except Exception as error:  # TensorRT raises TypeError where the driver is too old
                reason = str(error) if isinstance(error, PenumbraError) else repr(error)
                log.warning("runner %s does not start: %s", candidate.name, reason)
                self.refused[candidate.name] = reason
                continue
            self.chosen = candidate
            log.info("runner: %s", candidate.description)
            return [ChosenLane(candidate) for _ in candidate.lanes]
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
        raise RunnerError(f"no runner works here. {reasons}")

    def _close(self) -> None:
        if self.chosen is not None:
            self.chosen.deactivate()
            self.chosen = None

    def _candidates(self) -> Iterator[Runner]:
        """Runners in which nothing stands in the way, as far as can be seen quickly."""
        self.refused = {}
        for name in runners.RUNNERS:
            kind = runners.runner_class(name)
            obstacle = self._excluded.get(name) or kind.obstacle(self.settings)
            if obstacle is None:
                yield kind(self.bundle, [output.name for output in self.outputs], self.settings)
            else:
                log.info("runner %s is out of the question: %s", name, obstacle)
                self.refused[name] = obstacle


class ChosenLane:
    """A lane of the chosen runner."""

    def __init__(self, chosen: Runner) -> None:
        self._chosen = chosen

    def run(self, image: np.ndarray) -> dict[str, np.ndarray]:
        return self._chosen.infer(image)

    def close(self) -> None:
        """The chosen runner closes its own lanes."""

"""Which runner executes a bundle: the one that was asked for, or the fastest that works here."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.vehicle.runners.base import Runner, wanted_outputs
from penumbra.vehicle.runners.engine import Engine
from penumbra.vehicle.runners.registry import AUTO, RUNNERS, create, runner_class
from penumbra.vehicle.runners.settings import RunnerError, RunnerSettings

log = logging.getLogger(__name__)


class RunnerSelector:
    """Resolves a name to an active runner; `refused` then says why faster ones do not run.

    `auto` tries every runner, fastest first; any other name is the runner itself.
    """

    def __init__(
        self,
        name: str,
        bundle: Bundle,
        outputs: Sequence[str] | None = None,
        settings: RunnerSettings | None = None,
    ) -> None:
        self.refused: dict[str, str] = {}
        self._name, self._bundle, self._outputs = name, bundle, outputs
        self._settings = settings or RunnerSettings()
        self._excluded: dict[str, str] = {}
        wanted_outputs(bundle, outputs)  # refuses unknown names before anything is loaded
        if name != AUTO and name not in RUNNERS:
            names = ", ".join([AUTO, *RUNNERS])
            raise PenumbraError(f"there is no runner {name!r}: choose from {names}")

    @property
    def is_automatic(self) -> bool:
        """Whether another runner may take the place of one that fails."""
        return self._name == AUTO

    def missing_engine(self) -> Engine | None:
        """The engine that `start` would have to build first."""
        for candidate in self._candidates():
            try:
                return candidate.missing_engine()
            except Exception:  # `start` will meet it again, and report it
                if not self.is_automatic:
                    raise
        return None

    def exclude(self, name: str, reason: str) -> None:
        """Never try this runner again: its engine cannot be built."""
        self._excluded[name] = reason

    def start(self) -> Runner:
        """The runner, active; RunnerError if none works."""
        for candidate in self._candidates():
            try:
                candidate.activate()
            except Exception as error:  # TensorRT raises TypeError where the driver is too old
                if not self.is_automatic:
                    raise
                reason = str(error) if isinstance(error, PenumbraError) else repr(error)
                log.warning("runner %s does not start: %s", candidate.name, reason)
                self.refused[candidate.name] = reason
                continue
            for name, reason in self.refused.items():
                log.info("runner %s is not available: %s", name, reason)
            log.info("runner: %s", candidate.description)
            return candidate
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
        raise RunnerError(f"no runner works here. {reasons}")

    def _candidates(self) -> Iterator[Runner]:
        """The runner that was asked for; for `auto` those without a known obstacle."""
        self.refused = {}
        if not self.is_automatic:
            yield create(self._name, self._bundle, self._outputs, self._settings)
            return
        for name in RUNNERS:
            kind = runner_class(name)
            obstacle = self._excluded.get(name) or kind.obstacle(self._settings)
            if obstacle is None:
                yield kind(self._bundle, self._outputs, self._settings)
            else:
                self.refused[name] = obstacle

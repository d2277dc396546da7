"""Selection of the runner of a bundle: the requested one, or the fastest that works."""

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
    """Resolves a name to an active runner; `refused` holds the reasons against faster ones.

    `auto` tries every runner, fastest first; any other name selects that runner.
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
        wanted_outputs(bundle, outputs)  # rejects unknown names before anything is loaded
        if name != AUTO and name not in RUNNERS:
            names = ", ".join([AUTO, *RUNNERS])
            raise PenumbraError(f"unknown runner {name!r}: choose from {names}")

    @property
    def is_automatic(self) -> bool:
        """Whether another runner may replace one that fails."""
        return self._name == AUTO

    def missing_engine(self) -> Engine | None:
        """The engine that `start` would build first; None if no engine is missing."""
        for candidate in self._candidates():
            try:
                return candidate.missing_engine()
            except Exception:  # `start` raises it again and reports it
                if not self.is_automatic:
                    raise
        return None

    def exclude(self, name: str, reason: str) -> None:
        """Exclude a runner whose engine cannot be built."""
        self._excluded[name] = reason

    def copy_exclusions(self, other: RunnerSelector) -> None:
        """Exclude what `other` excludes."""
        self._excluded = dict(other._excluded)

    def start(self) -> Runner:
        """Return an active runner; RunnerError if none works."""
        for candidate in self._candidates():
            try:
                candidate.activate()
            except Exception as error:  # TensorRT raises TypeError if the driver is too old
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
        """The requested runner; for `auto`, those without a known obstacle."""
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

"""Starts the engine without blocking, and restarts it if it fails.

A thread builds a missing engine in a child process, then loads the model. Cameras call
`wait_until_ready`, then `process`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from threading import Condition, Thread

import numpy as np

from penumbra.errors import PenumbraError
from penumbra.vehicle.geometry import PinholeCamera
from penumbra.vehicle.monitor import Monitor
from penumbra.vehicle.node.engine_build import EngineBuild
from penumbra.vehicle.pipeline import FrameResult, Pipeline
from penumbra.vehicle.runners import RunnerError
from penumbra.vehicle.runners.engine import Engine

log = logging.getLogger(__name__)

RESTARTS = 3
STEADY_FRAMES = 10  # consecutive results after which earlier failures no longer count


class EngineState(Enum):
    """The states of the engine."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"  # will be restarted
    GIVEN_UP = "given up"
    STOPPED = "stopped"


@dataclass(frozen=True)
class EngineStatus:
    """The status of the engine, for logs, diagnostics and ~/stats."""

    state: EngineState
    text: str
    progress: float  # 0 to 1; NaN if unknown


class EngineSupervisor:
    """Owns a pipeline from `start` to `stop`. Thread-safe."""

    def __init__(self, pipeline: Pipeline, restart_pause: Callable[[], float]) -> None:
        self._pipeline = pipeline
        self._restart_pause = restart_pause
        self._status = EngineStatus(EngineState.STARTING, "starting", 0.0)
        self._change = Condition()  # guards the status and all below
        self._build: EngineBuild | None = None
        self._failures = 0  # in a row
        self._successes = 0  # since the last failure
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    @property
    def status(self) -> EngineStatus:
        """The current status."""
        return self._status

    @property
    def description(self) -> str:
        """The runner that executes the bundle; empty while the engine is not running."""
        return self._pipeline.description if self.status.state is EngineState.RUNNING else ""

    def start(self) -> None:
        """Start the engine; does not block."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Stop the engine; True if it stopped within `timeout` seconds.

        Loading a model cannot be interrupted: the thread may outlive the timeout, then releases the
        model and ends.
        """
        with self._change:
            self._set(EngineState.STOPPED, "stopped", math.nan)
            if self._build is not None:
                self._build.cancel()
        if self._thread.ident is not None:  # it was started
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def wait_until_ready(self) -> bool:
        """Wait for the engine; False if it is stopped or given up."""
        with self._change:
            self._change.wait_for(
                lambda: (
                    self._status.state
                    in (EngineState.RUNNING, EngineState.GIVEN_UP, EngineState.STOPPED)
                )
            )
            return self._status.state is EngineState.RUNNING

    def process(
        self, image: np.ndarray, camera: PinholeCamera | None, monitor: Monitor
    ) -> FrameResult:
        """Process one image; RunnerError if the engine failed, in which case it is restarted."""
        try:
            result = self._pipeline.process(image, camera, monitor)
        except RunnerError as error:
            self._failed(error)
            raise
        except PenumbraError:  # invalid image or camera calibration
            raise
        except Exception as error:  # any error of a backend, such as MemoryError
            failure = RunnerError(f"{type(error).__name__}: {' '.join(str(error).split())}")
            self._failed(failure)
            raise failure from error
        with self._change:
            self._successes += 1
            if self._successes >= STEADY_FRAMES:
                self._failures = 0
        return result

    def _failed(self, error: Exception) -> None:
        """Record a failure, once for all images that were running."""
        with self._change:
            if self._status.state is EngineState.RUNNING:
                self._failures += 1
                self._successes = 0
                self._set(EngineState.FAILED, f"the runner failed: {error}", math.nan)

    def _run(self) -> None:
        """The thread: start, wait for a failure, pause, restart."""
        while self._start_once():
            with self._change:
                self._change.wait_for(lambda: self._status.state is not EngineState.RUNNING)
            self._pipeline.deactivate()
            if not self._may_restart():
                break
        self._pipeline.deactivate()

    def _start_once(self) -> bool:
        """Start the engine, with restarts; False if it was stopped or given up."""
        while True:
            if not self._begin("loading the model"):
                return False
            try:
                self._build_missing_engine()
                if not self._begin("loading the model"):
                    return False
                self._pipeline.activate()
            except Exception as error:  # any error of a backend: STARTING must not last forever
                reason = error if isinstance(error, PenumbraError) else repr(error)
                with self._change:
                    self._failures += 1
                    self._set(EngineState.FAILED, f"the engine does not start: {reason}", math.nan)
                if self._may_restart():
                    continue
                return False
            with self._change:
                return self._set(EngineState.RUNNING, self._pipeline.description, 1.0)

    def _begin(self, text: str) -> bool:
        with self._change:
            return self._set(EngineState.STARTING, text, math.nan)

    def _build_missing_engine(self) -> None:
        """Build a missing engine; in automatic mode, exclude runners whose build fails."""
        selector = self._pipeline.selector
        while (needed := selector.missing_engine()) is not None:
            try:
                self._build_engine(needed)
                return
            except RunnerError as error:
                if not selector.is_automatic:
                    raise
                log.warning("%s; trying the next runner", error)
                selector.exclude(needed.key.backend, str(error))

    def _build_engine(self, needed: Engine) -> None:
        what = f"building the {needed.key.backend} engine for {needed.bundle.name}"
        with self._change:
            if not self._set(EngineState.STARTING, what, 0.0):
                return
            self._build = build = EngineBuild(needed)
        log.info("%s; this is done once and may take minutes", what)

        def progress(fraction: float, phase: str) -> None:
            with self._change:
                self._set(EngineState.STARTING, f"{what}: {phase}", fraction)

        try:
            build.run(progress)
        except RunnerError as error:
            raise RunnerError(f"{what} failed: {error}") from error
        finally:
            with self._change:
                self._build = None

    def _may_restart(self) -> bool:
        """Pause before a restart; False if stopped meanwhile, or if no restarts are left."""
        with self._change:
            if self._status.state is EngineState.STOPPED:
                return False
            reason = self._status.text
            if self._failures > RESTARTS:
                self._set(
                    EngineState.GIVEN_UP, f"{reason}; gave up after {RESTARTS} restarts", math.nan
                )
                return False
            pause = self._restart_pause() * 2 ** (self._failures - 1)
            which = f"restart {self._failures} of {RESTARTS} in {pause:g} s"
            self._set(EngineState.FAILED, f"{reason}; {which}", math.nan)
            log.error("%s", self._status.text)
            return not self._change.wait_for(
                lambda: self._status.state is EngineState.STOPPED, pause
            )

    def _set(self, state: EngineState, text: str, progress: float) -> bool:
        """Change the status, with the lock held; False once it is STOPPED, which is final."""
        if self._status.state is not EngineState.STOPPED:
            self._status = EngineStatus(state, text, progress)
            self._change.notify_all()
            return state is not EngineState.STOPPED
        return False

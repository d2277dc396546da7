"""Starts the engine without blocking, and restarts it if it fails.

A thread builds a missing engine in a child process, loads the model and tests it. Cameras call
`wait_until_ready`, then `process`. Building, loading and inference have time limits: native code
that hangs cannot be ended, so the pipeline that it belongs to is abandoned and another one made.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from threading import Condition, Event, Thread, Timer

import numpy as np

from penumbra.errors import PenumbraError
from penumbra.vehicle.geometry import PinholeCamera
from penumbra.vehicle.monitor import HOLDS, Conditions, Fact, Level, Monitor
from penumbra.vehicle.node.engine_build import EngineBuild
from penumbra.vehicle.node.watchdog import CallTimeout, Watchdog
from penumbra.vehicle.pipeline import FrameResult, Pipeline
from penumbra.vehicle.runners import RunnerError
from penumbra.vehicle.runners.engine import Engine

log = logging.getLogger(__name__)

RESTARTS = 3
STEADY_FRAMES = 10  # consecutive results after which earlier failures no longer count
RELEASE_TIMEOUT = 5.0  # seconds that a failed engine has to finish its images


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

    @property
    def fact(self) -> Fact:
        """Whether results can be expected."""
        if self.state is EngineState.RUNNING:
            return HOLDS
        starting = self.state is EngineState.STARTING
        return Fact(Level.STARTING if starting else Level.STALE, self.text)


@dataclass(frozen=True)
class EngineLimits:
    """Time limits in seconds, and the pause before a restart."""

    restart_pause: float = 1.0  # doubled with every further failure
    build: float = 3600.0
    load: float = 120.0
    inference: float = 5.0


class EngineSupervisor:
    """Owns a pipeline from `start` to `stop`. Thread-safe.

    `limits` returns the current limits.
    """

    def __init__(
        self, make_pipeline: Callable[[], Pipeline], limits: Callable[[], EngineLimits]
    ) -> None:
        self._make_pipeline = make_pipeline
        self._limits = limits
        self._pipeline = make_pipeline()
        self._calls = Watchdog("inference")
        self._hangs = False  # whether a call into the pipeline has not returned
        self._status = EngineStatus(EngineState.STARTING, "starting", 0.0)
        self._change = Condition()  # guards the status and all below
        self._build: EngineBuild | None = None
        self._failures = 0  # in a row
        self._successes = 0  # since the last failure
        self._lost_images = 0  # in a row, although a test image was processed
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
        self,
        image: np.ndarray,
        camera: PinholeCamera | None,
        monitor: Monitor,
        surroundings: Callable[[], Conditions],
    ) -> FrameResult:
        """Process one image, as `Pipeline.process` does.

        RunnerError if it has no result. A test image then shows whether the engine is broken; if
        so, it is restarted. Otherwise only this image is lost.
        """
        pipeline, limit = self._pipeline, self._limits().inference
        try:
            result = self._calls.call(
                lambda: pipeline.process(image, camera, monitor, surroundings), limit
            )
        except CallTimeout as error:
            failure = RunnerError(f"no result within {limit:g} s")
            self._hangs = True
            self._failed(failure)
            raise failure from error
        except RunnerError as error:
            self._failed(error, pipeline)
            raise
        except PenumbraError:  # invalid image or camera calibration
            raise
        except Exception as error:  # any error of a backend, such as MemoryError
            failure = RunnerError(_one_line(error))
            self._failed(failure, pipeline)
            raise failure from error
        with self._change:
            self._lost_images = 0
            self._successes += 1
            if self._successes >= STEADY_FRAMES:
                self._failures = 0
        return result

    def _failed(self, error: Exception, test: Pipeline | None = None) -> None:
        """Record a failure, once for all images that were running.

        With `test` only if the pipeline fails on a test image too, or on many images in a row.
        """
        if test is not None:
            try:
                self._calls.call(test.test, self._limits().inference)
                with self._change:
                    self._lost_images += 1
                    if self._lost_images < STEADY_FRAMES:
                        return  # the image was the cause
            except CallTimeout:
                self._hangs = True
                error = RunnerError(f"{error}; no result of a test image either")
            except Exception:
                log.debug("the test image fails, too", exc_info=True)
        with self._change:
            if self._status.state is EngineState.RUNNING:
                self._failures += 1
                self._successes = self._lost_images = 0
                self._set(EngineState.FAILED, f"the runner failed: {error}", math.nan)

    def _run(self) -> None:
        """The thread: start, wait for a failure, pause, restart."""
        while self._start_once():
            with self._change:
                self._change.wait_for(lambda: self._status.state is not EngineState.RUNNING)
            self._release()
            if not self._may_restart():
                break
        self._release()
        self._calls.close()

    def _release(self) -> None:
        """Release the pipeline and prepare another; one that hangs is abandoned."""
        pipeline, self._pipeline = self._pipeline, self._make_pipeline()
        self._pipeline.selector.copy_exclusions(pipeline.selector)
        hangs, self._hangs = self._hangs, False
        if hangs:
            log.error("the engine hangs: its memory is lost until the node is restarted")
            return
        try:
            self._calls.call(lambda: pipeline.deactivate(RELEASE_TIMEOUT), 2 * RELEASE_TIMEOUT)
        except CallTimeout:
            log.error("the engine does not end: its memory is lost until the node is restarted")

    def _start_once(self) -> bool:
        """Start the engine, with restarts; False if it was stopped or given up."""
        while True:
            if not self._begin("loading the model"):
                return False
            try:
                self._build_missing_engine()
                if not self._begin("loading the model"):
                    return False
                self._load()
            except Exception as error:  # any error of a backend: STARTING must not last forever
                reason = error if isinstance(error, PenumbraError) else _one_line(error)
                with self._change:  # before the release, which may take seconds
                    self._failures += 1
                    self._set(EngineState.FAILED, f"the engine does not start: {reason}", math.nan)
                self._release()
                if self._may_restart():
                    continue
                return False
            with self._change:
                return self._set(EngineState.RUNNING, self._pipeline.description, 1.0)

    def _load(self) -> None:
        """Load the model and test it, within the time limit."""
        pipeline, limit = self._pipeline, self._limits().load
        abandoned = Event()

        def load() -> None:
            pipeline.activate()
            if abandoned.is_set():
                pipeline.deactivate()  # nobody will use it
            else:
                pipeline.test()

        try:
            self._calls.call(load, limit)
        except CallTimeout as error:
            abandoned.set()
            self._hangs = True
            raise RunnerError(f"the model does not load within {limit:g} s") from error

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

        limit = self._limits().build
        timer = Timer(limit, build.cancel)
        timer.daemon = True
        timer.start()
        try:
            build.run(progress)
        except RunnerError as error:
            late = f" (not done within {limit:g} s)" if timer.finished.is_set() else ""
            raise RunnerError(f"{what} failed: {error}{late}") from error
        finally:
            timer.cancel()
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
            pause = self._limits().restart_pause * 2 ** (self._failures - 1)
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


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"

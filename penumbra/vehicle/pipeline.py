"""The processing of one image, without ROS: everything that the node publishes about it.

    fit to the engine's size  ->  infer  ->  check the outputs  ->  depth  ->  judge

    with Pipeline("config/models/segnet-street") as pipeline:
        result = pipeline.process(image)

`process` may be called from several threads: cameras share one pipeline and its engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

import numpy as np

from penumbra.bundle import Bundle, load_bundle
from penumbra.errors import PenumbraError
from penumbra.vehicle.geometry import PinholeCamera, depth_of
from penumbra.vehicle.image_fit import check_plausible_size, fit_to_size
from penumbra.vehicle.monitor import HOLDS, Conditions, Monitor, Verdict
from penumbra.vehicle.output_check import check_outputs
from penumbra.vehicle.repeated_output import RepeatedOutput, digest
from penumbra.vehicle.runners import AUTO, Runner, RunnerError, RunnerSelector, RunnerSettings

CANARY = 64  # pixels: extent of the test image of a network that accepts any size


@dataclass(frozen=True)
class PipelineConfig:
    """How to run a bundle."""

    runner: str = AUTO
    # In addition to the prediction, the uncertainty and the map that alerts are based on. None: all
    # that are not optional, but for statistics, which are of use to a model of familiarity only.
    outputs: tuple[str, ...] | None = None
    also: tuple[str, ...] = ()  # beside those: what the models of the cameras need
    settings: RunnerSettings = field(default_factory=RunnerSettings)


@dataclass(frozen=True)
class StageTimes:
    """Time of one image in each stage, in seconds."""

    fit: float
    inference: float  # copies to and from the device, and the network
    postprocessing: float  # checks, depth from disparity, score and regions


@dataclass(frozen=True)
class FrameResult:
    """Everything computed from one image. The arrays belong to the caller."""

    image: np.ndarray  # the input of the network, in the bundle's channel order
    source_size: tuple[int, int]  # height, width of the image before scaling
    prediction: np.ndarray  # labels, uint8; or depth, float32 in metres
    uncertainty: np.ndarray  # float32: mean standard deviation of the classes; or metres
    judged: np.ndarray  # float32: the map that alerts are based on
    confidence: np.ndarray | None  # float32, 0 to 1; None if not requested
    disparity: np.ndarray | None  # depth only: float32, as a fraction of the image width
    disparity_std: np.ndarray | None
    # Scalar outputs of the graph. Its `frame_score` is the mean over the whole frame; alerts use
    # penumbra.vehicle.monitor.frame_score of `judged` instead.
    scores: Mapping[str, float]
    maps: Mapping[str, np.ndarray]  # further requested outputs, such as `entropy`
    statistics: np.ndarray | None  # of features, for the familiarity of the scene
    verdict: Verdict | None  # None without a monitor
    times: StageTimes


class Pipeline:
    """A bundle with its runner: `activate`, `process` each image, `deactivate`."""

    def __init__(self, bundle: Bundle | Path | str, config: PipelineConfig | None = None) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
        self.config = config or PipelineConfig()
        self._main = "disparity" if self.bundle.task == "depth" else "labels"
        thresholds = self.bundle.thresholds
        self._judged = "uncertainty" if thresholds is None else thresholds.map
        requested = self.config.outputs
        if requested is None:
            requested = tuple(
                output.name
                for output in self.bundle.outputs
                if not output.optional and output.role != "statistics"
            )
        requested = (*requested, *self.config.also)
        outputs = tuple(dict.fromkeys([*requested, self._main, "uncertainty", self._judged]))
        self._statistics = next(iter(self.bundle.outputs_of_role("statistics")), "")
        spec, settings = self.bundle.input, self.config.settings
        if settings.image_size is None and spec.height is None and spec.width is None:
            settings = replace(settings, image_size=spec.working_size)
        self.selector = RunnerSelector(self.config.runner, self.bundle, outputs, settings)
        # Height and width of the network's input; None: that of the image.
        self.image_size: tuple[int | None, int | None] = settings.image_size or spec.size
        self._repeated = RepeatedOutput()
        self._runner: Runner | None = None
        self._switching = Lock()  # held during activate and deactivate
        # Every test has another image: a stuck runner repeats the outputs of the last one.
        self._canaries, self._canary_lock = np.random.default_rng(0), Lock()

    @property
    def description(self) -> str:
        """The active runner; empty while the pipeline is inactive."""
        runner = self._runner
        return "" if runner is None else runner.description

    def activate(self) -> None:
        """Load the model; may build an engine first, which takes minutes."""
        with self._switching:
            if self._runner is None:
                self._repeated = RepeatedOutput()
                self._runner = self.selector.start()

    def deactivate(self, timeout: float | None = None) -> None:
        """Wait for running images, then release everything; may be activated again.

        An image that still runs after `timeout` seconds keeps what it uses.
        """
        with self._switching:
            runner, self._runner = self._runner, None
            if runner is not None:
                runner.deactivate(timeout)

    def test(self) -> None:
        """Run an image of noise; RunnerError if the outputs are not as the manifest states.

        Tells a runner that is broken from an image that it cannot process.
        """
        height, width = (extent or CANARY for extent in self.image_size)
        with self._canary_lock:
            noise = self._canaries.integers(0, 256, (height, width, 3), dtype=np.uint8)
        self.process(noise)

    def process(
        self,
        image: np.ndarray,
        camera: PinholeCamera | None = None,
        monitor: Monitor | None = None,
        surroundings: Callable[[], Conditions] = Conditions,
    ) -> FrameResult:
        """Process one image: `uint8`, height x width x 3, in the bundle's channel order.

        `camera` sets the scale of depth; the default is the camera of the training data. `monitor`
        holds the hysteresis of the image's camera, and returns the verdict. `surroundings` is
        called after inference and states what the pipeline cannot know, such as the age of the
        image; what it leaves unknown makes the verdict STALE. `Conditions.assumed` states that all
        is well.
        """
        runner = self._runner
        if runner is None:
            raise RunnerError("the pipeline is inactive: call activate() first")
        start = time.perf_counter()
        if not isinstance(image, np.ndarray) or image.ndim != 3 or not image.size:
            shape = getattr(image, "shape", type(image).__name__)
            raise PenumbraError(f"an image must be height x width x 3, not {shape}: convert it")
        check_plausible_size(image, self.image_size)
        fitted = fit_to_size(image, self.image_size)
        ready = time.perf_counter()
        outputs = runner.infer(fitted)
        inferred = time.perf_counter()
        size = (fitted.shape[0], fitted.shape[1])
        check_outputs(outputs, runner.outputs, size, len(self.bundle.classes))
        identity = digest(fitted)
        self._repeated.check(identity, outputs)
        scores = {name: float(array) for name, array in outputs.items() if array.ndim == 0}
        maps = {name: array for name, array in outputs.items() if array.ndim > 0}
        main, spread = maps.pop(self._main), maps.pop("uncertainty")
        judged = spread if self._judged == "uncertainty" else maps[self._judged]
        confidence = maps.pop("confidence", None)
        statistics = maps.pop(self._statistics, None)
        disparity, disparity_std = None, None
        if self.bundle.depth is not None:
            disparity, disparity_std = main, spread
            main, spread, confidence = depth_of(main, spread, self.bundle.depth, camera)
            judged = spread
        verdict = None
        if monitor is not None:
            conditions = replace(surroundings(), output=HOLDS)
            verdict = monitor.judge(
                judged, time.monotonic(), conditions, identity, image, statistics
            )
        end = time.perf_counter()
        return FrameResult(
            image=fitted,
            source_size=(image.shape[0], image.shape[1]),
            prediction=main,
            uncertainty=spread,
            judged=judged,
            confidence=confidence,
            disparity=disparity,
            disparity_std=disparity_std,
            scores=scores,
            maps=maps,
            statistics=statistics,
            verdict=verdict,
            times=StageTimes(ready - start, inferred - ready, end - inferred),
        )

    def __enter__(self) -> Pipeline:
        self.activate()
        return self

    def __exit__(self, *_: object) -> None:
        self.deactivate()

"""From a camera image to everything that is published of it: what the node does, without ROS.

    with Pipeline("config/models/segnet-street") as pipeline:
        result = pipeline.process(image)

`process` may be called from several threads: cameras share one pipeline and its engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from penumbra.bundle import Bundle, load_bundle
from penumbra.vehicle.geometry import PinholeCamera, depth_of
from penumbra.vehicle.runners import AUTO, Runner, RunnerSettings, create

__all__ = ["FrameResult", "PinholeCamera", "Pipeline", "PipelineConfig", "depth_of"]


@dataclass(frozen=True)
class PipelineConfig:
    """How a bundle is to be run."""

    runner: str = AUTO
    # Besides what no result can do without: prediction, uncertainty, and what the bundle's alerts
    # go by. None: all that are not optional.
    outputs: tuple[str, ...] | None = None
    settings: RunnerSettings = field(default_factory=RunnerSettings)


@dataclass(frozen=True)
class FrameResult:
    """What was seen in one image. The arrays are the caller's own: nobody writes to them again."""

    prediction: np.ndarray  # labels, uint8; or depth, float32 in metres
    uncertainty: np.ndarray  # float32: mean standard deviation of the classes; or metres
    judged: np.ndarray  # float32: what alerts go by; the uncertainty, unless the bundle says other
    confidence: np.ndarray | None  # float32, 0 to 1; None if the bundle's was not asked for
    disparity: np.ndarray | None  # depth only: float32, as a fraction of the image width
    disparity_std: np.ndarray | None
    # One number per frame, by the name of the graph's output. Its `frame_score` is the mean over
    # the whole frame; alerts go by another: penumbra.vehicle.monitor.frame_score of `judged`.
    scores: Mapping[str, float]
    maps: Mapping[str, np.ndarray]  # further outputs that were asked for, such as `entropy`
    timings: Mapping[str, float]  # seconds per stage


class Pipeline:
    """A bundle with its runner: `activate`, then `process` image by image, `deactivate`."""

    def __init__(self, bundle: Bundle | Path | str, config: PipelineConfig | None = None) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
        self.config = config or PipelineConfig()
        self._main = "disparity" if self.bundle.task == "depth" else "labels"
        thresholds = self.bundle.thresholds
        self._judged = "uncertainty" if thresholds is None else thresholds.map
        asked = self.config.outputs
        if asked is None:
            asked = tuple(output.name for output in self.bundle.outputs if not output.optional)
        outputs = tuple(dict.fromkeys([*asked, self._main, "uncertainty", self._judged]))
        self.runner: Runner = create(self.config.runner, self.bundle, outputs, self.config.settings)

    def activate(self) -> None:
        """Load the model; this can take as long as building an engine does."""
        self.runner.activate()

    def deactivate(self) -> None:
        """Wait for the images under way, then release everything; may be activated again."""
        self.runner.deactivate()

    def process(self, image: np.ndarray, camera: PinholeCamera | None = None) -> FrameResult:
        """See one image: `uint8`, height x width x 3, in the bundle's channel order.

        `camera` gives depth its scale; without one the bundle's own camera is taken.
        """
        start = time.perf_counter()
        outputs = self.runner.infer(image)
        inferred = time.perf_counter()
        scores = {name: float(array) for name, array in outputs.items() if array.ndim == 0}
        maps = {name: array for name, array in outputs.items() if array.ndim > 0}
        main, spread = maps.pop(self._main), maps.pop("uncertainty")
        timings = {"inference": inferred - start}
        if self.bundle.depth is None:
            return FrameResult(
                prediction=main,
                uncertainty=spread,
                judged=spread if self._judged == "uncertainty" else maps[self._judged],
                confidence=maps.pop("confidence", None),
                disparity=None,
                disparity_std=None,
                scores=scores,
                maps=maps,
                timings=timings,
            )
        metres, metres_std, confidence = depth_of(main, spread, self.bundle.depth, camera)
        timings["depth"] = time.perf_counter() - inferred
        return FrameResult(
            metres, metres_std, metres_std, confidence, main, spread, scores, maps, timings
        )

    def __enter__(self) -> Pipeline:
        self.activate()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.deactivate()

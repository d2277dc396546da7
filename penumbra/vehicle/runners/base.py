"""The interface of all runners: an image in, the graph's outputs out.

A runner has lanes, each of which runs one image at a time. A CPU runner has one; a GPU runner has
two, so that one image is copied while another is computed. `infer` may be called from any number
of threads: each takes a free lane or waits for one. This is how several cameras share an engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import Condition, Lock
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from penumbra.bundle import Bundle, OutputSpec
from penumbra.errors import PenumbraError
from penumbra.vehicle.runners.settings import RunnerError, RunnerSettings

if TYPE_CHECKING:
    from penumbra.vehicle.runners.engine import Engine


class Lane(Protocol):
    """One lane of a runner: runs one image at a time."""

    def run(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for `image`, in arrays that are not reused."""

    def close(self) -> None:
        """Release all resources; called once, while no image is running."""


class Runner(ABC):
    """Computes a bundle's outputs: `activate`, `infer` any number of images, `deactivate`.

    `outputs` names the requested outputs; None means all that are not optional. Other outputs are
    not computed if the runtime can omit them, and never copied.
    """

    name: ClassVar[str]

    def __init__(
        self,
        bundle: Bundle,
        outputs: Sequence[str] | None = None,
        settings: RunnerSettings | None = None,
    ) -> None:
        self.bundle = bundle
        self.settings = settings or RunnerSettings()
        self.outputs: list[OutputSpec] = wanted_outputs(bundle, outputs)
        self._lanes: list[Lane] = []
        self._idle: list[Lane] = []
        self._change = Condition()  # guards the two lists
        self._switching = Lock()  # held during activate and deactivate

    @classmethod
    def obstacle(cls, settings: RunnerSettings) -> str | None:
        """Why this runner cannot work on this machine; None if no obstacle is known.

        `activate` may still fail.
        """
        try:
            cls.require(settings)
        except PenumbraError as error:
            return str(error)
        return None

    @classmethod  # noqa: B027 (a runner may need nothing)
    def require(cls, settings: RunnerSettings) -> None:
        """Raise PenumbraError if a package or device is missing; fast, loads no model."""

    @abstractmethod
    def _open(self) -> list[Lane]:
        """Acquire all resources; on failure release them and raise RunnerError."""

    def _close(self) -> None:  # noqa: B027 (most runners' lanes share nothing)
        """Release what the lanes share, after all of them are closed."""

    def missing_engine(self) -> Engine | None:
        """The engine that `activate` would build first; None if no engine is missing."""
        return None

    @property
    def lanes(self) -> Sequence[Lane]:
        """The lanes; empty while the runner is inactive."""
        return self._lanes

    @property
    def active(self) -> bool:
        """Whether the model is loaded."""
        return bool(self._lanes)

    @property
    def description(self) -> str:
        """Name for the log, with version and device once the runner is active."""
        return self.name

    def activate(self) -> None:
        """Load the model; does nothing if the runner is active."""
        with self._switching:
            if self._lanes:
                return
            lanes = self._open()
            with self._change:
                self._lanes, self._idle = lanes, list(lanes)

    def infer(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """The requested outputs for one image (`uint8`, height x width x 3), by name.

        The arrays belong to the caller; the runner never writes to them again.
        """
        image = self._checked(image)
        lane = self._take()
        try:
            return lane.run(image)
        finally:
            self._give_back(lane)

    def deactivate(self, timeout: float | None = None) -> None:
        """Wait for running images, then release everything; may be activated again.

        A lane that still runs an image after `timeout` seconds is abandoned: releasing what native
        code uses would crash the process.
        """
        with self._switching:
            with self._change:
                lanes, self._lanes = self._lanes, []
                self._change.notify_all()  # threads waiting for a lane raise
                self._change.wait_for(lambda: len(self._idle) == len(lanes), timeout)
                idle, self._idle = self._idle, []
            for lane in idle:
                lane.close()
            if lanes and len(idle) == len(lanes):
                self._close()

    def __enter__(self) -> Runner:
        self.activate()
        return self

    def __exit__(self, *_: object) -> None:
        self.deactivate()

    def _take(self) -> Lane:
        with self._change:
            self._change.wait_for(lambda: self._idle or not self._lanes)
            if not self._lanes:
                raise RunnerError(f"the {self.name} runner is inactive: call activate() first")
            return self._idle.pop()

    def _give_back(self, lane: Lane) -> None:
        with self._change:
            self._idle.append(lane)
            self._change.notify_all()

    def _checked(self, image: np.ndarray) -> np.ndarray:
        """The image, contiguous; PenumbraError if the bundle does not accept it."""
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
            kind = getattr(image, "dtype", type(image).__name__)
            raise PenumbraError(f"an image must be a numpy array of uint8, not {kind}: convert it")
        if image.ndim != 3 or image.shape[2] != 3:
            raise PenumbraError(
                f"an image must be height x width x 3, not {_times(image.shape)}: "
                f"convert it to {self.bundle.input.channel_order}"
            )
        if image.size == 0:
            raise PenumbraError(f"the image is empty ({_times(image.shape)}): check its source")
        expected = self.image_size
        for wanted, found in zip(expected, image.shape[:2], strict=True):
            if wanted is not None and wanted != found:
                height, width = ("any" if extent is None else extent for extent in expected)
                raise PenumbraError(
                    f"the image is {image.shape[1]}x{image.shape[0]}, {self.bundle.name} expects "
                    f"{width}x{height}: resize the image, or export the model for its size"
                )
        return np.ascontiguousarray(image)

    @property
    def image_size(self) -> tuple[int | None, int | None]:
        """Height and width of the input; None accepts any."""
        return self.bundle.input.height, self.bundle.input.width


def wanted_outputs(bundle: Bundle, names: Sequence[str] | None) -> list[OutputSpec]:
    """The outputs with these names; None means all that are not optional."""
    if names is None:
        return [output for output in bundle.outputs if not output.optional]
    known = {output.name: output for output in bundle.outputs}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise PenumbraError(
            f"{bundle.name} has no output {unknown[0]!r}: choose from {', '.join(known)}"
        )
    if not names:
        raise PenumbraError(f"no output of {bundle.name} requested: name at least one")
    return [known[name] for name in dict.fromkeys(names)]


def _times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a scalar"

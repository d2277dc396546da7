"""The perception node with a stub runner, whose behaviour a test controls, for ONNX Runtime.

It answers at once and fails on images whose first pixel is FAIL. With STUB_ENGINE=1 it needs a
TensorRT engine first, which NVIDIA's compiler really builds. With STUB_GATE it does not start
before that FIFO is opened for writing. Images whose first pixel is a `fault_pixel` are treated
wrongly; with STUB_PERSISTENT=1 so are all images after it, until the engine is restarted. With
STUB_BREAK_OUTPUT=1 the uncertainty image cannot be made.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from penumbra.vehicle import runners
from penumbra.vehicle.runners import RunnerError, engine
from penumbra.vehicle.runners.base import Runner

FAIL, OUT_OF_MEMORY = (1, 2, 3), (1, 2, 4)
# What the stub does wrong with an image, by the index in the first pixel: (1, 3, index).
PERSISTENT = os.environ.get("STUB_PERSISTENT") == "1"
FAULTS = (
    "uncertainty nan",
    "uncertainty zero",
    "uncertainty negative",
    "uncertainty infinite",
    "confidence nan",
    "labels out of range",
    "labels of another type",
    "map of another size",
    "output missing",
    "outputs of the last image",
    "hangs",
    "slow",
)
HANG, SLOW = 3600.0, 1.5  # seconds


def fault_pixel(fault: str) -> tuple[int, int, int]:
    """The first pixel of an image that is treated wrongly."""
    return 1, 3, FAULTS.index(fault)


class StubRunner(Runner):
    """Labels, uncertainty and confidence follow the first, second and third channel."""

    name = "onnxruntime"

    def missing_engine(self):
        if os.environ.get("STUB_ENGINE") != "1":
            return None
        needed = engine.find(self.bundle, "tensorrt-rtx", self.settings, capability="8.9")
        return None if needed.built else needed

    def _open(self):
        if self.missing_engine() is not None:
            raise RunnerError("there is no engine, and this process builds none")
        if "STUB_GATE" in os.environ:
            Path(os.environ["STUB_GATE"]).read_bytes()
        StubLane.persistent = ""
        return [StubLane()]


class StubLane:
    last: dict[str, np.ndarray] | None = None

    def run(self, image):
        first = tuple(int(value) for value in image[0, 0])
        if first == FAIL:
            raise RunnerError("this image breaks the engine")
        if first == OUT_OF_MEMORY:
            raise MemoryError("out of memory")
        spread = (1 + image[..., 1].astype(np.float32)) / 256
        outputs = {
            "labels": image[..., 0] % np.uint8(4),
            "uncertainty": spread,
            "confidence": image[..., 2] * np.float32(1 / 255),
            "frame_score": np.float32(spread.mean()),
        }
        fault = FAULTS[first[2]] if first[:2] == (1, 3) and first[2] < len(FAULTS) else ""
        if fault and PERSISTENT:
            StubLane.persistent = fault
        outputs = misbehaved(fault or StubLane.persistent, outputs, self.last)
        self.last = {name: np.copy(array) for name, array in outputs.items()}
        return outputs

    persistent = ""  # a fault that stays, once an image has asked for it

    def close(self):
        pass


def misbehaved(fault, outputs, last):
    """The outputs of a runner with this fault."""
    kind, _, how = fault.partition(" ")
    if fault == "outputs of the last image":
        return outputs if last is None else last
    if fault == "hangs":
        time.sleep(HANG)
    elif fault == "slow":
        time.sleep(SLOW)
    elif fault == "labels out of range":
        outputs["labels"] = np.full_like(outputs["labels"], 200)
    elif fault == "labels of another type":
        outputs["labels"] = outputs["labels"].astype(np.float32)
    elif fault == "map of another size":
        outputs["uncertainty"] = outputs["uncertainty"][:-1]
    elif fault == "output missing":
        del outputs["confidence"]
    elif fault:
        value = {"nan": np.nan, "zero": 0.0, "negative": -0.1, "infinite": -np.inf}[how]
        outputs[kind] = np.full_like(outputs[kind], value)
    return outputs


def break_outputs():
    """Make the uncertainty image fail, as a defect would."""
    from penumbra.vehicle.node import outputs

    def fail(frame):
        raise ValueError("no such colour")

    outputs.OUTPUTS = tuple(
        replace(output, make=fail) if output.topic == "uncertainty" else output
        for output in outputs.OUTPUTS
    )


if __name__ == "__main__":
    if os.environ.get("STUB_BREAK_OUTPUT") == "1":
        break_outputs()
    runners.RUNNERS["onnxruntime"] = ("__main__", "StubRunner")
    from penumbra.vehicle.node.perception_node import main

    sys.exit(main())

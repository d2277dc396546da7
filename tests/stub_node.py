"""The perception node with a stub runner, whose behaviour a test controls, for ONNX Runtime.

It answers at once and fails on images whose first pixel is FAIL. With STUB_ENGINE=1 it needs a
TensorRT engine first, which NVIDIA's compiler really builds. With STUB_GATE it does not start
before that FIFO is opened for writing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from penumbra.vehicle import runners
from penumbra.vehicle.runners import RunnerError, engine
from penumbra.vehicle.runners.base import Runner

FAIL, OUT_OF_MEMORY = (1, 2, 3), (1, 2, 4)


class StubRunner(Runner):
    """Labels are the first channel, uncertainty a 255th of the second."""

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
        return [StubLane()]


class StubLane:
    def run(self, image):
        first = tuple(int(value) for value in image[0, 0])
        if first == FAIL:
            raise RunnerError("this image breaks the engine")
        if first == OUT_OF_MEMORY:
            raise MemoryError("out of memory")
        spread = image[..., 1] * np.float32(1 / 255)
        return {
            "labels": image[..., 0].copy(),
            "uncertainty": spread,
            "confidence": 1 - spread,
            "frame_score": np.float32(spread.mean()),
        }

    def close(self):
        pass


if __name__ == "__main__":
    runners.RUNNERS["onnxruntime"] = ("__main__", "StubRunner")
    from penumbra.vehicle.node.perception_node import main

    sys.exit(main())

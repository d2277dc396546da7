"""Interleaved timing: A B A B …, so that other load on the machine slows all candidates alike."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from tqdm import tqdm

import penumbra


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one candidate, over all its repetitions."""

    seconds: np.ndarray

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return float(np.median(self.seconds))

    @property
    def p99(self) -> float:
        """The 99th percentile, in seconds."""
        return float(np.quantile(self.seconds, 0.99))

    def facts(self) -> dict[str, float]:
        """For JSON, in milliseconds."""
        return {
            "median_ms": self.median * 1e3,
            "p99_ms": self.p99 * 1e3,
            "repetitions": len(self.seconds),
        }


def interleaved(
    candidates: Mapping[str, Callable[[], object]], repetitions: int, warm_up: int = 2
) -> dict[str, Timing]:
    """Time every candidate once per round; every other round runs in reverse order.

    Each timed call follows an untimed one of the same candidate, as frames follow frames in use:
    otherwise the previous candidate owns the caches, and PyTorch's threads may still spin for it.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    for round_ in tqdm(range(-warm_up, repetitions), unit="round", leave=False):
        for name in order if round_ % 2 == 0 else reversed(order):
            candidates[name]()
            start = time.perf_counter()
            candidates[name]()
            if round_ >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: Timing(np.asarray(values)) for name, values in seconds.items()}


def ratio(over: Timing, under: Timing) -> float:
    """The median of the per-round ratios, in which slow periods of the machine cancel."""
    return float(np.median(over.seconds / under.seconds))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set PyTorch's number of threads (0: leave it), and restore it afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Machine:
    """What a measurement depends on besides the code."""

    processor: str
    cores: int | None
    load: float  # average of the last minute
    python: str
    versions: dict[str, str]


def machine() -> Machine:
    """This machine, now."""
    versions = {"penumbra": penumbra.__version__}
    for package in ("torch", "onnxruntime", "openvino", "numpy", "ros-jazzy-rclpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    python = platform.python_version()
    return Machine(_processor(), os.cpu_count(), os.getloadavg()[0], python, versions)


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else platform.processor()
    except OSError:
        return platform.processor()

"""Interleaved timing: A B A B …, so that whatever disturbs the machine disturbs both alike."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import penumbra


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one candidate, over all its repetitions."""

    seconds: np.ndarray

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def p99(self) -> float:
        return float(np.quantile(self.seconds, 0.99))

    def facts(self) -> dict[str, float]:
        """For machines, in milliseconds."""
        return {
            "median_ms": self.median * 1e3,
            "p99_ms": self.p99 * 1e3,
            "repetitions": len(self.seconds),
        }


def interleaved(
    candidates: Mapping[str, Callable[[], Any]], repetitions: int, warm_up: int = 2
) -> dict[str, Timing]:
    """Time every candidate once per round, for so many rounds, every other one backwards.

    Before it is timed it is called once: in use, a frame follows a frame. Otherwise the candidate
    before it had the caches, and PyTorch's threads may still wait for more of its work.
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
    """The median of the rounds' own ratios: what a slow minute does to both cancels."""
    return float(np.median(over.seconds / under.seconds))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """So many threads for PyTorch (0: as many as it has), and afterwards as before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine() -> dict[str, Any]:
    """What a figure has to be read with."""
    versions = {"penumbra": penumbra.__version__}
    for package in ("torch", "onnxruntime", "openvino", "numpy", "ros-jazzy-rclpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],  # of the last minute: who else was at work
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else platform.processor()
    except OSError:
        return platform.processor()

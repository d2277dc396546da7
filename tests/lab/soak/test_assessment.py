"""The verdict of a soak test from synthetic series: growth is detected, noise is not."""

from __future__ import annotations

import numpy as np
import pytest

from penumbra.lab.soak.assessment import MEMORY_MIB, assess, growth, slope
from penumbra.lab.soak.plot import draw
from penumbra.replay.load_record import LoadRecord
from penumbra.replay.process_usage import ProcessUsage

COUNT, SECONDS = 1000, 3600.0


def record(memory=None, handles=None, threads=None, latency=None, **changes) -> LoadRecord:
    """An hour of a healthy node, except for the series that are given."""
    random = np.random.default_rng(0)
    times = np.linspace(0, SECONDS, COUNT)
    memory = 300 + random.normal(0, 1, COUNT) if memory is None else memory
    handles = np.full(COUNT, 30) if handles is None else handles
    threads = np.full(COUNT, 20) if threads is None else threads
    # Latencies scatter by a tenth: medians of 1,000 of them are within 1 % of each other.
    latency = 50 * random.lognormal(0, 0.1, 10 * COUNT) if latency is None else latency
    seen = zip(times, memory, handles, threads, strict=True)
    usage = [ProcessUsage(*map(float, four)) for four in seen]
    sent = np.linspace(0, SECONDS, len(latency)).tolist()
    made = LoadRecord("street", "onnxruntime", 2.8, 20.0, usage, sent, list(latency), {}, SECONDS)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def failures(made: LoadRecord) -> list[str]:
    return [finding.what for finding in assess(made) if not finding.passed]


def ramp(before: float, more: float) -> np.ndarray:
    return np.linspace(before, before + more, COUNT)


def step(before: float, more: float, at: float) -> np.ndarray:
    return np.where(np.arange(COUNT) < at * COUNT, before, before + more)


def test_a_healthy_node_passes():
    assert failures(record()) == []


def test_growth_while_settling_does_not_count():
    assert failures(record(memory=step(200, 100, 0.09), handles=step(10, 20, 0.09))) == []


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"memory": ramp(300, 10)}, "memory"),
        ({"memory": step(300, 10, 0.5)}, "memory"),
        # Noise of ten times the leak per sample does not hide it.
        ({"memory": ramp(300, 10) + np.random.default_rng(1).normal(0, 2, COUNT)}, "memory"),
        ({"handles": step(30, 1, 0.8)}, "handles"),
        ({"handles": np.floor(ramp(30, 9))}, "handles"),
        ({"threads": step(20, 1, 0.5)}, "threads"),
        ({"latency": np.linspace(50, 55, 1000)}, "latency, last / first tenth"),
        ({"latency": [50.0] * 500 + [np.nan] + [50.0] * 500}, "frames lost"),
        ({"latency": [50.0] * 900 + [np.nan] * 100}, "frames lost"),
        ({"node_ended": True}, "node ended"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_growth_and_losses_are_detected(changes, what):
    assert what in failures(record(**changes))


def test_growth_is_eight_tenths_of_a_steady_leak():
    # 1,000 values have 999 steps between them: a thousandth more.
    assert growth(ramp(300, 10)) == pytest.approx(8, rel=2e-3)
    seconds = np.linspace(0, SECONDS, COUNT)
    assert slope(seconds, ramp(300, 10)) == pytest.approx(10, rel=1e-6)  # per hour


def test_the_tolerance_is_as_stated():
    assert failures(record(memory=ramp(300, MEMORY_MIB / 0.8 - 0.1))) == []
    assert failures(record(memory=ramp(300, MEMORY_MIB / 0.8 + 0.1))) == ["memory"]


def test_a_run_that_is_too_short_does_not_pass():
    short = record(latency=[50.0] * 19)
    short.usage = short.usage[:19]
    assert failures(short) == ["memory", "handles", "threads", "latency, last / first tenth"]
    assert set(failures(LoadRecord("street", "", 0.0, float("nan")))) > {"frames lost"}


@pytest.mark.parametrize(
    "made", [record(), record(latency=[50.0, np.nan] * 10), LoadRecord("", "", 0, 0)]
)
def test_it_can_be_drawn(made):
    assert draw(made).startswith(b"\x89PNG")

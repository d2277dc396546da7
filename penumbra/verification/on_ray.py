"""Verify bags on Ray: one task per bag, on this machine or on all machines of a cluster.

A task whose worker dies is retried up to `RETRIES` times; references sampled before are in the
cache of that machine (`penumbra.verification.reference`). Only the calling process writes results.
Bags and bundle must therefore be readable under the same path on all machines, the folder of the
report only here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError
from penumbra.replay.domain import DOMAINS
from penumbra.verification.fleet import BagResult, Executor, Job, run

if TYPE_CHECKING:
    from types import ModuleType

LOCAL = "local"
RETRIES = 3
PATIENCE = 10.0  # seconds to connect to a cluster
_WHAT_TO_DO = (
    "start one with `ray start --head`, and run this on one of its machines with the same "
    "RAY_AUTH_MODE"
)


def on_ray(address: str = LOCAL, threads: int = 1, workers: int | None = None) -> Executor:
    """Run jobs on the cluster at `address` (`auto`, HOST:PORT), or on a local one for this call.

    A task takes `threads` cores. `workers` limits the tasks at a time, on a local cluster only.
    """
    _check(address)
    ray = _imported()

    def execute(jobs: Sequence[Job]) -> Iterator[tuple[Job, BagResult]]:
        if not jobs:
            return
        with _connected(ray, address, workers and workers * threads):
            task = ray.remote(run).options(
                num_cpus=_cores_of_a_task(ray, threads),
                max_retries=RETRIES,
                scheduling_strategy="SPREAD",
            )
            waiting = {task.remote(job): job for job in jobs}
            while waiting:
                (done, *_), _ = ray.wait(list(waiting))
                yield waiting.pop(done), _result(ray, done)

    return execute


def _check(address: str) -> None:
    """Ray itself would retry a wrong address for minutes; a bag after --ray looks like one."""
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise PenumbraError(
            f"--ray {address}: give auto or HOST:PORT, or nothing to start one here; put bags "
            "before the options"
        )
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise PenumbraError(f"--ray {address}: {error}; {_WHAT_TO_DO}") from error


def _imported() -> ModuleType:
    # Ray reports usage statistics by default.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise PenumbraError(
            "Ray is not installed: run scripts/setup dev, or pip install '.[fleet]' in its folder"
        ) from None
    return ray


@contextlib.contextmanager
def _connected(ray: ModuleType, address: str, cores: int | None) -> Iterator[None]:
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == LOCAL:
        options |= {"num_cpus": cores, "include_dashboard": False}
        # Otherwise Ray writes a token to the home folder, and clusters started later require it.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        ray.init(address, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise PenumbraError(f"--ray {address}: {_one_line(error)}; {_WHAT_TO_DO}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _cores_of_a_task(ray: ModuleType, threads: int) -> float:
    """One core per thread, but at most as many tasks per machine as half its ROS domains."""
    largest = max(machine["Resources"].get("CPU", 0.0) for machine in ray.nodes())
    if threads > largest:
        raise PenumbraError(
            f"--threads is {threads}: no machine of this Ray has more than {largest:g} cores"
        )
    return max(float(threads), largest / (len(DOMAINS) // 2))


def _result(ray: ModuleType, done: Any) -> BagResult:
    try:
        return ray.get(done)
    except ray.exceptions.WorkerCrashedError:
        line = f"its worker died {RETRIES + 1} times, killed or out of memory"
        return BagResult(error=line, details="see the logs of Ray: /tmp/ray/session_latest/logs")
    except ray.exceptions.RayError as error:
        return BagResult(error=f"Ray: {_one_line(error)}", details=str(error))


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

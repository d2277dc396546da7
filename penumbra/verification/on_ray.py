"""Jobs on Ray: one task per bag, on this machine or on all machines of a cluster.

A task whose worker dies is given to another, `RETRIES` times; what it had sampled by then is kept
on its machine (`penumbra.verification.reference`). Results come back to the process that asked, and
only it writes them. So bags and bundle have to be readable under the same path on all machines, but
the folder of the report only here.
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
PATIENCE = 10.0  # seconds for a Ray elsewhere to answer
_WHAT_TO_DO = (
    "start one with `ray start --head`, and call this on one of its machines, with the same "
    "RAY_AUTH_MODE"
)


def on_ray(address: str = LOCAL, threads: int = 1, workers: int | None = None) -> Executor:
    """At `address` (`auto`, HOST:PORT), or on a Ray of this machine's own that ends with the job.

    A task takes `threads` cores. `workers` limits how many run at once, on a Ray of our own only.
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
    """Ray itself tries a wrong address for minutes; and a bag behind --ray is taken for one."""
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise PenumbraError(
            f"--ray {address}: give auto or HOST:PORT, or nothing to start one here; bags stand "
            "before the options"
        )
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise PenumbraError(f"--ray {address}: {error}; {_WHAT_TO_DO}") from error


def _imported() -> ModuleType:
    # Ray would tell its makers about every cluster that it starts.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise PenumbraError(
            "Ray is not installed: scripts/setup dev, or pip install '.[fleet]' in its folder"
        ) from None
    return ray


@contextlib.contextmanager
def _connected(ray: ModuleType, address: str, cores: int | None) -> Iterator[None]:
    how: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == LOCAL:
        how |= {"num_cpus": cores, "include_dashboard": False}
        # Otherwise Ray leaves one in the home folder, by which it then starts clusters that ask
        # for it.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        ray.init(address, **how)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise PenumbraError(f"--ray {address}: {_one_line(error)}; {_WHAT_TO_DO}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _cores_of_a_task(ray: ModuleType, threads: int) -> float:
    """As many as threads, but never more tasks at once on a machine than half its ROS domains."""
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
        return BagResult(
            error=line, details="Ray's own logs say more: /tmp/ray/session_latest/logs"
        )
    except ray.exceptions.RayError as error:
        return BagResult(error=f"Ray: {_one_line(error)}", details=str(error))


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

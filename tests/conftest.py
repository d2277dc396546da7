"""What every test may ask for: the data sets, a ROS domain of its own, a clean shell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penumbra.replay.domain import private_domain

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PENUMBRA_DATA") or ROOT.parent / "shared" / "data")
DATA_REQUIRED = os.environ.get("PENUMBRA_DATA_REQUIRED") == "1"

# What a Python of .venv sets for itself; a script tested as a user starts it must not see it.
OWN_VARIABLES = (
    "AMENT_PREFIX_PATH",
    "CMAKE_PREFIX_PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "_ROS_WHEELS_BOOTSTRAP_COMPLETE",
)


@pytest.fixture(scope="session", autouse=True)
def _private_session() -> Iterator[None]:
    """Even a test that forgets `ros_domain` meets nobody outside of this pytest process."""
    with private_domain():
        yield


@pytest.fixture
def ros_domain() -> Iterator[int]:
    """A ROS domain for this test alone, set for it and for the processes that it starts."""
    with private_domain() as domain:
        yield domain


@pytest.fixture
def shell_environment() -> dict[str, str]:
    """The environment variables as in a terminal where nothing was activated or sourced."""
    inside = str(ROOT / ".venv" / "bin")
    environment = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    path = [entry for entry in environment["PATH"].split(os.pathsep) if entry != inside]
    return {**environment, "PATH": os.pathsep.join(path)}


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory of the real data sets; whoever asks for it is skipped where there is none."""
    if not DATA.is_dir():
        pytest.skip(f"no data sets in {DATA}; set PENUMBRA_DATA")
    return DATA.resolve()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test that needs the data or a GPU its marker, its fixture, its reason to skip."""
    without_gpu = pytest.mark.skip(reason="no CUDA GPU on this machine")
    for item in items:
        if "data_dir" in item.fixturenames:
            item.add_marker("data")
        elif item.get_closest_marker("data"):
            item.fixturenames.append("data_dir")
        if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
            item.add_marker(without_gpu)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """With PENUMBRA_DATA_REQUIRED=1 a data test that skips, for whatever reason, has failed."""
    report = (yield).get_result()
    if DATA_REQUIRED and report.skipped and item.get_closest_marker("data"):
        *_, reason = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason}\nPENUMBRA_DATA_REQUIRED=1: a data test must not skip"

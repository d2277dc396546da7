"""What every test may ask for: the data sets, a ROS domain of its own, a clean shell."""

from __future__ import annotations

import os
from collections import defaultdict
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--long`, which `scripts/test` passes on."""
    parser.addoption("--long", action="store_true", help="also run the tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every test that needs the data or a GPU its marker, its fixture, its reason to skip."""
    deselect_long(config, items)
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


def deselect_long(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `long`, unless `--long` is given."""
    if config.getoption("--long"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print where the time of the suite goes: one line for each folder of tests."""
    seconds: dict[str, float] = defaultdict(float)
    for report in (each for some in terminalreporter.stats.values() for each in some):
        if isinstance(report, pytest.TestReport):
            folders = Path(report.nodeid.partition("::")[0]).parts[:-1]
            seconds["/".join(folders[:2]) or "."] += report.duration
    if not seconds or terminalreporter.verbosity < 0:
        return
    terminalreporter.section("time by folder (summed over all processes)")
    for folder, time in sorted(seconds.items(), key=lambda entry: -entry[1]):
        terminalreporter.write_line(f"{time:8.1f} s  {folder}")
    terminalreporter.write_line(f"{sum(seconds.values()):8.1f} s  in all")

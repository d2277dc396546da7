"""The switches of conftest.py do what CI relies on; tried on a small suite of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
SUITE = """
import pytest

def test_reads_the_data(data_dir):
    assert data_dir.is_dir()

@pytest.mark.data
def test_only_marked():
    pass

@pytest.mark.data
def test_skips_by_itself():
    pytest.skip("this part of the data is missing")

def test_needs_no_data():
    pass
"""
TIMED_SUITE = """
import time, pytest

@pytest.fixture
def slow_to_set_up():
    time.sleep(0.3)

def test_short(slow_to_set_up):
    pass

@pytest.mark.long
def test_long():
    pass
"""


def outcome(folder: Path, *options: str, suite: str = SUITE, **settings: str) -> str:
    """What pytest prints of a suite in tests/vehicle/node."""
    shutil.copy(CONFTEST, folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    data\n    gpu\n    long\n")
    (folder / "tests" / "vehicle" / "node").mkdir(parents=True)
    (folder / "tests" / "vehicle" / "node" / "test_sample.py").write_text(suite)
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-rs", *options, str(folder)]
    environment = {**os.environ, **settings}
    done = subprocess.run(
        [sys.executable, *words], env=environment, cwd=folder, capture_output=True, text=True
    )
    return done.stdout


def test_without_data_the_data_tests_skip_and_say_why(tmp_path):
    missing = str(tmp_path / "nowhere")
    text = outcome(tmp_path, PENUMBRA_DATA=missing, PENUMBRA_DATA_REQUIRED="")
    assert "1 passed, 3 skipped" in text
    assert f"no data sets in {missing}; set PENUMBRA_DATA" in text


@pytest.mark.parametrize(
    "data, counts", [("nowhere", "1 passed, 3 errors"), (".", "1 failed, 3 passed")]
)
def test_where_data_is_required_no_data_test_may_skip(tmp_path, data, counts):
    text = outcome(tmp_path, PENUMBRA_DATA=str(tmp_path / data), PENUMBRA_DATA_REQUIRED="1")
    assert counts in text
    assert "a data test must not skip" in text


@pytest.mark.parametrize(
    "options, counts",
    [([], "1 passed, 1 deselected"), (["--long", "-n", "1"], "2 passed")],
    ids=["default", "long"],
)
def test_long_tests_run_on_demand_and_time_is_shown_by_folder(tmp_path, options, counts):
    """The time includes that of fixtures, and what another process ran."""
    text = outcome(tmp_path, *options, suite=TIMED_SUITE)
    assert counts in text
    (line,) = (line for line in text.splitlines() if line.endswith(" s  tests/vehicle"))
    assert float(line.split()[0]) >= 0.3

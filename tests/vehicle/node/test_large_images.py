"""Shared memory is large enough for images, and the user's settings take precedence."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penumbra.share import config_folder
from penumbra.vehicle.node.large_images import PROFILES, make_room_for_images

SEGMENT = 16 * 2**20


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PROFILES, "")  # so that monkeypatch restores it after the test
    monkeypatch.delenv(PROFILES)
    monkeypatch.delenv("RMW_IMPLEMENTATION", raising=False)
    monkeypatch.delenv("FASTDDS_BUILTIN_TRANSPORTS", raising=False)


# Fast DDS reads its profiles once per process, so this needs a process of its own.
SIZES = """
from pathlib import Path
from penumbra.replay.session import Session

before = set(Path("/dev/shm").glob("fastrtps_*"))
with Session():
    made = set(Path("/dev/shm").glob("fastrtps_*")) - before
    print(*(file.stat().st_size for file in made))
"""


def test_a_node_has_a_large_segment(ros_domain):
    done = subprocess.run([sys.executable, "-c", SIZES], capture_output=True, text=True, check=True)
    assert max(map(int, done.stdout.split())) >= SEGMENT
    make_room_for_images()
    assert os.environ[PROFILES] == str(config_folder() / "fastdds.xml")


@pytest.mark.parametrize("whose", ["variable", "file", "middleware", "transports"])
def test_settings_of_the_user_take_precedence(monkeypatch, tmp_path, whose):
    if whose == "variable":
        monkeypatch.setenv(PROFILES, "mine.xml")
    elif whose == "file":
        (tmp_path / "DEFAULT_FASTRTPS_PROFILES.xml").write_text("")
    elif whose == "transports":
        monkeypatch.setenv("FASTDDS_BUILTIN_TRANSPORTS", "UDPv4")
    else:
        monkeypatch.setenv("RMW_IMPLEMENTATION", "rmw_cyclonedds_cpp")
    make_room_for_images()
    assert os.environ.get(PROFILES) == ("mine.xml" if whose == "variable" else None)

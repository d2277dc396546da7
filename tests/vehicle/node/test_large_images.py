"""Shared memory is large enough for images, and the user's settings take precedence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penumbra.replay.session import Session
from penumbra.share import config_folder
from penumbra.vehicle.node.large_images import PROFILES, make_room_for_images

SHARED = Path("/dev/shm")
SEGMENT = 16 * 2**20


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PROFILES, "")  # so that monkeypatch restores it after the test
    monkeypatch.delenv(PROFILES)
    monkeypatch.delenv("RMW_IMPLEMENTATION", raising=False)
    monkeypatch.delenv("FASTDDS_BUILTIN_TRANSPORTS", raising=False)


def test_a_node_has_a_large_segment(ros_domain):
    before = set(SHARED.glob("fastrtps_*"))
    with Session():
        sizes = [file.stat().st_size for file in set(SHARED.glob("fastrtps_*")) - before]
    assert os.environ[PROFILES] == str(config_folder() / "fastdds.xml")
    assert max(sizes) >= SEGMENT


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

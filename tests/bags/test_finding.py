"""Bags are found anywhere below a folder; other paths are refused with the reason."""

from __future__ import annotations

import pytest
from small_drives import TENTH, write_images

from penumbra.bags import find_bags
from penumbra.errors import PenumbraError


@pytest.fixture
def drives(tmp_path):
    for name in ("monday/second", "monday/first", "sunday"):
        write_images(tmp_path / name, [TENTH])
    (tmp_path / "old.bag").write_bytes(b"#ROSBAG V2.0\n")
    (tmp_path / "notes.txt").write_text("nothing")
    write_images(tmp_path / ".hidden" / "one", [TENTH])
    (tmp_path / "monday" / "up").symlink_to(tmp_path)  # for ever, if it were followed
    (tmp_path / "tuesday").symlink_to(tmp_path / "sunday")
    return tmp_path


def test_all_below_a_folder(drives):
    found = [path.relative_to(drives).as_posix() for path in find_bags(drives)]
    assert found == ["monday/first", "monday/second", "old.bag", "sunday", "tuesday"]


def test_a_bag_is_itself(drives):
    assert find_bags(drives / "sunday") == [drives / "sunday"]
    (file,) = (drives / "sunday").glob("*.mcap")
    assert find_bags(file) == [file]


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere", "no bag"), ("empty", "neither metadata.yaml"), ("notes.txt", "rosbag2 folder")],
)
def test_nothing_to_find(drives, name, message):
    (drives / "empty").mkdir()
    with pytest.raises(PenumbraError, match=message):
        find_bags(drives / name)

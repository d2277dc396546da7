"""Folders that are made to stop their reader: metadata.yaml, FIFOs, devices, files elsewhere."""

from __future__ import annotations

import os

import pytest
from hostile_bags import metadata_of, read_within_limits
from small_drives import small_drive

from penumbra.bags import write_drive


@pytest.mark.parametrize("what", ["storage", "metadata", "both"])
def test_a_fifo_in_the_folder_does_not_block(tmp_path, what):
    bag = tmp_path / "bag"
    write_drive(small_drive(1), bag)
    for name in {"storage": ["bag.mcap"], "metadata": ["metadata.yaml"]}.get(
        what, ["bag.mcap", "metadata.yaml"]
    ):
        (bag / name).unlink()
        os.mkfifo(bag / name)
    outcome = read_within_limits(bag)
    assert (outcome.messages > 0) == (what == "metadata")
    assert len(outcome.lines) == 1


def test_metadata_without_end(tmp_path):
    bag = tmp_path / "bag"
    write_drive(small_drive(1), bag)
    (bag / "metadata.yaml").unlink()
    (bag / "metadata.yaml").symlink_to("/dev/zero")
    assert read_within_limits(bag).messages == 2


METADATA = {
    "aliases": "a: &a [b, b]\nc: &c [*a, *a]\n",
    "brackets": "[" * 10**5,
    "digits": "rosbag2_bagfile_information:\n  version: " + "9" * 10**5,
    "size": "a" * (3 << 20),
    "control characters": "rosbag2_bagfile_information: {relative_file_paths: ['\\e[2J\\n.mcap']}",
}


@pytest.mark.parametrize("kind", METADATA)
def test_hostile_metadata_costs_a_line_but_no_message(tmp_path, kind):
    bag = tmp_path / "bag"
    write_drive(small_drive(1), bag)
    (bag / "metadata.yaml").write_text(METADATA[kind])
    outcome = read_within_limits(bag)
    assert outcome.messages == 2
    assert len(outcome.warnings) == 1 and outcome.error is None


def test_metadata_that_names_a_file_elsewhere(tmp_path):
    write_drive(small_drive(1), tmp_path / "secret")
    bag = tmp_path / "bag"
    write_drive(small_drive(2), bag)
    metadata_of(bag, "../secret/secret.mcap")
    outcome = read_within_limits(bag)
    assert outcome.messages == 4  # its own
    assert "files are missing" in outcome.warnings[0]

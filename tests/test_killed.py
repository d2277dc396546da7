"""Killed at any moment: nothing is corrupt, and nothing is lost that was said to be saved."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killed import SCENARIOS
from small_drives import picture, read, small_drive

from penumbra.bags import BagWriter, find_bags, open_bag, write_drive
from penumbra.bags.messages import IMAGE, START_NS, image
from penumbra.bags.writer import leftovers

KILLED = Path(__file__).with_name("killed.py")
MOST_EVENTS = 400  # accesses to the file system of one save, at most


def start(name: str, folder: Path, *words: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(KILLED), name, str(folder), "0", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said(output: str) -> int:
    """The last number that was said to be saved; a line that is cut was not said."""
    return max((int(line.split()[1]) for line in output.split("\n")[:-1]), default=-1)


def killed_at_event(name: str, folder: Path, event: int) -> bool:
    """Kill a process before its access number `event` and check; False if it ended before."""
    folder.mkdir()
    process = start(name, folder, event)
    output, _ = process.communicate(timeout=120)
    if process.returncode == 0:
        return False
    assert process.returncode == -signal.SIGKILL
    SCENARIOS[name].check(folder, said(output))
    return True


def killed_after(name: str, folder: Path, seconds: float) -> None:
    """Kill a process `seconds` after its first save, and check."""
    folder.mkdir()
    with start(name, folder) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        output = first + process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    SCENARIOS[name].check(folder, said(output))


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_some_moments(tmp_path, name):
    for number, event in enumerate((1, 7)):
        killed_at_event(name, tmp_path / f"event{number}", event)
    killed_after(name, tmp_path / "time", random.Random(name).uniform(0, 0.2))


@pytest.mark.long
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_before_every_access_to_the_file_system(tmp_path, name):
    event = 0
    while killed_at_event(name, tmp_path / str(event), event):
        event += 1
        assert event < MOST_EVENTS
    assert event > 3
    print(f"{name}: killed at {event} events")


@pytest.mark.long
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_25_random_moments(tmp_path, name):
    chance = random.Random(name)
    for number in range(25):
        killed_after(name, tmp_path / str(number), chance.uniform(0, 0.3))


RECORDER = """
import sys, time
from pathlib import Path
import numpy as np
from penumbra.bags import BagWriter
from penumbra.bags.messages import IMAGE, START_NS, image
noise = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
with BagWriter(Path(sys.argv[1])) as bag:
    for number in range(10):
        stamp = START_NS + number
        bag.write("/camera/image_raw", IMAGE, stamp, image(stamp, "camera", noise, "bgr8"))
    print("written", flush=True)
    time.sleep(300)
"""


def test_the_next_run_names_what_a_killed_recorder_left(tmp_path, capsys):
    with subprocess.Popen(
        [sys.executable, "-c", RECORDER, str(tmp_path / "first drive")], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        told: list[str] = []
        with BagWriter(tmp_path / "beside", warn=told.append) as bag:
            bag.write("/a", IMAGE, START_NS, image(START_NS, "camera", picture(0), "bgr8"))
        assert told == []  # it is still being written
        process.send_signal(signal.SIGKILL)
    write_drive(small_drive(1), tmp_path / "second")
    (line,) = capsys.readouterr().err.splitlines()
    (left,) = leftovers(tmp_path)
    assert left.name == "first drive" and left.parent.name.startswith(".first drive.")
    assert line == (
        f"penumbra: warning: a run that was killed has left {left}: `penumbra bag convert '{left}'"
        f" --out NAME` recovers what is in it, `rm -r '{left.parent}'` deletes it"
    )
    warnings: list[str] = []
    with open_bag(left, warnings.append) as bag:
        assert len(list(bag.raw())) >= 5
    assert len(warnings) == 1
    assert [path.name for path in find_bags(tmp_path)] == ["beside", "second"]


def test_what_only_looks_like_a_leftover_is_not_named(tmp_path, capsys):
    (tmp_path / ".config.abcdefgh").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".notes.abcdefgh").write_text("mine")
    write_drive(small_drive(1), tmp_path / "bag")
    assert capsys.readouterr().err == ""
    assert len(read(tmp_path / "bag")) == 2

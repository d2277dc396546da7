"""A process whose parent is killed is killed too; otherwise its module runs as it always does."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from penumbra.replay import child

CHILD = """
import sys, time
if __name__ == "__main__":
    print("child", *sys.argv[1:], flush=True)
    time.sleep(3600 if "wait" in sys.argv else 0)
"""
PARENT = """
import subprocess, sys
from penumbra.replay.child import command
subprocess.run(command("child", "-p", "wait"))
"""

HOLDER = """
import sys, time
from pathlib import Path
from penumbra.replay.process import node_process
with node_process({"autostart": False}, Path(sys.argv[1])) as node:
    print(node.pid, flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    (tmp_path / "child.py").write_text(CHILD)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def test_a_child_dies_with_its_killed_parent(environment):
    words = [sys.executable, "-c", PARENT]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout.readline() == "child -p wait\n"
        parent.send_signal(signal.SIGKILL)
        # The child has the pipe as well: it ends when both have. The time is for failing only.
        assert parent.communicate(timeout=60) == ("", None)


def test_a_module_runs_as_by_itself(environment):
    words = child.command("child", "--ros-args", "-p", "a:=b")
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "child --ros-args -p a:=b\n"


def test_a_parent_that_has_ended_already_is_noticed(environment):
    words = child.command("child")
    words[words.index(str(os.getpid()))] = "1"
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "process 1 has ended" in done.stderr
    assert done.stdout == ""


def test_a_node_dies_with_whoever_started_it(tmp_path, ros_domain):
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "node.log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        node = os.pidfd_open(int(holder.stdout.readline()))
        holder.send_signal(signal.SIGKILL)
    ended = select.poll()
    ended.register(node, select.POLLIN)
    died = ended.poll(60_000)  # milliseconds, for failing only
    if not died:
        signal.pidfd_send_signal(node, signal.SIGKILL)
    os.close(node)
    assert died

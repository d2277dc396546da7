"""The echo node in a process of its own: it says what it waits for, and ends well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_waits_and_ends_on_a_signal(ros_domain, ending):
    node = subprocess.Popen(
        [sys.executable, "-m", "penumbra.nodes.echo_node", "--ros-args", "-r", "__ns:=/front"],
        env={**os.environ, "RCUTILS_LOGGING_BUFFERED_STREAM": "0"},
        stderr=subprocess.PIPE,
        text=True,
    )
    first_line = node.stderr.readline()
    # Here the node is not yet spinning: the moment at which a signal used to end in a traceback.
    assert "waiting for images on /front/echo/image" in first_line
    node.send_signal(ending)
    rest = node.communicate(timeout=60)[1]
    assert (node.returncode, rest) == (0, "")

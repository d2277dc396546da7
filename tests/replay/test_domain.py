"""Two users of one machine get two ROS domains, and give them back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penumbra.errors import PenumbraError
from penumbra.replay import domain
from penumbra.replay.domain import private_domain

# Names its domain, and holds it until its standard input is closed.
HOLD = """
import sys
from penumbra.replay import domain
domain.DOMAINS = range(*map(int, sys.argv[1:]))
with domain.private_domain() as number:
    print(number, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def two_domains(monkeypatch) -> tuple[int, int]:
    """Numbers that nobody else uses, as this process alone has them, and as few as can be."""
    first = 1000 + 2 * os.getpid()
    monkeypatch.setattr(domain, "DOMAINS", range(first, first + 2))
    return first, first + 2


def hold(two_domains) -> subprocess.Popen:
    command = [sys.executable, "-c", HOLD, *map(str, two_domains)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_get_different_domains_and_the_last_one_a_clear_refusal(two_domains):
    first, second = hold(two_domains), hold(two_domains)
    numbers = {int(first.stdout.readline()), int(second.stdout.readline())}
    assert numbers == set(range(*two_domains))
    with pytest.raises(PenumbraError, match="are in use"), private_domain():
        pass
    first.kill()  # even so
    first.communicate()
    with private_domain() as number:
        assert number in numbers
    second.communicate()


def test_the_variables_are_set_and_restored(monkeypatch):
    monkeypatch.setenv("ROS_DOMAIN_ID", "77777")
    monkeypatch.setenv("ROS_LOCALHOST_ONLY", "0")
    monkeypatch.delenv("ROS_AUTOMATIC_DISCOVERY_RANGE", raising=False)
    with private_domain() as number:
        assert os.environ["ROS_DOMAIN_ID"] == str(number)
        assert os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
        assert "ROS_LOCALHOST_ONLY" not in os.environ
    assert os.environ["ROS_DOMAIN_ID"] == "77777"
    assert os.environ["ROS_LOCALHOST_ONLY"] == "0"
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE" not in os.environ


def test_a_test_has_a_domain_of_its_own(ros_domain):
    assert os.environ["ROS_DOMAIN_ID"] == str(ros_domain)
    assert ros_domain in domain.DOMAINS

"""The guard in a process of its own against a publisher that fails in every way, over DDS."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import rclpy
from guarded import AlertSource, Behaviour, GuardProbe, assert_stops
from rclpy.qos import QoSProfile
from std_msgs.msg import String

from penumbra.replay.domain import private_domain
from penumbra.vehicle.node import qos
from penumbra_msgs.msg import OodAlert

pytestmark = pytest.mark.slow
TOPIC = "/penumbra/ood"
# Behaviour: part of the reason that the guard gives.
STOPPING = {
    Behaviour.ALERT: "ALERT",
    Behaviour.STALE: "STALE",
    Behaviour.STARTING: "STARTING",
    Behaviour.UNDEFINED: "undefined level 9",
    Behaviour.SILENT: "",  # which of the three time-outs comes first is open
    Behaviour.ZOMBIE: "",
    Behaviour.FROZEN: "no alert about a new image",
    Behaviour.FUTURE: "in the future",
    Behaviour.OLD: "s old",
    Behaviour.BACKWARDS: "stamps went back",
    Behaviour.UNSTAMPED: "without a valid stamp",
    Behaviour.FLOOD: "more than 200 alerts per second",
}


@pytest.fixture(scope="module")
def guard() -> Iterator[GuardProbe]:
    """A guard for all tests; each leaves it not safe, or finds out that it is."""
    with private_domain(), GuardProbe() as probe:
        probe.wait(safe=False)
        yield probe
        assert "Traceback" not in probe.log()


@pytest.fixture(scope="module")
def shared_source(guard) -> Iterator[AlertSource]:
    with AlertSource() as source:
        yield source


@pytest.fixture
def source(guard, shared_source) -> AlertSource:
    """A source of OKs that the guard trusts."""
    shared_source.behave(Behaviour.OK)
    guard.wait(safe=True)
    return shared_source


@pytest.fixture
def stranger(guard) -> Iterator[rclpy.node.Node]:
    """A node in the domain of the guard."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("stranger", context=context)
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context)


@pytest.mark.parametrize("behaviour", STOPPING, ids=lambda behaviour: behaviour.value)
def test_a_faulty_publisher_is_not_safe_in_time(guard, source, behaviour):
    told = len(guard.reasons)
    fault = time.monotonic()
    source.behave(behaviour)
    assert_stops(guard, fault, stays=1.1)  # longer than a recovery takes
    assert guard.speed_limits[-1] == 0.0
    assert any(STOPPING[behaviour] in reason for reason in guard.reasons[told:])
    back = time.monotonic()
    source.behave(Behaviour.OK)
    assert guard.wait(safe=True) - back >= guard.values["stale_after"] - 0.2


def test_warn_keeps_safe_and_slows_down(guard, source):
    assert guard.speed_limits[-1] == pytest.approx(13.9)
    start = len(guard.messages)
    source.behave(Behaviour.WARN)
    guard.until(lambda: guard.speed_limits[-1] == 5.0, "the speed limit of WARN")
    source.behave(Behaviour.OK)
    guard.until(lambda: guard.speed_limits[-1] > 13, "the speed limit of OK")
    assert all(message.safe for message in guard.messages[start:])


def test_a_stopped_publisher_is_not_safe_in_time(guard, source):
    fault = time.monotonic()
    source.process.send_signal(signal.SIGSTOP)
    try:
        assert_stops(guard, fault, stays=1.1)
    finally:
        source.process.send_signal(signal.SIGCONT)
    guard.wait(safe=True)


@pytest.mark.parametrize("profile", [qos.alerts(0.25), QoSProfile(depth=1)], ids=["same", "other"])
def test_an_impostor_is_not_safe(guard, source, stranger, profile):
    """Whether or not its quality of service lets the guard receive what it says."""
    told = len(guard.reasons)
    publisher = stranger.create_publisher(OodAlert, TOPIC, profile)
    guard.wait(safe=False)
    guard.until(lambda: any("2 publishers" in r for r in guard.reasons[told:]), "the reason")
    stranger.destroy_publisher(publisher)
    guard.wait(safe=True)


def test_an_impostor_of_another_type_is_not_safe(guard, source, stranger):
    publisher = stranger.create_publisher(String, TOPIC, qos.alerts(0.25))
    guard.wait(safe=False)
    stranger.destroy_publisher(publisher)
    guard.wait(safe=True)


def test_a_stopped_guard_does_not_trust_its_queue(guard, source):
    guard.process.send_signal(signal.SIGSTOP)
    pause = 2 * guard.values["heartbeat"] + 0.2  # longer than it may pause unnoticed
    guard.until(lambda: time.monotonic() - guard.messages[-1].at > pause, "silence of the guard")
    assert guard.safe is None
    told = len(guard.reasons)
    guard.process.send_signal(signal.SIGCONT)
    guard.wait(safe=False)
    guard.until(lambda: any("did not run" in r for r in guard.reasons[told:]), "the reason")
    guard.wait(safe=True)


def test_nothing_on_the_network_can_change_the_guard(guard, source):
    services = guard.node.get_service_names_and_types_by_node("penumbra_guard", "/")
    assert services == []


def test_a_publisher_that_was_killed_and_one_that_follows(ros_domain):
    with GuardProbe() as guard:
        with AlertSource() as victim:
            guard.wait(safe=True)
            fault = time.monotonic()
            victim.process.kill()
            assert_stops(guard, fault, stays=1.1)
        with AlertSource():
            guard.wait(safe=True)  # although DDS lists the dead one for 20 s


def test_all_cameras_must_be_ok_and_a_longer_heartbeat_is_incompatible(ros_domain):
    topics = f"{TOPIC},/penumbra/left/ood"
    with GuardProbe(topics=topics) as guard, AlertSource():
        guard.until(
            lambda: any(r.startswith("OK") for r in guard.reasons), "an OK of the first camera"
        )
        guard.until(lambda: "no publisher" in guard.reasons, "the reason of the second camera")
        assert guard.safe is False
    with GuardProbe(heartbeat=0.1) as guard, AlertSource():
        guard.until(
            lambda: any("incompatible" in r for r in guard.reasons), "the reason of the silence"
        )
        assert guard.safe is False


@pytest.mark.parametrize(
    "given, reason",
    [
        ("stale_aftr:=1.0", "unknown parameter stale_aftr: did you mean stale_after?"),
        ("stale_after:=-1.0", "stale_after"),
        ("warn:=maybe", "warn: 'maybe' is not one of"),
        ("fresh_oks:=0", "fresh_oks"),
        ("speed_limit_unsafe:=20.0", "must not rise"),
        ("topics:=/a,/a", "names /a twice"),
        ("max_age:=.nan", "max_age"),
    ],
)
def test_an_invalid_parameter_ends_the_start_in_one_line(ros_domain, given, reason):
    command = [sys.executable, "-m", "penumbra.vehicle.node.guard_node", "--ros-args", "-p", given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert reason in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_help_names_every_parameter(ros_domain):
    command = [sys.executable, "-m", "penumbra.vehicle.node.guard_node", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    from penumbra.vehicle.node.guard_parameters import guard_parameters

    assert all(f"{name}:=" in text for name in guard_parameters())

"""Random requests to every service of the node: each is answered, and the node can be used again.

PENUMBRA_SERVICE_CALLS sets the number of calls, e.g. 20000; -s shows the figures.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import Any

import pytest
import tiny_bundles
from fail_safe import THRESHOLDS, Drive
from hostile_requests import TEXTS, Requests, service_type
from lifecycle_msgs.srv import ChangeState
from perception import STUB_NODE, NodeProcess, Peer, resident, running
from rcl_interfaces.srv import GetParameters, ListParameters, SetParameters
from rclpy._rclpy_pybind11 import NodeNameNonExistentError

from penumbra.vehicle.node import parameters

CALLS = int(os.environ.get("PENUMBRA_SERVICE_CALLS", "300"))
BATCH = 50  # calls, after which the node must be usable
HANG = 5.0  # seconds
ALLOWED = 60 * 2**20  # bytes of growth
# Expected by introspection; any further service is called, too.
KNOWN = {
    "change_state",
    "describe_parameters",
    "get_available_states",
    "get_available_transitions",
    "get_parameter_types",
    "get_parameters",
    "get_state",
    "get_transition_graph",
    "list_parameters",
    "set_parameters",
    "set_parameters_atomically",
}
LABELS = [
    "configure", "activate", "deactivate", "cleanup", "transition_success", "transition_error",
    "transition_failure", "create", "unknown",
]  # fmt: skip
SHUTDOWNS = {5, 6, 7, 8}  # the ids of shutdown in each state, and of destroy


@pytest.fixture
def street(tmp_path):
    bundle = tiny_bundles.segmentation(tmp_path / "street", thresholds=THRESHOLDS)
    return {"bundle": bundle.path, "runner": "onnxruntime", "ood.stale_after": 0.5}


@pytest.mark.parametrize("lock", [True, False], ids=["locked", "unlocked"])
def test_every_service_answers_anything(peer, street, lock):
    """Any value of any field, in any state but finalized."""
    with running(str(STUB_NODE), **{**street, "safety.lock": lock}) as node:
        drive = Drive(peer)
        drive.reach_ok()
        services = services_of(peer)
        assert set(services) >= KNOWN
        listed = peer.call(ListParameters, "/penumbra/list_parameters", ListParameters.Request())
        requests = Requests(int(lock), [*listed.result.names, *LABELS])
        choose = random.Random(int(lock))
        start = values_at(peer, listed.result.names)
        made: Counter[str] = Counter()
        longest, before, begun = 0.0, 0, time.monotonic()
        while made.total() < CALLS // 2:
            for _ in range(BATCH):
                name = choose.choice([*services, "change_state", "set_parameters"])
                request = requests.fill(services[name].Request)
                if services[name] is ChangeState and is_shutdown(request):
                    continue
                called = time.monotonic()
                peer.call(services[name], f"/penumbra/{name}", request)
                longest = max(longest, time.monotonic() - called)
                made[name] += 1
            restore(peer, start)
            first = len(drive.alerts)
            drive.run(lambda first=first: good_since(drive, first), "OK again")
            before = before or resident(node.process.pid)
            for received in peer.received.values():
                del received[:-1]  # bounds the memory of the test
            del drive.alerts[:-1]
        after = resident(node.process.pid)
        print(
            f"\n{made.total()} calls in {time.monotonic() - begun:.0f} s, longest {longest:.2f} s;"
            f" resident {before / 1e6:.0f} -> {after / 1e6:.0f} MB; {len(node.log)} lines in the "
            f"log; {dict(made)}"
        )
        assert longest < HANG
        assert after - before < ALLOWED
        assert_log_of_the_node(node)


@pytest.mark.parametrize("label", ["shutdown", "active_shutdown"])
def test_after_shutdown_every_service_still_answers(peer, street, label):
    """The node stays as it is, publishes STALE, and can be ended."""
    with running(str(STUB_NODE), **street) as node:
        drive = Drive(peer)
        drive.reach_ok()
        assert peer.change("shutdown") is (label == "shutdown") or peer.state() == "finalized"
        requests = Requests(0, LABELS)
        for name, kind in services_of(peer).items():
            for _ in range(3):
                peer.call(kind, f"/penumbra/{name}", requests.fill(kind.Request))
        assert peer.state() == "finalized"
        first = len(drive.alerts)
        peer.wait(lambda: len(drive.alerts) > first + 2, "alerts")
        assert drive.level == "STALE"
        assert_log_of_the_node(node)


@pytest.mark.parametrize("text", [text for text in TEXTS if not text.isprintable()])
def test_text_from_outside_cannot_forge_the_log(peer, street, text):
    """A label or name with escape sequences or line breaks is escaped, not printed."""
    with running(str(STUB_NODE), autostart=False, **street) as node:
        peer.change(text)
        request = SetParameters.Request()
        request.parameters = [_parameter(text, "x"), _parameter("runner", text)]
        peer.call(SetParameters, "/penumbra/set_parameters", request)
        node.wait_for("transition requested from outside")
        node.wait_for("parameter refused")
        assert_log_of_the_node(node)


def services_of(peer: Peer) -> dict[str, Any]:
    """The services of the node by introspection: last part of the name, and type."""

    def found() -> dict[str, Any]:
        try:
            pairs = peer.node.get_service_names_and_types_by_node("penumbra", "/")
        except NodeNameNonExistentError:  # not discovered yet
            return {}
        return {name.rpartition("/")[2]: service_type(kinds[0]) for name, kinds in pairs}

    peer.wait(lambda: set(found()) >= KNOWN, "all services")
    return found()


def is_shutdown(request: ChangeState.Request) -> bool:
    transition = request.transition
    return "shutdown" in transition.label or transition.id in SHUTDOWNS


def values_at(peer: Peer, names: list[str]) -> dict[str, Any]:
    """The values of all parameters that can be set."""
    fixed = {n for n, p in parameters.parameters().items() if p.changes == parameters.NEVER}
    wanted = [name for name in names if name not in fixed and not name.startswith("start_type")]
    request = GetParameters.Request(names=wanted)
    answer = peer.call(GetParameters, "/penumbra/get_parameters", request)
    return dict(zip(wanted, answer.values, strict=True))


def restore(peer: Peer, start: dict[str, Any]) -> None:
    """Bring the node to the state active, with the parameters of its start."""
    ways = {"active": "deactivate", "inactive": "cleanup"}
    while (state := peer.state()) != "unconfigured":
        peer.change(ways[state])
    request = SetParameters.Request()
    for name, value in start.items():
        request.parameters.append(_parameter(name))
        request.parameters[-1].value = value
    results = peer.call(SetParameters, "/penumbra/set_parameters", request).results
    refused = {n: r.reason for n, r in zip(start, results, strict=True) if not r.successful}
    assert set(refused) <= {"use_sim_time", "label_names"}, refused
    assert peer.change("configure")
    assert peer.change("activate")


def good_since(drive: Drive, first: int) -> bool:
    return any(
        alert.header.frame_id and alert.level == alert.OK for _, alert in drive.alerts[first:]
    )


def assert_log_of_the_node(node: NodeProcess) -> None:
    """Every line is one that the node wrote, without a control character in it."""
    for line in list(node.log):
        assert line.isprintable() and (not line or line.startswith("[")), repr(line[:300])
        assert len(line) < 3000, repr(line[:300])


def _parameter(name: str, text: str = "") -> Any:
    from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue

    value = ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=text)
    return Parameter(name=name, value=value)

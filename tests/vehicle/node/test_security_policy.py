"""The SROS 2 policy has the form that SROS 2 reads, and covers what the processes really use."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tiny_bundles
from guarded import GuardProbe
from perception import Peer, running

from penumbra.replay.session import Session

POLICY = Path(__file__).resolve().parents[3] / "config" / "sros2" / "policy.xml"
# Names that are used with other parameters only, or where a package is installed.
OPTIONAL = {"/clock", "/penumbra/image/compressed", "/penumbra/label_info"}

# SROS 2's policy schema 0.2.0, as far as this policy uses it. Element: its required and optional
# attributes, and its children, all of which may be repeated unless marked.
RULE = r"ALLOW|DENY"
STRUCTURE = {
    "policy": ({"version": r"0\.2\.0"}, {}, {"enclaves"}),
    "enclaves": ({}, {}, {"enclave"}),
    "enclave": ({"path": r"(/\w+)+"}, {}, {"profiles"}),
    "profiles": ({}, {"type": r".*"}, {"profile"}),
    "profile": ({"ns": r"/\w*(/\w+)*", "node": r"\w+"}, {}, {"topics", "services", "actions"}),
    "topics": ({}, {"publish": RULE, "subscribe": RULE}, {"topic"}),
    "services": ({}, {"reply": RULE, "request": RULE}, {"service"}),
    "actions": ({}, {"call": RULE, "execute": RULE}, {"action"}),
}
NAME = re.compile(r"(~|/?\w+)(/\w+)*")  # a topic, service or action


def faults(element: ElementTree.Element, place: str = "") -> list[str]:
    """Where an element departs from the structure."""
    here = f"{place}/{element.tag}"
    if element.tag in ("topic", "service", "action"):
        fine = NAME.fullmatch(element.text or "") and not len(element) and not element.attrib
        return [] if fine else [f"{here}: {element.text!r}"]
    if element.tag not in STRUCTURE:
        return [f"{here}: unknown"]
    required, optional, children = STRUCTURE[element.tag]
    found = [f"{here}: no {name}" for name in required if name not in element.attrib]
    for name, value in element.attrib.items():
        pattern = {**required, **optional}.get(name)
        if pattern is None or not re.fullmatch(pattern, value):
            found.append(f"{here}: {name}={value!r}")
    if not len(element):
        found.append(f"{here}: empty")
    if (element.text or "").strip():
        found.append(f"{here}: text")
    for child in element:
        found += faults(child, here) if child.tag in children else [f"{here}: {child.tag} in it"]
    return found


def allowed(node: str, kind: str, right: str) -> set[str]:
    """The full names that a node's profile allows."""
    (profile,) = ElementTree.parse(POLICY).findall(f".//profile[@node='{node}']")
    prefix = f"{profile.get('ns').rstrip('/')}/{node}"
    return {
        name.text.replace("~", prefix, 1)
        for group in profile.findall(f"{kind}[@{right}='ALLOW']")
        for name in group
    }


def test_the_policy_has_the_structure_of_sros2():
    root = ElementTree.parse(POLICY).getroot()
    assert faults(root) == []
    paths = [enclave.get("path") for enclave in root.iter("enclave")]
    assert paths == ["/penumbra/perception", "/penumbra/guard", "/penumbra/replay"]


@pytest.mark.parametrize(
    "change",
    [
        ('version="0.2.0"', 'version="0.1.0"'),
        ('publish="ALLOW"', 'publish="YES"'),
        ('publish="ALLOW"', 'advertise="ALLOW"'),
        ('node="penumbra_guard"', ""),
        ("<topic>~/safe</topic>", "<topic>~/sa fe</topic>"),
        ("<topic>~/safe</topic>", "<service>~/safe</service>"),
        ("profiles>", "profile_list>"),
    ],
)
def test_a_broken_policy_is_found(change):
    """So that the test above means something."""
    text = POLICY.read_text()
    assert change[0] in text
    assert faults(ElementTree.fromstring(text.replace(*change))) != []


def test_the_policy_is_valid_by_the_schema_of_sros2():
    """With SROS 2's own loader, which validates against its schema."""
    pytest.importorskip("sros2", reason="sros2 is not on PyPI: run this with ROS 2 from apt")
    from sros2.policy import load_policy

    load_policy(POLICY)


def test_nobody_may_change_the_perception_node():
    """And only the perception node publishes alerts, and only the guard decisions."""
    for node in ("penumbra_guard", "penumbra_replay"):
        asked = allowed(node, "services", "request")
        assert not {name for name in asked if "set_parameters" in name or "change_state" in name}
        assert "/penumbra/ood" not in allowed(node, "topics", "publish")
    for node in ("penumbra", "penumbra_replay"):
        assert "/penumbra_guard/safe" not in allowed(node, "topics", "publish")


def used(node, name: str) -> dict[tuple[str, str], set[str]]:
    """What the graph says that a node uses, by kind and right; nothing before it is discovered."""
    calls: dict[tuple[str, str], Callable] = {
        ("topics", "publish"): node.get_publisher_names_and_types_by_node,
        ("topics", "subscribe"): node.get_subscriber_names_and_types_by_node,
        ("services", "reply"): node.get_service_names_and_types_by_node,
        ("services", "request"): node.get_client_names_and_types_by_node,
    }
    if (name, "/") not in node.get_node_names_and_namespaces():
        return {which: set() for which in calls}
    return {which: {entry[0] for entry in call(name, "/")} for which, call in calls.items()}


def beyond(node, name: str) -> list[str]:
    """What a node uses and its profile does not allow."""
    return [
        f"{right} {entry}"
        for (kind, right), names in used(node, name).items()
        for entry in sorted(names - allowed(name, kind, right))
    ]


@pytest.mark.slow
def test_the_perception_node_needs_exactly_what_the_policy_allows(peer: Peer, tmp_path):
    seen: dict[tuple[str, str], set[str]] = {}
    for task in ("segmentation", "depth"):
        bundle = getattr(tiny_bundles, task)(tmp_path / task)
        with running(bundle=bundle.path, runner="onnxruntime") as node:
            node.wait_for("waiting for images")
            peer.wait(
                lambda: (
                    "/penumbra/image" in used(peer.node, "penumbra")["topics", "subscribe"]
                    and len(used(peer.node, "penumbra")["services", "reply"]) >= 12
                ),
                "the node in the graph",
            )
            assert beyond(peer.node, "penumbra") == []
            for which, names in used(peer.node, "penumbra").items():
                seen.setdefault(which, set()).update(names)
        peer.wait(lambda: not peer.node.count_publishers("/penumbra/ood"), "the end of the node")
    unused = {
        f"{right} {name}"
        for (kind, right), names in seen.items()
        for name in allowed("penumbra", kind, right) - names - OPTIONAL
    }
    assert unused == set()


@pytest.mark.slow
def test_the_guard_needs_exactly_what_the_policy_allows(ros_domain):
    with GuardProbe() as guard:
        guard.wait(safe=False)
        assert beyond(guard.node, "penumbra_guard") == []
        for (kind, right), names in used(guard.node, "penumbra_guard").items():
            assert allowed("penumbra_guard", kind, right) - names <= OPTIONAL


@pytest.mark.slow
def test_replay_may_do_what_it_does(ros_domain):
    with Session() as session:
        assert beyond(session.node, "penumbra_replay") == []
    # It plays into every input of the node, and records all that the node publishes under its name.
    inputs = allowed("penumbra", "topics", "subscribe")
    assert inputs <= allowed("penumbra_replay", "topics", "publish")
    outputs = {n for n in allowed("penumbra", "topics", "publish") if n.startswith("/penumbra/")}
    assert outputs == allowed("penumbra_replay", "topics", "subscribe")

"""Text from outside is escaped in HTML pages."""

from __future__ import annotations

from penumbra.verification.facts import SpeedFacts
from penumbra.verification.html_page import document
from penumbra.verification.report import _rows, _speed

SCRIPT = "<script>alert('x')</script>"


def test_the_runner_that_a_node_names_is_escaped():
    """It arrives over DDS, from whoever publishes ~/stats."""
    speed = SpeedFacts(1.0, 1.0, 1.0, {}, {}, 1, 0.0, 36, 48)
    assert "<script" not in _speed(speed, SCRIPT)


def test_names_of_the_bundle_are_escaped():
    assert "<script" not in _rows({SCRIPT: SCRIPT, "data": {SCRIPT: SCRIPT}})
    assert "<script" not in document(SCRIPT, [])

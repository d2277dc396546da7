"""Fixtures of the node's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from perception import Peer


@pytest.fixture
def peer(ros_domain) -> Iterator[Peer]:
    """A test node, in its own ROS domain."""
    peer = Peer()
    yield peer
    peer.close()

"""What the tests of the node share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from perception import Peer


@pytest.fixture
def peer(ros_domain) -> Iterator[Peer]:
    """A node of the test's own, in a ROS domain of its own."""
    peer = Peer()
    yield peer
    peer.close()

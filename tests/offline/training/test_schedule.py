"""The learning rate over time."""

from __future__ import annotations

from itertools import pairwise

from penumbra.offline.training.schedule import rate_factor


def test_warm_up_constant_and_decay():
    open_ended = [rate_factor(step, 4, None, 10) for step in range(100)]
    assert open_ended[:5] == [0.25, 0.5, 0.75, 1.0, 1.0] and set(open_ended[4:]) == {1.0}
    bounded = [rate_factor(step, 4, 100, 10) for step in range(101)]
    assert bounded[:91] == open_ended[:91]
    assert all(a > b for a, b in pairwise(bounded[90:]))
    assert bounded[100] == 0.0


def test_the_decay_starts_at_the_full_rate():
    """Setting the end anywhere keeps the rate continuous: the fall begins at the full rate."""
    assert rate_factor(5000, 200, 5000 + 1000, 1000) == 1.0

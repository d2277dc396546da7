"""Where a falling curve meets a constant."""

import pytest

from penumbra.lab.experiments.similar_cost import crossing


def test_crossing_on_a_straight_line_in_double_logarithms():
    counts = [1, 10, 100, 1000]
    falling = [count**-0.5 for count in counts]
    assert crossing(counts, falling, 50**-0.5) == pytest.approx(50)
    assert crossing(counts, falling, 0.1) == pytest.approx(100)


def test_no_crossing_within_the_counts():
    assert crossing([1, 10], [1.0, 0.3], 0.1) is None
    assert crossing([2, 10], [1.0, 0.3], 5.0) == 2  # the fewest samples are better already

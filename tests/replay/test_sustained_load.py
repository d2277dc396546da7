"""At which times the images of a soak are sent."""

import pytest

from penumbra.replay.sustained_load import next_due


@pytest.mark.parametrize("late", [0.0, 0.003, 0.099])
def test_a_little_late_does_not_shift_the_rest(late):
    assert next_due(10.0, 10.0 + late, 0.1) == pytest.approx(10.1)


@pytest.mark.parametrize("late", [0.1, 0.444])
def test_after_a_standstill_no_two_images_go_at_once(late):
    assert next_due(10.0, 10.0 + late, 0.1) == pytest.approx(10.1 + late)

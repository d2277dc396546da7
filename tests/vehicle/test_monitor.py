"""Scores, hysteresis and regions, against their definitions."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penumbra.errors import PenumbraError
from penumbra.vehicle.monitor import (
    Conditions,
    Level,
    Monitor,
    MonitorSettings,
    frame_score,
    uncertain_regions,
)
from penumbra_msgs.msg import OodAlert

RANDOM = np.random.default_rng(0)
HELD = Conditions.assumed()
SETTINGS = MonitorSettings(frame_threshold=0.5, pixel_threshold=0.5, min_region_area=1)


def flat(value, height=6, width=8):
    return np.full((height, width), value, np.float32)


def monitor(**changes):
    started = Monitor(dataclasses.replace(SETTINGS, **changes))
    started.start(0.0)
    return started


def levels(over, **changes):
    """The levels of a new monitor, for frames over the threshold or not."""
    judging = monitor(**changes)
    return [judging.judge(flat(0.9 if high else 0.1), 0.0, HELD).level for high in over]


def test_levels_are_those_of_the_message():
    assert {level.name: level.value for level in Level} == {
        name: getattr(OodAlert, name) for name in ("STARTING", "OK", "WARN", "ALERT", "STALE")
    }


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 1.0, 1e-9])
def test_score_is_the_mean_of_the_most_uncertain(fraction):
    values = RANDOM.gamma(1.0, 0.1, (90, 120)).astype(np.float32)
    count = max(1, round(fraction * values.size))
    expected = np.sort(values, axis=None)[::-1][:count].astype(np.float64).mean()
    assert frame_score(values, fraction) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.2, 0.9])
@pytest.mark.parametrize("special", [0.0, 1.0])
def test_the_score_does_not_depend_on_the_order_of_pixels(fraction, special):
    """Also if every sixteenth pixel, which the score samples, differs from all others."""
    values = RANDOM.random(160 * 200)
    values[::16] = special
    values = values.reshape(160, 200).astype(np.float32)
    count = round(fraction * values.size)
    expected = np.sort(values, axis=None)[-count:].astype(np.float64).mean()
    assert frame_score(values, fraction) == pytest.approx(expected, rel=1e-12)


def test_a_small_object_raises_the_score_but_not_the_mean():
    values = flat(0.05, 360, 480)
    values[100:140, 200:240] = 0.4  # 0.93 % of the frame
    assert frame_score(values, 0.01) > 0.35
    assert values.mean() < 0.054


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_pixel_raises_an_alert(bad):
    values = flat(0.01, 40, 50)
    values[7, 9] = bad
    assert frame_score(values, 0.01) == math.inf
    judging = monitor()
    verdict = judging.judge(values, 0.0, HELD)
    assert verdict.level == Level.WARN
    assert "non-finite" in verdict.reason
    [region] = verdict.regions
    assert (region.x, region.y, region.area) == (9, 7, 1)
    assert region.max_uncertainty == math.inf
    judging.judge(values, 0.0, HELD)
    assert judging.judge(values, 0.0, HELD).level == Level.ALERT


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (3,), (2, 3, 4), ()])
def test_a_map_of_invalid_shape_is_rejected(shape):
    with pytest.raises(PenumbraError, match="height x width"):
        monitor().judge(np.zeros(shape, np.float32), 0.0, HELD)


def test_regions():
    values = flat(0.1, 40, 60)
    values[2:5, 3:10] = 0.6  # 21 pixels
    values[10:20, 30:40] = 0.7  # 100 pixels, with a hole that contains another
    values[12:18, 32:38] = 0.1
    values[14:16, 34:36] = 0.8  # 4
    values[30, 50] = values[31, 51] = values[32, 50] = 0.9  # touching at corners: 3
    values[39, 0] = 2.0  # 1
    regions, fraction = uncertain_regions(values, 0.5, 2, 10)
    assert [(r.x, r.y, r.width, r.height, r.area) for r in regions] == [
        (30, 10, 10, 10, 64),
        (3, 2, 7, 3, 21),
        (34, 14, 2, 2, 4),
        (50, 30, 2, 3, 3),
    ]
    assert fraction == 93 / 2400
    assert regions[0].mean_uncertainty == pytest.approx(0.7)
    assert len(uncertain_regions(values, 0.5, 1, 10)[0]) == 5
    assert len(uncertain_regions(values, 0.5, 1, 2)[0]) == 2
    assert uncertain_regions(values, 0.5, 1, 0) == ((), 93 / 2400)
    assert uncertain_regions(values, 3.0, 1, 10) == ((), 0.0)


def flood(over):
    """Connected components by flood fill, diagonals included: lists of (row, column)."""
    left, found = set(zip(*np.nonzero(over), strict=True)), []
    while left:
        start = left.pop()
        area, queue = [start], deque([start])
        while queue:
            row, column = queue.popleft()
            for near in [(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]:
                if near in left:
                    left.remove(near)
                    area.append(near)
                    queue.append(near)
        found.append(area)
    return found


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("size", [(30, 40), (17, 5), (1, 60), (300, 330)])  # short, long labels
def test_regions_against_a_flood_fill(size, share):
    values = RANDOM.random(size).astype(np.float32)
    areas = flood(values > 1 - share)
    regions, fraction = uncertain_regions(values, 1 - share, 1, 10**6)
    assert fraction == pytest.approx(sum(map(len, areas)) / values.size)
    assert [r.area for r in regions] == sorted(map(len, areas), reverse=True)
    expected = set()
    for area in areas:
        rows, columns = np.transpose(area)
        inside = values[rows, columns].astype(np.float64)
        box = columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1, len(area)
        expected.add((*map(int, box), round(inside.mean(), 9), float(inside.max())))
    assert {
        (r.x, r.y, r.width, r.height, r.area, round(r.mean_uncertainty, 9), r.max_uncertainty)
        for r in regions
    } == expected


OK, WARN, ALERT = Level.OK, Level.WARN, Level.ALERT


def test_three_of_five_frames_raise_an_alert_and_eight_of_ten_end_it():
    assert levels([0, 1, 0, 1, 0, 0, 1, 0]) == [OK, WARN, OK, WARN, OK, OK, WARN, OK]
    assert levels([1, 1, 1]) == [WARN, WARN, ALERT]
    assert levels([1, 0, 1, 0, 1]) == [WARN, OK, WARN, OK, ALERT]
    assert levels([1, 1, 1] + [0] * 9) == [WARN, WARN, ALERT, *[ALERT] * 7, OK, OK]
    # Two of the ten may be over; if the last one is, the level is WARN.
    assert levels([1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1])[-3:] == [ALERT, OK, WARN]


def test_frames_before_the_alert_do_not_end_it():
    assert levels([0] * 10 + [1, 1, 1] + [0] * 7)[-7:] == [ALERT] * 7


def reference(over, raise_frames, clear_frames):
    """The definition, evaluated over the whole history."""
    found, raised_at = [], None
    for now in range(len(over)):
        needed, window = raise_frames
        raising = sum(over[max(0, now - window + 1) : now + 1]) >= needed
        if raising and raised_at is None:
            raised_at = now
        elif raised_at is not None and not raising:
            needed, window = clear_frames
            since = over[max(raised_at + 1, now - window + 1) : now + 1]
            if len(since) - sum(since) >= needed:
                raised_at = None
        found.append(ALERT if raised_at is not None else WARN if over[now] else OK)
    return found


windows = st.integers(1, 8).flatmap(lambda m: st.tuples(st.integers(1, m), st.just(m)))


@given(st.lists(st.booleans(), max_size=60), windows, windows)
@settings(max_examples=300, deadline=None)
def test_hysteresis_against_its_definition(over, raise_frames, clear_frames):
    found = levels(over, raise_frames=raise_frames, clear_frames=clear_frames)
    assert found == reference(over, raise_frames, clear_frames)


def test_reasons():
    judging = monitor()

    def reason(value):
        return judging.judge(flat(value), 0, HELD).reason

    assert reason(0.1) == "uncertainty: score 0.1 under 0.5"
    assert reason(0.9) == "uncertainty: score 0.9 over 0.5 in 1 of 2 frames"
    reason(0.9)
    assert reason(0.9) == "uncertainty: score 0.9 over 0.5 in 3 of 4 frames"
    last = [reason(0.1) for _ in range(3)][-1]
    assert last == "uncertainty: score 0.1 under 0.5 in 3 of 8 frames that end the alert"


def test_a_verdict_states_its_thresholds_and_score():
    verdict = monitor().judge(flat(0.9), 0.0, HELD)
    assert (verdict.frame_threshold, verdict.pixel_threshold) == (0.5, 0.5)
    assert verdict.score == pytest.approx(0.9)
    assert verdict.uncertain_fraction == 1
    [region] = verdict.regions
    assert (region.x, region.y, region.width, region.height) == (0, 0, 8, 6)


def test_a_score_at_the_threshold_is_not_over_it():
    values = np.full((4, 4), 0.5, np.float64)
    assert monitor().judge(values, 0.0, HELD).level == OK
    assert monitor().judge(values, 0.0, HELD).regions == ()


def test_stale_follows_the_callers_clock_and_is_returned_once():
    judging = monitor(stale_after=1.0)
    assert judging.level == Level.STARTING
    assert judging.check(0.9, HELD) is None
    stale = judging.check(1.1, HELD, "image")
    assert stale.level == judging.level == Level.STALE
    assert stale.reason == "no image for 1.1 s (limit 1 s)"
    assert math.isnan(stale.score)
    assert math.isnan(stale.uncertain_fraction)
    assert stale.regions == ()
    assert judging.check(1.2, HELD) is None
    assert judging.judge(flat(0.1), 5.0, HELD).level == OK
    assert judging.check(5.9, HELD) is None
    assert judging.check(6.1, HELD).level == Level.STALE


def test_a_monitor_that_was_not_started_is_stale():
    judging = Monitor(SETTINGS)
    assert judging.check(0.0, HELD).level == Level.STALE
    started = judging.start(7.0, "building the engine")
    assert (started.level, started.reason) == (Level.STARTING, "building the engine")
    assert judging.check(7.5, HELD) is None


def test_a_failure_is_stale_immediately():
    judging = monitor()
    judging.judge(flat(0.1), 0.0, HELD)
    failed = judging.fail("out of memory")
    assert (failed.level, failed.reason) == (Level.STALE, "out of memory")
    assert judging.fail("out of memory") is None
    assert judging.judge(flat(0.1), 0.1, HELD).level == OK


def test_a_gap_neither_ends_an_alert_nor_forgets_the_frames_before_it():
    judging = monitor()
    for _ in range(3):
        judging.judge(flat(0.9), 0.0, HELD)
    judging.check(10.0, HELD)
    after = [judging.judge(flat(0.1), 10.0, HELD).level for _ in range(8)]
    assert after == [ALERT] * 7 + [OK]
    judging = monitor()
    for _ in range(2):
        judging.judge(flat(0.9), 0.0, HELD)
    judging.check(10.0, HELD)
    assert judging.judge(flat(0.9), 10.0, HELD).level == ALERT  # three of the last five frames


def test_a_restart_resets_the_history():
    judging = monitor()
    for _ in range(3):
        judging.judge(flat(0.9), 0.0, HELD)
    assert judging.start(1.0).level == Level.STARTING
    assert judging.judge(flat(0.1), 1.0, HELD).level == OK


def test_new_settings_keep_the_history():
    judging = monitor()
    for _ in range(2):
        assert judging.judge(flat(0.4), 0.0, HELD).level == OK
    judging.settings = dataclasses.replace(SETTINGS, frame_threshold=0.3)
    assert judging.judge(flat(0.4), 0.0, HELD).level == ALERT  # the third over the new threshold
    judging.settings = dataclasses.replace(SETTINGS, frame_threshold=0.6, clear_frames=(1, 1))
    assert judging.judge(flat(0.4), 0.0, HELD).level == OK
    assert judging.settings.frame_threshold == 0.6


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"frame_threshold": math.nan}, "frame_threshold is nan"),
        ({"pixel_threshold": -0.1}, "pixel_threshold is -0.1"),
        ({"frame_threshold": math.inf}, "frame_threshold is inf"),
        ({"score_fraction": 0.0}, "score_fraction is 0"),
        ({"score_fraction": 1.1}, "at most 1"),
        ({"raise_frames": (6, 5)}, "raise_frames is (6, 5): it must be N, M"),
        ({"clear_frames": (0, 5)}, "clear_frames"),
        ({"clear_frames": (5, 100_000)}, "1000"),
        ({"raise_frames": (1, 2, 3)}, "raise_frames"),
        ({"min_region_area": 0}, "min_region_area is 0"),
        ({"max_regions": -1}, "max_regions is -1"),
        ({"stale_after": 0.0}, "stale_after is 0"),
        ({"stale_after": math.nan}, "stale_after is nan"),
    ],
)
def test_invalid_settings_are_rejected(changes, words):
    with pytest.raises(PenumbraError) as caught:
        dataclasses.replace(SETTINGS, **changes)
    assert words in str(caught.value)


def test_one_thread_judges_and_another_checks():
    """Concurrent checks neither lose nor invent a level."""
    judging, wrong = monitor(stale_after=0.5), []
    done = threading.Event()

    def look():
        while not done.is_set():
            if judging.check(0.1, HELD) is not None:
                wrong.append("stale")
            judging.settings = SETTINGS

    timer = threading.Thread(target=look)
    timer.start()
    found = [judging.judge(flat(0.9), 0.0, HELD).level for _ in range(300)]
    done.set()
    timer.join()
    assert found == [WARN, WARN, *[ALERT] * 298]
    assert wrong == []

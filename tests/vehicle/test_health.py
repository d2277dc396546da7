"""Camera health: scores move as their faults do, ranges are fitted and kept, levels persist."""

from __future__ import annotations

import json

import numpy as np
import pytest
from camera_scenes import scene

from penumbra.errors import PenumbraError
from penumbra.offline.faults import apply
from penumbra.vehicle.monitor.health import HealthMonitor
from penumbra.vehicle.monitor.health_range import SCORES, HealthRange, fit_health
from penumbra.vehicle.monitor.health_scores import measure
from penumbra.vehicle.monitor.levels import Level


@pytest.fixture(scope="module")
def normal():
    return fit_health([[measure(scene(100 * d + i), "bgr8") for i in range(15)] for d in range(3)])


@pytest.mark.parametrize(
    "fault, name, sign",
    [
        ("gaussian_noise", "noise", 1),
        ("defocus_blur", "sharpness", -1),
        ("motion_blur", "streak", 1),
        ("contrast", "contrast", -1),
        ("haze", "haze", 1),
        ("jpeg", "column_blocks", 1),
        ("black", "black", 1),
        ("white", "white", 1),
        ("underexposure", "highlight", -1),
        ("repeated_rows", "repeated_rows", 1),
        ("row_noise", "row_noise", 1),
        ("torn_rows", "torn_rows", 1),
        ("dead_columns", "column_lines", 1),
        ("half_missing", "flat", 1),
    ],
)
def test_a_fault_moves_its_score_out_of_range(normal, fault, name, sign):
    faulty = apply(fault, 3, scene(7), np.random.default_rng(1))
    assert normal.excesses(normal.history().step(measure(faulty, "bgr8")))[name] > 1
    moved = measure(faulty, "bgr8").scores[name] - measure(scene(7), "bgr8").scores[name]
    assert np.sign(moved) == sign


def test_ordinary_frames_are_healthy(normal):
    monitor = HealthMonitor(normal, "bgr8")
    assert [monitor.update(scene(1000 + i), i / 10) for i in range(10)] == [[]] * 10


def test_one_frame_does_not_warn_and_a_lasting_fault_alerts(normal):
    monitor = HealthMonitor(normal, "bgr8")
    black = np.zeros((360, 480, 3), np.uint8)
    assert monitor.update(scene(1), 0.0) == []
    assert monitor.update(black, 0.1) == []
    assert monitor.update(black, 0.2)[0].level is Level.WARN
    worst = monitor.update(black, 0.3)[0]
    assert worst.level is Level.ALERT
    assert worst.excess > 2
    assert worst.reason.endswith(f"{worst.threshold:.3g}")


def test_a_gap_forgets_the_frames_before(normal):
    monitor = HealthMonitor(normal, "bgr8")
    black = np.zeros((360, 480, 3), np.uint8)
    monitor.update(black, 0.0)
    assert monitor.update(black, 60.0) == []


def test_channel_order_is_no_fault_of_the_camera():
    image = scene(3)
    one, other = measure(image, "bgr8"), measure(image[..., ::-1].copy(), "rgb8")
    assert one.scores == pytest.approx(other.scores)


def test_a_range_survives_as_plain_data(normal):
    text = json.dumps(normal.to_dict())
    back = HealthRange.from_dict(json.loads(text))
    assert back.to_dict() == normal.to_dict()
    assert set(back.scores) == set(SCORES)
    assert len(text) < 8000


def test_large_and_small_images():
    for size in ((64, 80), (2160, 3840), (375, 1242)):
        assert set(SCORES) >= set(measure(scene(0, *size), "rgb8").scores)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"schema": 9}, "schema 9, not 1"),
        ({"scores": {"rust": [0, 0, 1]}}, "unknown scores rust"),
        ({"scores": {"black": [2, None, 1]}}, "are not in order"),
        ({"tiles": {}}, "no 'texture'"),
    ],
)
def test_invalid_ranges_are_refused(normal, change, message):
    with pytest.raises(PenumbraError, match=message):
        HealthRange.from_dict(normal.to_dict() | change)


def test_refusals():
    with pytest.raises(PenumbraError, match="needs uint8 colours"):
        measure(np.zeros((90, 90), np.uint8), "bgr8")
    with pytest.raises(PenumbraError, match="channel order 'mono8'"):
        measure(scene(0), "mono8")
    with pytest.raises(PenumbraError, match="the image is 80x40"):
        measure(np.zeros((40, 80, 3), np.uint8), "bgr8")
    with pytest.raises(PenumbraError, match="1 ordinary frames: camera health needs 20"):
        fit_health([[measure(scene(0), "bgr8")]])

"""Camera faults: each does what its constant says, in its own unit, and no more."""

from __future__ import annotations

import functools

import cv2
import numpy as np
import pytest

from penumbra.errors import PenumbraError
from penumbra.offline.faults import FAULTS, SEVERITIES, apply, apply_sequence
from penumbra.offline.faults.light import GAMMA
from penumbra.offline.faults.published import length_scale

ONE_SEVERITY = {"swapped_channels", "upside_down"}


@functools.cache
def street(height=240, width=320):
    """Smooth shapes and texture in mid-tones, so that little is clipped."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(70, 180, (6, 8, 3)).astype(np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(image + rng.normal(0, 6, image.shape), 40, 215).astype(np.uint8)


def grey(value, height=120, width=160):
    return np.full((height, width, 3), value, np.uint8)


def faulty(name, severity, image, seed=0):
    return apply(name, severity, image, np.random.default_rng(seed))


def changed(before, after):
    return (before != after).any(axis=2)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_an_image_and_repeats_with_its_seed(name):
    image = street()
    before = image.copy()
    for severity in SEVERITIES:
        first = faulty(name, severity, image, seed=3)
        assert first.shape == image.shape
        assert first.dtype == np.uint8
        assert (first != image).any()
        assert np.array_equal(first, faulty(name, severity, image, seed=3))
    assert np.array_equal(image, before)


@pytest.mark.parametrize("name", sorted(set(FAULTS) - ONE_SEVERITY - {"fog"}))
def test_severities_grow(name):
    """In mean squared error, over a few seeds: places and angles are drawn at random."""
    image = street().astype(float)
    errors = [
        np.mean([(faulty(name, s, street(), seed) - image) ** 2 for seed in range(12)])
        for s in SEVERITIES
    ]
    assert errors == sorted(errors)
    assert errors[0] < errors[-1]


@pytest.mark.parametrize("severity, amount", [(1, 1.5), (3, 2.5), (5, 3.0)])
def test_fog_takes_the_published_share_of_the_contrast(severity, amount):
    """The mean error of fog need not grow: it is bright or dark where the plasma is."""
    image = grey(50, 224, 224)
    image[::2] = 250
    foggy = faulty("fog", severity, image).astype(float)
    left = np.median(foggy[::2] - foggy[1::2]) / 200
    assert left == pytest.approx(1 / (1 + amount * 255 / 250), abs=0.01)


@pytest.mark.parametrize("severity, std", [(1, 0.08), (3, 0.18)])
def test_gaussian_noise_has_the_published_deviation(severity, std):
    noise = faulty("gaussian_noise", severity, grey(128, 300, 300)) - 128.0
    # 270,000 values: the deviation is known to 0.2 %; clipping at 2.8 σ takes 1 % of it.
    assert noise.std() == pytest.approx(255 * std, rel=0.02)


def test_shot_noise_grows_with_the_root_of_the_light():
    dark, bright = (faulty("shot_noise", 1, grey(v, 300, 300)).std() for v in (40, 160))
    assert bright / dark == pytest.approx(2, rel=0.02)


def test_impulse_noise_replaces_its_share_of_values():
    image = faulty("impulse_noise", 3, grey(128, 300, 300))
    assert np.mean(image == 0) == pytest.approx(0.045, abs=0.002)
    assert np.mean(image == 255) == pytest.approx(0.045, abs=0.002)


def test_lengths_grow_with_the_shorter_side():
    assert length_scale(grey(0, 360, 480)) == pytest.approx(360 / 224)
    for height, width in ((224, 224), (448, 600)):
        point = grey(0, height, width)
        point[height // 2, width // 2] = 255
        lit = faulty("defocus_blur", 1, cv2.dilate(point, np.ones((9, 9)))).any(axis=2)
        reach = np.flatnonzero(lit.any(axis=0))
        radius = (reach[-1] - reach[0] + 1 - 9) / 2
        assert radius == pytest.approx(3 * height / 224, abs=1)


def test_motion_blur_is_a_streak():
    """A point becomes long in one direction and stays thin in the other."""
    point = grey(0, 224, 224)
    point[110:113, 110:113] = 255
    y, x = np.nonzero(faulty("motion_blur", 3, point).any(axis=2))
    spread = np.sqrt(np.linalg.eigvalsh(np.cov(x, y)))
    assert spread[1] > 4 * spread[0]


def test_contrast_and_brightness_as_published():
    image = street()
    left = faulty("contrast", 3, image).std(axis=(0, 1)) / image.std(axis=(0, 1))
    assert left == pytest.approx(0.2, rel=0.05)  # rounding to whole levels adds up to 0.3 level
    lifted = faulty("brightness", 2, image).max(axis=2) - image.max(axis=2).astype(float)
    assert np.median(lifted) == pytest.approx(51, abs=1)


def test_pixelate_has_as_many_blocks_as_at_224():
    image = faulty("pixelate", 5, street(360, 480))
    edges = (np.diff(image.astype(int), axis=0) != 0).any(axis=(1, 2)).sum()
    assert edges == 56 - 1


@pytest.mark.parametrize("name, stops", [("underexposure", -2), ("overexposure", 2)])
def test_exposure_is_in_stops_of_light(name, stops):
    image = faulty(name, 2, grey(90))
    light = (image[0, 0, 0] / 255) ** GAMMA / (90 / 255) ** GAMMA
    assert np.log2(light) == pytest.approx(stops, abs=0.05)  # rounded to whole grey levels


def test_haze_leaves_the_contrast_of_koschmieder():
    """At the horizon, 60 m away, and 100 m of visibility, 0.02 ** 0.6 of a difference is left."""
    dark, bright = (faulty("haze", 3, grey(v, 360, 480)).astype(float) for v in (50, 200))
    assert (bright - dark)[0, 0, 0] == pytest.approx(150 * 0.02**0.6, abs=1)
    assert (bright - dark)[-1, 0, 0] > 120  # the road before the bonnet is still clear


@pytest.mark.parametrize("name", ["dirt", "drops", "tape"])
@pytest.mark.parametrize("severity, share", [(1, 0.02), (3, 0.1), (5, 0.4)])
def test_covers_have_their_share(name, severity, share):
    # Shapes add up until the share is reached, a big one may go beyond; soft edges add a rim.
    found = [changed(street(), faulty(name, severity, street(), seed)).mean() for seed in range(5)]
    assert share <= np.mean(found) < 2.2 * share + 0.03


def test_readout_faults_touch_what_they_say():
    image = street(360, 480)
    assert changed(image, faulty("dead_columns", 3, image)).any(axis=0).sum() == 4
    assert changed(image, faulty("half_missing", 3, image)).any(axis=1).sum() == 180
    assert changed(image, faulty("blocked_tiles", 3, image)).sum() == pytest.approx(
        4 * 60 * 60, rel=0.01
    )
    stuck = faulty("repeated_rows", 3, image)
    assert (np.diff(stuck.astype(int), axis=0) == 0).all(axis=(1, 2)).sum() == 16
    torn = faulty("torn_rows", 3, image)
    row = int(np.argmax(changed(image, torn).any(axis=1)))
    shifts = [s for s in (-16, 16) if np.array_equal(torn[row:], np.roll(image[row:], s, axis=1))]
    assert len(shifts) == 1
    assert np.array_equal(torn[:row], image[:row])


def test_swapped_and_upside_down_undo_themselves():
    for name in ONE_SEVERITY:
        assert np.array_equal(faulty(name, 1, faulty(name, 1, street())), street())


def test_what_stays_stays_during_a_drive():
    for name, fault in FAULTS.items():
        frames = list(apply_sequence(name, 5, [street()] * 3, seed=1))
        random = name not in ONE_SEVERITY and not np.array_equal(
            faulty(name, 5, street(), 1), faulty(name, 5, street(), 2)
        )
        same = np.array_equal(frames[0], frames[1]) and np.array_equal(frames[0], frames[2])
        assert same == (fault.stays or not random), name


def test_flicker_changes_the_gain_from_frame_to_frame():
    frames = list(apply_sequence("flicker", 4, [grey(100)] * 40, seed=0))
    gains = np.array([frame.mean() / 100 for frame in frames])
    assert gains.std() == pytest.approx(0.2 / np.sqrt(2), rel=0.2)
    assert np.abs(gains - 1).max() <= 0.2


def test_refusals():
    rng = np.random.default_rng(0)
    with pytest.raises(PenumbraError, match="no camera fault 'rust': there are gaussian_noise"):
        apply("rust", 1, street(), rng)
    with pytest.raises(PenumbraError, match="severity 6 of fog: it must be 1 to 5"):
        apply("fog", 6, street(), rng)
    with pytest.raises(PenumbraError, match="needs a BGR image of uint8, not float64 of 4 x 4"):
        apply("fog", 1, np.zeros((4, 4)), rng)

"""The fit of familiarity on drives whose distribution is known, and its file."""

from __future__ import annotations

import zipfile
from dataclasses import replace

import numpy as np
import pytest

from penumbra.errors import PenumbraError
from penumbra.offline.fitting.familiarity import collect, fit_familiarity, in_blocks
from penumbra.vehicle.monitor.familiarity import familiarity_bytes, load_familiarity

TAPS = (12, 20)
SIZE = sum(TAPS)


def drives(count: int = 4, frames: int = 300) -> dict[str, np.ndarray]:
    """Drives that differ in their centre, with correlated statistics of unequal scales."""
    random = np.random.default_rng(0)
    mixing = random.normal(size=(6, SIZE))
    scales = 10.0 ** random.uniform(-2, 2, SIZE)
    made = {}
    for number in range(count):
        hidden = random.normal(size=(frames, 6)) + 0.3 * random.normal(size=6)
        made[f"drive {number}"] = scales * (
            5 + hidden @ mixing + 0.2 * random.normal(size=(frames, SIZE))
        )
    return made


@pytest.fixture(scope="module")
def model():
    return fit_familiarity(drives(), TAPS, directions=6)


def test_a_threshold_is_a_rate_of_false_alarms(model):
    """A drive of the same kind, which the fit has not seen."""
    new = drives(5)["drive 4"]
    for rate in (0.2, 0.05):
        over = np.mean([model.score(row) > -np.log10(rate) for row in new])
        # The worst of four drives sets the tail, so it may be less. Binomial: 3 σ of 300 frames.
        assert over <= rate + 3 * np.sqrt(rate * (1 - rate) / len(new))
    assert np.mean([model.score(row) > -np.log10(0.5) for row in new]) > 0.1  # not always silent


def test_finds_both_kinds_of_strangeness(model):
    """Far within the ordinary directions, and a little outside of them."""
    rows = drives()["drive 0"]
    centre, spread = rows.mean(0), rows.std(0)
    direction = rows[0] - centre
    assert model.score(centre + 20 * direction) > 3
    random = np.random.default_rng(1)
    # Each statistic is within its ordinary range, only their correlation is not.
    assert model.score(centre + spread * random.choice([-1, 1], SIZE)) > 3
    assert model.score(centre) < 1


def test_scores_rise_with_distance_beyond_all_fitted_frames(model):
    last = float(model.distances[-1])
    scores = [model.score_of_distance(last * factor) for factor in (0.5, 1, 1.001, 2, 100)]
    assert scores == sorted(scores)
    assert scores[2] == pytest.approx(scores[1], abs=0.1)
    assert scores[-1] > scores[-2] > scores[1]


def test_statistics_that_are_not_finite_are_strange(model):
    row = drives()["drive 0"][0].copy()
    row[3] = np.nan
    assert model.score(row) == np.inf


def test_photometric_variants_make_another_exposure_ordinary():
    plain = drives()
    brighter = {name: 1.2 * rows for name, rows in plain.items()}
    without = fit_familiarity(plain, TAPS, directions=6)
    taught = fit_familiarity(plain, TAPS, brighter, directions=6)
    bright = 1.2 * drives(5)["drive 4"]
    assert np.median([without.score(row) for row in bright]) > 3
    assert np.median([taught.score(row) for row in bright]) < 1


def test_each_drive_has_the_same_weight():
    plain = drives(2)
    longer = {"drive 0": plain["drive 0"], "drive 1": np.tile(plain["drive 1"], (5, 1))}
    one, other = (fit_familiarity(d, TAPS, directions=6) for d in (plain, longer))
    assert np.allclose(one.centre, other.centre)
    assert np.allclose(one.scale, other.scale)


def test_from_images_through_any_runner():
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(3)]
    plain, varied = collect(images, lambda image: image.mean((0, 1)), copies=2)
    assert np.allclose(plain, [image.mean((0, 1)) for image in images])
    assert varied.shape == (6, 3)
    assert not np.allclose(varied[0], plain[0])


def test_one_drive_is_cut_into_consecutive_blocks():
    rows = np.arange(50.0).reshape(25, 2)
    blocks = in_blocks(rows)
    assert len(blocks) == 5
    assert np.array_equal(np.concatenate(list(blocks.values())), rows)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"a": np.zeros((20, 4))}, "two drives"),
        ({"a": np.zeros((20, 4)), "b": np.zeros((5, 4))}, "at least 10 frames"),
        ({"a": np.zeros((20, 4)), "b": np.zeros((20, 5))}, "of 4 numbers"),
        ({"a": np.zeros((20, 4)), "b": np.full((20, 4), np.nan)}, "not finite"),
    ],
)
def test_refuses_what_cannot_be_fitted(given, message):
    with pytest.raises(PenumbraError, match=message):
        fit_familiarity(given)


def test_constant_statistics_can_be_fitted():
    """A camera that shows the same picture all the time, and a channel that is always zero."""
    same = {name: np.tile([1.0, 0.0, 2.0], (20, 1)) for name in "ab"}
    model = fit_familiarity(same)
    assert model.score(np.array([1.0, 0.0, 2.0])) == 0
    assert model.score(np.array([5.0, 0.0, 2.0])) > 1


def test_the_file_keeps_the_scores(model, tmp_path):
    file = tmp_path / "familiarity.npz"
    file.write_bytes(familiarity_bytes(model))
    loaded = load_familiarity(file)
    for row in drives(5)["drive 4"][:20]:
        # float32: relative rounding of 6e-8, times a condition of about 1e3 within the basis.
        assert loaded.distance(row) == pytest.approx(model.distance(row), rel=1e-3)


def test_a_model_of_another_bundle_is_refused(model):
    with pytest.raises(PenumbraError, match=f"expects {SIZE} statistics, the graph emits 5"):
        model.score(np.zeros(5))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"scale": np.zeros(SIZE)}, "scale is not positive"),
        ({"centre": np.full(SIZE, np.nan)}, "centre is not finite"),
        ({"basis": np.zeros((SIZE, 3))}, "basis has the shape"),
        ({"tail": np.array([0.5])}, "tail has the shape"),
        ({"rest": 0.0}, "scale is not positive"),
        ({"weights": np.full(12, -2.0)}, "scale is not positive"),
    ],
)
def test_invalid_models(model, change, message):
    with pytest.raises(PenumbraError, match=message):
        replace(model, **change)


def test_damaged_files(model, tmp_path):
    file = tmp_path / "familiarity.npz"
    whole = familiarity_bytes(model)
    for content in (b"", b"no archive", whole[:-200]):
        file.write_bytes(content)
        with pytest.raises(PenumbraError, match="not a valid model"):
            load_familiarity(file)
    with pytest.raises(PenumbraError, match="cannot read"):
        load_familiarity(tmp_path / "absent.npz")
    np.savez(file, version=1, centre=np.array([{"pickled": True}], dtype=object))
    with pytest.raises(PenumbraError, match="not a valid model"):
        load_familiarity(file)
    # A small file that declares more than fits into memory.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("centre.npy", b"\0" * (65 * 2**20))
    with pytest.raises(PenumbraError, match="too large"):
        load_familiarity(file)

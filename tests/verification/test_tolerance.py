"""What a manifest promises is held, missed, or not decided by a reference that is too noisy."""

from __future__ import annotations

import pytest

from penumbra.verification.tolerance import checked

FIGURES = {
    "label_agreement": 0.97,
    "label_agreement_noise": 0.0,
    "std_relative_error": 0.12,
    "std_relative_error_noise": 0.0,
    "spearman": 0.95,
    "spearman_attainable": 1.0,
}


def verdicts(tolerances, **figures):
    checks = checked(FIGURES | figures, tolerances)
    return {check.name: check.verdict for check in checks}


def test_what_is_not_promised_is_only_reported():
    checks = checked(FIGURES, {})
    assert {check.verdict for check in checks} == {"not asked"}
    assert all(check.is_good for check in checks)


@pytest.mark.parametrize(
    ("name", "held", "missed"),
    [
        ("label_agreement", 0.96, 0.98),
        ("std_relative_error", 0.13, 0.11),
        ("spearman", 0.94, 0.96),
    ],
)
def test_without_noise_the_tolerance_is_the_limit(name, held, missed):
    assert verdicts({name: held})[name] == "held"
    assert verdicts({name: missed})[name] == "missed"
    assert not next(c for c in checked(FIGURES, {name: missed}) if c.name == name).is_good


@pytest.mark.parametrize(
    ("name", "tolerance", "noise"),
    [
        ("label_agreement", 0.98, {"label_agreement_noise": 0.011}),
        ("std_relative_error", 0.11, {"std_relative_error_noise": 0.011}),
        ("spearman", 0.96, {"spearman_attainable": 0.989}),
    ],
)
def test_the_noise_of_the_reference_is_allowed_for(name, tolerance, noise):
    assert verdicts({name: tolerance}, **noise)[name] == "held"
    check = next(c for c in checked(FIGURES | noise, {name: tolerance}) if c.name == name)
    assert abs(check.limit - tolerance) == pytest.approx(0.011)


def test_a_reference_noisier_than_the_room_shows_nothing():
    noisy = {"std_relative_error": 0.3, "std_relative_error_noise": 0.25}
    assert verdicts({"std_relative_error": 0.1}, **noisy)["std_relative_error"] == "undecided"
    checks = checked(FIGURES | noisy, {"std_relative_error": 0.1})
    assert not all(check.is_good for check in checks)
    # But a figure that is good without any allowance is good.
    assert verdicts({"std_relative_error": 0.31}, **noisy)["std_relative_error"] == "held"


def test_no_number_is_no_success():
    assert verdicts({"spearman": 0.5}, spearman=float("nan"))["spearman"] == "missed"


def test_depth_has_no_labels():
    figures = {name: value for name, value in FIGURES.items() if "label" not in name}
    assert [c.name for c in checked(figures, {"label_agreement": 0.99})] == [
        "std_relative_error",
        "spearman",
    ]

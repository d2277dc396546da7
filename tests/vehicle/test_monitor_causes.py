"""Several causes, one verdict: the most urgent decides, and nothing is OK by default."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from camera_scenes import scene

from penumbra.errors import PenumbraError
from penumbra.vehicle.monitor import (
    HOLDS,
    Cause,
    CauseModels,
    CauseVerdict,
    Conditions,
    Direction,
    Fact,
    FirstFrames,
    Level,
    Monitor,
    MonitorSettings,
    SceneModel,
    conclude,
)
from penumbra.vehicle.monitor.familiarity import Familiarity
from penumbra.vehicle.monitor.health_range import fit_health
from penumbra.vehicle.monitor.health_scores import measure
from penumbra.vehicle.monitor.hysteresis import Hysteresis

HELD = Conditions.assumed()
CALM = np.full((6, 8), 0.1, np.float32)
UNSURE = np.full((6, 8), 0.9, np.float32)
FITTED = MonitorSettings(frame_threshold=0.5, pixel_threshold=0.5)
NOT_FITTED = MonitorSettings(frame_threshold=None, pixel_threshold=None)
FAMILIAR, STRANGE = np.array([1.0, 0.0]), np.array([30.0, 40.0])
BLACK = np.zeros((360, 480, 3), np.uint8)


def familiarity():
    """The distance is the norm; 1 % of ordinary frames are as far as 10 from the origin."""
    return Familiarity(
        centre=np.zeros(2),
        scale=np.ones(2),
        basis=np.zeros((2, 0)),
        weights=np.zeros(0),
        rest=1.0,
        distances=np.array([1.0, 10.0]),
        tail=np.array([1.0, 0.01]),
        decay=2.0,
    )


SCENE = CauseModels(scene=SceneModel(familiarity(), threshold=2.0))


@pytest.fixture(scope="module")
def healthy():
    drives = [[measure(scene(100 * d + i), "bgr8") for i in range(10)] for d in range(2)]
    return CauseModels(camera=fit_health(drives))


def monitor(models, settings=FITTED):
    started = Monitor(settings, models)
    started.start(0.0)
    return started


def found(verdict, cause):
    [one] = [c for c in verdict.causes if c.cause is cause]
    return one


def test_a_strange_scene_raises_an_alert_of_its_own():
    judging = monitor(SCENE)
    verdict = judging.judge(CALM, 0.0, HELD, statistics=FAMILIAR)
    assert verdict.level is Level.OK
    assert found(verdict, Cause.SCENE).score == 0.0  # every ordinary frame is as strange
    levels = [judging.judge(CALM, 0.1, HELD, statistics=STRANGE) for _ in range(3)]
    assert [v.level for v in levels] == [Level.WARN, Level.WARN, Level.ALERT]
    first = levels[-1].causes[0]
    assert (first.cause, first.threshold, first.direction) == (Cause.SCENE, 2.0, Direction.ABOVE)
    # Five times as far as the last ordinary frame, by the decay: 2 + 2 log10 5.
    assert first.score == pytest.approx(2 + 2 * math.log10(5))
    assert levels[-1].reason == first.reason
    assert first.reason.startswith("scene: unlike the ordinary frames")
    # The uncertainty is as calm as before, and says so.
    assert found(levels[-1], Cause.UNCERTAINTY).level is Level.OK
    assert levels[-1].score == pytest.approx(0.1)


def test_each_cause_has_its_own_hysteresis():
    """Two frames of each are no three of one."""
    judging = monitor(SCENE)
    judging.judge(UNSURE, 0.0, HELD, statistics=FAMILIAR)
    judging.judge(UNSURE, 0.0, HELD, statistics=FAMILIAR)
    judging.judge(CALM, 0.0, HELD, statistics=STRANGE)
    verdict = judging.judge(CALM, 0.0, HELD, statistics=STRANGE)
    assert verdict.level is Level.WARN
    assert verdict.causes[0].cause is Cause.SCENE
    judging.start(1.0)
    assert judging.judge(CALM, 1.0, HELD, statistics=STRANGE).level is Level.WARN  # forgotten


def test_a_covered_camera_raises_an_alert_of_its_own(healthy):
    judging = monitor(healthy)
    for number in range(3):
        verdict = judging.judge(CALM, number / 10, HELD, image=scene(1000 + number))
        assert verdict.level is Level.OK, verdict.reason
    levels = [judging.judge(CALM, 0.3 + n / 10, HELD, image=BLACK).level for n in range(3)]
    assert levels[1:] == [Level.WARN, Level.ALERT]  # one frame does not warn
    first = judging.causes[0]
    assert first.cause is Cause.CAMERA and first.reason.startswith("camera: ")
    assert first.score > first.threshold == 1.0


def test_a_frozen_camera_prevails_over_an_unhealthy_one(healthy):
    judging = monitor(healthy, dataclasses.replace(FITTED, frozen_after=1.0))
    for number in range(12):
        verdict = judging.judge(CALM, number / 10, HELD, digest=7, image=BLACK)
    camera = found(verdict, Cause.CAMERA)
    assert (verdict.level, camera.level) == (Level.STALE, Level.STALE)
    assert "frozen" in camera.reason
    assert math.isfinite(camera.score)  # one entry holds both


@pytest.mark.parametrize("missing", [None, np.array([np.nan, 0.0]), np.array([np.inf, 0.0])])
def test_a_scene_that_cannot_be_scored_is_never_ok(missing):
    judging = monitor(SCENE)
    levels = [judging.judge(CALM, 0.0, HELD, statistics=missing).level for _ in range(3)]
    assert levels == [Level.WARN, Level.WARN, Level.ALERT]


def test_a_camera_that_cannot_be_judged_is_never_ok(healthy):
    verdict = monitor(healthy).judge(CALM, 0.0, HELD)
    assert verdict.level is Level.WARN
    assert verdict.reason == "camera: there is no image to judge it by"


def test_statistics_of_another_bundle_are_refused():
    with pytest.raises(PenumbraError, match="expects 2 statistics, the graph emits 3"):
        monitor(SCENE).judge(CALM, 0.0, HELD, statistics=np.zeros(3))


def test_without_any_threshold_no_frame_is_ok(healthy):
    verdict = monitor(None, NOT_FITTED).judge(CALM, 0.0, HELD)
    assert verdict.level is Level.WARN
    assert verdict.reason.startswith("the bundle has no thresholds")
    assert not monitor(None, NOT_FITTED).has_thresholds
    # One cause is enough, and a cause without a model is absent.
    judging = monitor(SCENE, NOT_FITTED)
    assert judging.has_thresholds
    verdict = judging.judge(CALM, 0.0, HELD, statistics=FAMILIAR)
    assert verdict.level is Level.OK
    assert {c.cause for c in verdict.causes} == {
        Cause.UNCERTAINTY, Cause.SCENE, Cause.CAMERA, Cause.INPUT,
    }  # fmt: skip
    assert judging.judged_causes == (Cause.UNCERTAINTY, Cause.SCENE, Cause.CAMERA)
    assert monitor(healthy, NOT_FITTED).judge(CALM, 0.0, HELD, image=scene(1)).level is Level.OK
    # Non-finite uncertainty is found all the same.
    wrong = np.full((6, 8), np.nan, np.float32)
    assert judging.judge(wrong, 0.0, HELD, statistics=FAMILIAR).level is Level.WARN


def test_half_of_the_thresholds_are_not_enough():
    half = MonitorSettings(frame_threshold=0.5, pixel_threshold=None)
    assert monitor(None, half).judge(CALM, 0.0, HELD).level is Level.WARN


def cause(level=Level.OK, score=0.1, threshold=0.5, what=Cause.SCENE):
    return CauseVerdict(what, level, score, threshold, Direction.ABOVE, "")


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_conclude_refuses_ok_for_a_score_that_is_not_finite(score):
    """Whoever judged it: this is the one place where OK is decided."""
    assert conclude(HELD, [cause(score=score)])[0].level is Level.WARN
    assert conclude(HELD, [cause()])[0].level is Level.OK
    assert conclude(HELD, [cause(threshold=None)])[0].level is Level.WARN
    assert conclude(HELD, [])[0].level is Level.STALE


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Conditions)])
def test_conclude_refuses_ok_for_an_unknown_condition(field):
    unknown = dataclasses.replace(HELD, **{field: None})
    first = conclude(unknown, [cause(), cause(what=Cause.CAMERA)])[0]
    assert (first.level, first.reason) == (Level.STALE, f"{field} is unknown")


def test_the_most_urgent_cause_comes_first():
    scores = [cause(Level.WARN), cause(Level.ALERT, what=Cause.CAMERA)]
    ordered = conclude(HELD, scores)
    assert [c.cause for c in ordered][:2] == [Cause.CAMERA, Cause.SCENE]
    stale = dataclasses.replace(HELD, clock=Fact.stale("the clock stands still"))
    assert conclude(stale, scores)[0].cause is Cause.INPUT
    assert conclude(dataclasses.replace(HELD, camera=HOLDS), scores)[0].level is Level.ALERT


def test_a_score_can_be_abnormal_below_its_threshold():
    below = Hysteresis(Direction.BELOW)
    assert below.step(0.6, 0.5, FITTED)[0] is Level.OK
    assert below.step(0.5, 0.5, FITTED)[0] is Level.OK
    assert below.step(0.4, 0.5, FITTED) == (Level.WARN, "score 0.4 under 0.5 in 1 of 3 frames")


@pytest.mark.parametrize(
    "what, threshold, strange, told",
    [
        (Cause.SCENE, 2.0, 40, True),
        (Cause.UNCERTAINTY, 0.5, 40, True),
        (Cause.SCENE, 2.0, 39, False),
        (Cause.CAMERA, 1.0, 50, False),  # unhealthy, not unfamiliar
        (Cause.UNCERTAINTY, None, 50, False),  # nothing is fitted
    ],
)
def test_a_camera_that_is_strange_from_its_first_frame_is_told_once(what, threshold, strange, told):
    first, answers = FirstFrames(), []
    for number in range(120):
        level = Level.ALERT if number < strange else Level.OK
        answers.append(first.are_strange([cause(level, threshold=threshold, what=what)]))
    assert [number for number, answer in enumerate(answers) if answer] == [49] * told

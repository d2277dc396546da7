"""The causes of an alert, through the real node: a strange scene, a covered lens."""

from __future__ import annotations

import numpy as np
import pytest
from camera_scenes import scene
from fail_safe import ERROR, LEVELS, OK, Drive
from perception import running
from strange_scenes import familiarity, with_statistics

from penumbra.bundle import rewrite_bundle
from penumbra.site import write_site
from penumbra.vehicle.monitor.familiarity import familiarity_bytes
from penumbra.vehicle.monitor.health_range import fit_health
from penumbra.vehicle.monitor.health_scores import measure

SIZE = (120, 160)
ORDINARY = [scene(seed, *SIZE) for seed in range(40)]
MEAN = np.mean(ORDINARY, axis=(0, 1, 2))  # BGR
UNCERTAINTY = {"output": "uncertainty", "direction": "above", "frame": 0.9, "pixel": 0.9}
SCENE = {"output": "statistics", "direction": "above", "frame": 2.0, "model": "familiarity.npz"}
CAMERA = {"output": None, "direction": "above", "frame": 1.0}
FILES = {"familiarity.npz": familiarity_bytes(familiarity(float(MEAN.mean() / 255)))}


@pytest.fixture
def bundle(tmp_path):
    return with_statistics(tmp_path / "street", height=SIZE[0], width=SIZE[1])


def alerts(**causes):
    return {"false_alarm_rate": 0.01, "frames": 40, "drives": 2, "causes": causes}


class Camera(Drive):
    """Sends ordinary scenes, another one every time."""

    number = 0

    def scene(self, change=lambda image: image):
        self.number += 1
        return self.message(change(ORDINARY[self.number % len(ORDINARY)]))

    def ordinary(self):
        return self.scene()

    def strange(self):
        """A street under water: sharp and well lit, and of a colour that no street has."""
        return self.scene(
            lambda image: np.clip(image + np.array([60, 0, -60]), 0, 255).astype("u1")
        )

    def covered(self):
        """Of the mean colour of ordinary scenes, so that the scene itself is not strange."""
        cover = np.random.default_rng(self.number).normal(MEAN, 1.0, (*SIZE, 3))
        return self.scene(lambda _: cover.astype(np.uint8))


def test_a_strange_scene_and_a_covered_lens_have_their_own_causes(peer, bundle, tmp_path):
    normal = fit_health([[measure(image, "bgr8") for image in ORDINARY]])
    site = write_site(
        tmp_path / "depot",
        bundle,
        "",
        alerts(uncertainty=UNCERTAINTY, scene=SCENE, camera=CAMERA),
        normal.to_dict(),
        FILES,
    )
    options = {"bundle": str(bundle.path), "site": str(site.path), "runner": "onnxruntime"}
    with running(**options) as node:
        node.wait_for(f"thresholds of the site {site.label}")
        drive = Camera(peer)
        drive.run(lambda: drive.level == "OK", "OK", drive.ordinary)
        for cause in ("uncertainty", "scene", "camera"):
            drive.diagnosed(f"cause {cause}", OK, "", drive.ordinary)

        alert = drive.leaves_ok("", "strange scene", "scene: unlike", drive.strange, "ALERT")
        first = alert.causes[0]
        assert (first.cause, LEVELS[first.level], first.threshold) == ("scene", "ALERT", 2.0)
        assert first.score > first.threshold
        assert (alert.site, first.unit) == (site.label, "1")
        drive.diagnosed("cause scene", ERROR, "scene: unlike", drive.strange)
        drive.diagnosed("cause uncertainty", OK, "", drive.strange)

        drive.run(lambda: drive.level == "OK", "OK again", drive.ordinary)
        alert = drive.leaves_ok("", "covered lens", "camera: ", drive.covered, "ALERT")
        causes = {cause.cause: LEVELS[cause.level] for cause in alert.causes}
        assert alert.causes[0].cause == "camera"
        assert (causes["camera"], causes["scene"], causes["uncertainty"]) == ("ALERT", "OK", "OK")
        drive.diagnosed("cause camera", ERROR, "camera: ", drive.covered)


def test_the_first_start_on_a_strange_camera_says_what_to_do(peer, bundle):
    """Once, by the models of the bundle itself."""
    fitted = rewrite_bundle(bundle, FILES, alerts=alerts(uncertainty=UNCERTAINTY, scene=SCENE))
    with running(bundle=str(fitted.path), runner="onnxruntime") as node:
        drive = Camera(peer)
        drive.run(lambda: drive.level == "ALERT", "ALERT", drive.strange)
        assert drive.alerts[-1][1].site == ""
        words = "this camera is unfamiliar to street; collect 10 minutes of ordinary driving and"

        def lines():
            return [line for line in node.log if words in line]

        drive.run(lines, words, drive.strange)
        seen = len(drive.alerts)
        drive.run(lambda: len(drive.alerts) > seen + 60, "60 more frames", drive.strange)
        [line] = lines()
        assert f"`penumbra fit-alerts {fitted.path} --bag BAG --site DIR`" in line

"""A site folder: written, read, refused for another bundle, signed, applied cause by cause."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_bundles
from camera_scenes import scene
from strange_scenes import familiarity, with_statistics

from penumbra.bundle import load_bundle, rewrite_bundle
from penumbra.errors import PenumbraError
from penumbra.safe_yaml import dump_yaml
from penumbra.signatures import SIGNATURE, new_key, sign
from penumbra.site import SITE, load_site, write_site
from penumbra.vehicle.monitor.familiarity import familiarity_bytes
from penumbra.vehicle.monitor.health_range import fit_health
from penumbra.vehicle.monitor.health_scores import measure
from penumbra.vehicle.node.configuration import ordinary_by_camera
from penumbra.vehicle.node.parameters import defaults
from penumbra.vehicle.node.safety_lock import SafetyLock
from penumbra.vehicle.ordinary import HEALTH, ordinary_of

UNCERTAINTY = {"output": "uncertainty", "direction": "above", "frame": 0.4, "pixel": 0.3}
SCENE = {"output": "statistics", "direction": "above", "frame": 2.0, "model": "familiarity.npz"}
CAMERA = {"output": None, "direction": "above", "frame": 1.0}
MODEL = familiarity_bytes(familiarity())


def alerts(**causes):
    return {"false_alarm_rate": 0.01, "frames": 100, "drives": 2, "causes": causes}


@pytest.fixture(scope="module")
def health():
    return fit_health([[measure(scene(n), "bgr8") for n in range(20)]]).to_dict()


@pytest.fixture
def bundle(tmp_path):
    return with_statistics(tmp_path / "street")


@pytest.fixture
def site(tmp_path, bundle, health):
    files = {"familiarity.npz": MODEL}
    causes = alerts(uncertainty=UNCERTAINTY, scene=SCENE, camera=CAMERA)
    return write_site(tmp_path / "depot", bundle, "", causes, health, files)


def test_a_site_is_read_as_it_was_written_and_the_bundle_stays(site, bundle):
    before = (bundle.path / "manifest.yaml").read_bytes()
    found = load_site(site.path, bundle)
    assert found == site
    assert found.label.startswith("depot@") and len(found.label) == len("depot@") + 8
    ordinary = ordinary_of(bundle, found)
    assert ordinary.site == found.label
    assert (ordinary.bundle.thresholds.frame, ordinary.bundle.thresholds.pixel) == (0.4, 0.3)
    assert ordinary.models.scene.threshold == 2.0
    assert ordinary.models.scene.familiarity.score(np.zeros(3)) == 0.0
    assert ordinary.models.camera.frames == 20
    assert ordinary.outputs == ("statistics",)
    assert load_bundle(bundle.path).thresholds is None
    assert (bundle.path / "manifest.yaml").read_bytes() == before


def test_it_replaces_the_thresholds_cause_by_cause(tmp_path, bundle):
    own = {**UNCERTAINTY, "frame": 0.9}
    fitted = rewrite_bundle(
        bundle, {"familiarity.npz": MODEL}, alerts=alerts(uncertainty=own, scene=SCENE)
    )
    less = write_site(
        tmp_path / "less", fitted, "front", alerts(scene={**SCENE, "frame": 3.0}), None,
        {"familiarity.npz": MODEL},
    )  # fmt: skip
    front, other = (ordinary_of(fitted, less, camera) for camera in ("front", "rear"))
    assert (front.models.scene.threshold, front.bundle.thresholds.frame) == (3.0, 0.9)
    assert (other.models.scene.threshold, other.site) == (2.0, "")
    assert ordinary_of(fitted).models.scene.threshold == 2.0


def test_the_site_of_another_bundle_is_refused(site, tmp_path):
    other = with_statistics(tmp_path / "other", weights=2.0)
    with pytest.raises(PenumbraError, match="was fitted to street@.* the bundle is other@"):
        load_site(site.path, other)
    with pytest.raises(PenumbraError, match="was fitted to street@"):
        write_site(site.path, other, "", alerts(uncertainty=UNCERTAINTY), None, {})


def test_a_second_camera_is_added_and_the_first_one_kept(site, bundle):
    added = write_site(
        site.path, bundle, "rear", alerts(uncertainty={**UNCERTAINTY, "frame": 0.6}), None, {}
    )
    assert added.cameras == ("", "rear")
    assert ordinary_of(bundle, load_site(site.path, bundle), "").models.scene is not None
    rear = ordinary_of(bundle, load_site(site.path, bundle), "rear")
    assert (rear.bundle.thresholds.frame, rear.models.scene) == (0.6, None)


def test_signatures_are_checked_where_keys_are_trusted(site, bundle, tmp_path):
    public = new_key(tmp_path / "fleet.pem")
    with pytest.raises(PenumbraError, match="is not signed"):
        load_site(site.path, bundle, [public])
    sign(site.path, SITE, site.files, tmp_path / "fleet.pem")
    assert load_site(site.path, bundle, [public]) == site
    text = (site.path / SITE).read_text()
    (site.path / SITE).write_text(text.replace("frame: 0.4", "frame: 40"))
    with pytest.raises(PenumbraError, match="signature"):
        load_site(site.path, bundle, [public])
    # A new fit has no signature: the old one would not match.
    write_site(site.path, bundle, "x", alerts(uncertainty=UNCERTAINTY), None, {})
    assert not (site.path / SIGNATURE).exists()


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda d: d.update(schema=2), "schema"),
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d["cameras"].update({"a b": d["cameras"][""]}), "a b"),
        (lambda d: d["cameras"][""]["alerts"].pop("frames"), "frames"),
        (lambda d: d["files"].update({"../x": "0" * 64}), "does not match"),
        (lambda d: d["files"].update({"y.npz": "0" * 64}), "y.npz is missing"),
        (lambda d: d["files"].update({"familiarity.npz": "0" * 64}), "SHA-256"),
    ],
)
def test_damaged_sites_are_refused_in_one_line(site, bundle, change, words):
    document = dict(site.document)
    change(document)
    (site.path / SITE).write_text(dump_yaml(document))
    with pytest.raises(PenumbraError) as caught:
        load_site(site.path, bundle)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_models_that_do_not_fit_are_refused(tmp_path, bundle, health):
    plain = tiny_bundles.segmentation(tmp_path / "plain")
    files = {"familiarity.npz": MODEL}
    odd = write_site(tmp_path / "odd", plain, "", alerts(scene=SCENE), None, files)
    with pytest.raises(PenumbraError, match="expects 3 statistics, and plain emits none"):
        ordinary_of(plain, odd)
    below = alerts(scene={**SCENE, "direction": "below"})
    site = write_site(tmp_path / "below", bundle, "", below, None, files)
    with pytest.raises(PenumbraError, match="direction below"):
        ordinary_of(bundle, site)
    broken = write_site(tmp_path / "broken", bundle, "", alerts(camera=CAMERA), {"schema": 1}, {})
    with pytest.raises(PenumbraError, match="health range is not valid"):
        ordinary_of(bundle, broken)
    with pytest.raises(PenumbraError, match="no site at"):
        load_site(tmp_path / "nowhere", bundle)
    with pytest.raises(PenumbraError, match="exists and is not a site folder"):
        write_site(bundle.path, bundle, "", alerts(uncertainty=UNCERTAINTY), None, {})


def test_the_health_of_a_bundle_is_a_file_of_it(bundle, health):
    entry = {**CAMERA, "model": HEALTH}
    fitted = rewrite_bundle(
        bundle, {HEALTH: dump_yaml(health).encode()}, alerts=alerts(camera=entry)
    )
    assert ordinary_of(load_bundle(fitted.path)).models.camera.frames == 20
    assert HEALTH not in rewrite_bundle(fitted, {HEALTH: None}, alerts=None).files


def test_the_node_finds_its_cameras_in_the_site(site, bundle):
    values = {**defaults("segmentation"), "site": str(site.path)}
    assert ordinary_by_camera(values, bundle)[""].site == site.label
    with pytest.raises(PenumbraError, match="the node has none of them"):
        ordinary_by_camera({**values, "cameras": "front"}, bundle)
    entropy = alerts(uncertainty={**UNCERTAINTY, "output": "entropy"})
    for name, causes in (("a", entropy), ("b", alerts(uncertainty=UNCERTAINTY))):
        write_site(site.path, bundle, name, causes, None, {})
    two = {**values, "cameras": "a,b", "image_topic": "{camera}/image"}
    with pytest.raises(PenumbraError, match="different maps"):
        ordinary_by_camera(two, bundle)


def test_a_peer_cannot_name_another_site_while_the_lock_is_on(site):
    values = {**defaults("segmentation"), "site": str(site.path)}
    lock = SafetyLock(values, "segmentation")
    assert "cannot be loosened" in lock.refusal({"site": ""}, None)
    assert lock.refusal({"site": str(site.path)}, None) is None

"""What is ordinary for one camera: thresholds and models, from the bundle and from a site folder.

ordinary = ordinary_of(bundle, site, camera="front")
monitor = Monitor(settings, ordinary.models)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.safe_yaml import parse_yaml
from penumbra.site import Site
from penumbra.vehicle.monitor import CauseModels, SceneModel
from penumbra.vehicle.monitor.familiarity import parse_familiarity
from penumbra.vehicle.monitor.health_range import HealthRange

HEALTH = "health.yaml"  # of a bundle; a site folder has it in its document
_FIT_AGAIN = "run `penumbra fit-alerts` again"


@dataclass(frozen=True)
class Ordinary:
    """The thresholds and models of one camera."""

    bundle: Bundle  # with the thresholds of this camera
    models: CauseModels
    site: str  # name and checksum of the site folder; empty: all is the bundle's own

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the graph that the models need."""
        return (_scene_output(self.bundle),) if self.models.scene is not None else ()


def ordinary_of(bundle: Bundle, site: Site | None = None, camera: str = "") -> Ordinary:
    """The thresholds and models of a camera; PenumbraError if one does not fit the bundle.

    What the site has of a cause replaces what the bundle has. A cause that neither has is absent.
    """
    own = {} if site is None else site.causes(camera)
    effective = bundle if site is None else site.applied(bundle, camera)
    causes: Mapping[str, Any] = {} if effective.alerts is None else effective.alerts["causes"]
    for name in ("scene", "camera"):
        if name in causes and causes[name]["direction"] != "above":
            raise PenumbraError(f"the cause {name} has the direction below: {_FIT_AGAIN}")

    scene = None
    if "scene" in causes:
        entry = causes["scene"]
        source = site if site is not None and "scene" in own else bundle
        scene = _scene(effective, entry, source)
    health = None
    if site is not None and site.health(camera) is not None:
        health = HealthRange.from_dict(site.health(camera) or {})
    elif "camera" in causes and causes["camera"].get("model"):
        name = causes["camera"]["model"]
        found = parse_yaml(bundle.read_file(name), bundle.path / name, _FIT_AGAIN)
        health = HealthRange.from_dict(found if isinstance(found, dict) else {})
    models = CauseModels(scene, health, bundle.input.channel_order)
    return Ordinary(effective, models, site.label if site is not None and own else "")


def _scene(bundle: Bundle, entry: Mapping[str, Any], source: Bundle | Site) -> SceneModel:
    name = entry.get("model")
    if not name:
        raise PenumbraError(f"the cause scene of {source.path} names no model: {_FIT_AGAIN}")
    where = source.path / name
    familiarity = parse_familiarity(source.read_file(name), where)
    spec = next((o for o in bundle.outputs if o.name == _scene_output(bundle)), None)
    if spec is None or spec.shape != (familiarity.size,):
        emitted = "none" if spec is None else f"an output of the shape {spec.shape}"
        raise PenumbraError(
            f"{where} expects {familiarity.size} statistics, and {bundle.name} emits {emitted}: "
            f"{_FIT_AGAIN}"
        )
    return SceneModel(familiarity, float(entry["frame"]))


def _scene_output(bundle: Bundle) -> str:
    return str((bundle.alerts or {})["causes"]["scene"]["output"])

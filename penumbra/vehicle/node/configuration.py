"""Validation of the configuration, before the node creates anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penumbra.bundle import Bundle, load_bundle
from penumbra.errors import PenumbraError
from penumbra.options import width_and_height
from penumbra.share import bundle_folder
from penumbra.site import load_site
from penumbra.vehicle.node.engine_supervisor import EngineLimits
from penumbra.vehicle.node.parameters import Values
from penumbra.vehicle.ordinary import Ordinary, ordinary_of
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings


def verified_bundle(values: Values, task: str) -> Bundle:
    """Load the bundle; its task must be the one whose defaults the node declared.

    With `safety.trusted_keys`, files of public keys separated by commas, it must be signed.
    """
    bundle = load_bundle(bundle_folder(values["bundle"]), _trusted_keys(values))
    if bundle.task != task:
        raise PenumbraError(
            f"{bundle.name} is for {bundle.task}, but this node was started for {task}: start it "
            f"with the bundle (-p bundle:={values['bundle']})"
        )
    return bundle


def ordinary_by_camera(values: Values, bundle: Bundle) -> dict[str, Ordinary]:
    """Thresholds and models of every camera, from the bundle and the site folder.

    A site folder is trusted like the bundle. Cameras share one engine, so that all of them are
    judged by the same map.
    """
    folder = values["site"]
    site = None
    if folder:
        site = load_site(Path(folder).expanduser(), bundle, _trusted_keys(values))
    found = {name: ordinary_of(bundle, site, name) for name in camera_names(values)}
    if site is not None and not any(ordinary.site for ordinary in found.values()):
        there = ", ".join(name or "(unnamed)" for name in site.cameras)
        raise PenumbraError(
            f"site {folder} has the cameras {there}, and the node has none of them: set cameras, "
            "or fit with --camera"
        )
    maps = {o.bundle.thresholds.map for o in found.values() if o.bundle.thresholds is not None}
    if len(maps) > 1:
        raise PenumbraError(
            f"the cameras are judged by different maps ({', '.join(sorted(maps))}), and share one "
            "engine: fit all of them with the same --map"
        )
    return found


def camera_names(values: Values) -> list[str]:
    """The names of the cameras; an empty name for a single unnamed camera."""
    names: list[str] = values["cameras"].split(",")
    if len(set(names)) < len(names):
        raise PenumbraError(f"cameras is {values['cameras']}: give each a unique name")
    if len(names) > 1 and "{camera}" not in values["image_topic"]:
        raise PenumbraError(
            f"image_topic is {values['image_topic']} for {len(names)} cameras: use {{camera}} "
            "in place of the camera's name"
        )
    return names


def make_pipeline(values: Values, cameras: Mapping[str, Ordinary]) -> Pipeline:
    """Create the pipeline of these cameras, inactive: activating it may build an engine first."""
    fitted = [o.bundle for o in cameras.values() if o.bundle.thresholds is not None]
    bundle = (fitted or [o.bundle for o in cameras.values()])[0]
    also = tuple(output for ordinary in cameras.values() for output in ordinary.outputs)
    cache = values["engine_cache_dir"]
    settings = RunnerSettings(
        threads=values["threads"],
        image_size=_image_size(values["image_size"], bundle),
        device=values["device"],
        engine_cache_dir=Path(cache).expanduser() if cache else None,
        workspace_mb=values["workspace_mb"] or None,
    )
    config = PipelineConfig(runner=values["runner"], also=also, settings=settings)
    return Pipeline(bundle, config)


def engine_limits(values: Values) -> EngineLimits:
    """The time limits of the engine."""
    return EngineLimits(
        restart_pause=values["restart_pause"],
        build=values["watchdog.build"],
        load=values["watchdog.load"],
        inference=values["watchdog.inference"],
    )


def _trusted_keys(values: Values) -> list[Path]:
    named = values.get("safety.trusted_keys", "").split(",")
    return [Path(name.strip()).expanduser() for name in named if name.strip()]


def _image_size(text: str, bundle: Bundle) -> tuple[int, int] | None:
    if not text:
        return None
    width, height = width_and_height(text, "image_size")
    spec = bundle.input
    if spec.height not in (None, height) or spec.width not in (None, width):
        raise PenumbraError(
            f"image_size is {text}, but {bundle.name} expects {spec.width}x{spec.height}: leave "
            "image_size empty"
        )
    return height, width

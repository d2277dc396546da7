"""Validation of the configuration, before the node creates anything."""

from __future__ import annotations

from pathlib import Path

from penumbra.bundle import Bundle, load_bundle
from penumbra.errors import PenumbraError
from penumbra.options import width_and_height
from penumbra.share import bundle_folder
from penumbra.vehicle.node.engine_supervisor import EngineLimits
from penumbra.vehicle.node.parameters import Values
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings


def verified_bundle(values: Values, task: str) -> Bundle:
    """Load the bundle; its task must be the one whose defaults the node declared.

    With `safety.trusted_keys`, files of public keys separated by commas, it must be signed.
    """
    named = values.get("safety.trusted_keys", "").split(",")
    trusted = [Path(name.strip()).expanduser() for name in named if name.strip()]
    bundle = load_bundle(bundle_folder(values["bundle"]), trusted)
    if bundle.task != task:
        raise PenumbraError(
            f"{bundle.name} is for {bundle.task}, but this node was started for {task}: start it "
            f"with the bundle (-p bundle:={values['bundle']})"
        )
    return bundle


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


def make_pipeline(values: Values, bundle: Bundle) -> Pipeline:
    """Create the pipeline, inactive: activating it may build an engine, which takes minutes."""
    cache = values["engine_cache_dir"]
    settings = RunnerSettings(
        threads=values["threads"],
        image_size=_image_size(values["image_size"], bundle),
        device=values["device"],
        engine_cache_dir=Path(cache).expanduser() if cache else None,
        workspace_mb=values["workspace_mb"] or None,
    )
    return Pipeline(bundle, PipelineConfig(runner=values["runner"], settings=settings))


def engine_limits(values: Values) -> EngineLimits:
    """The time limits of the engine."""
    return EngineLimits(
        restart_pause=values["restart_pause"],
        build=values["watchdog.build"],
        load=values["watchdog.load"],
        inference=values["watchdog.inference"],
    )


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

"""What `configure` reads and checks before anything is made."""

from __future__ import annotations

from pathlib import Path

from penumbra.bundle import Bundle, load_bundle
from penumbra.errors import PenumbraError
from penumbra.options import width_and_height
from penumbra.share import bundle_folder
from penumbra.vehicle.node.parameters import Values
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings


def verified_bundle(values: Values, task: str) -> Bundle:
    """The bundle, whole, and of the task whose defaults the node started with."""
    bundle = load_bundle(bundle_folder(values["bundle"]))
    if bundle.task != task:
        raise PenumbraError(
            f"{bundle.name} is for {bundle.task} and this node was started for {task}: start it "
            f"with the bundle (-p bundle:={values['bundle']})"
        )
    return bundle


def camera_names(values: Values) -> list[str]:
    """One without a name, or several with names of their own."""
    names: list[str] = values["cameras"].split(",")
    if len(set(names)) < len(names):
        raise PenumbraError(f"cameras is {values['cameras']}: give each another name")
    if len(names) > 1 and "{camera}" not in values["image_topic"]:
        raise PenumbraError(
            f"image_topic is {values['image_topic']} for {len(names)} cameras: put {{camera}} "
            "where their names differ"
        )
    return names


def make_pipeline(values: Values, bundle: Bundle) -> Pipeline:
    """Not active yet: that can take as long as building an engine does."""
    cache = values["engine_cache_dir"]
    settings = RunnerSettings(
        threads=values["threads"],
        image_size=_image_size(values["image_size"], bundle),
        device=values["device"],
        engine_cache_dir=Path(cache).expanduser() if cache else None,
        workspace_mb=values["workspace_mb"] or None,
    )
    return Pipeline(bundle, PipelineConfig(runner=values["runner"], settings=settings))


def _image_size(text: str, bundle: Bundle) -> tuple[int, int] | None:
    if not text:
        return None
    width, height = width_and_height(text, "image_size")
    takes = bundle.input
    if takes.height not in (None, height) or takes.width not in (None, width):
        raise PenumbraError(
            f"image_size is {text} and {bundle.name} takes {takes.width}x{takes.height}: leave "
            "image_size empty"
        )
    return height, width

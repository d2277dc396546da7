"""The manifest of a bundle: validation, typed parts, and upgrade from earlier versions.

docs/contracts.md explains every field. A manifest of schema 1 is upgraded to schema 2 on reading;
only schema 2 is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from penumbra.errors import PenumbraError
from penumbra.text import printable

SCHEMA_VERSION = 2
EXPORT_AGAIN = "export the model again"

# Roles of outputs, which schema 1 does not state.
_ROLES = {
    "labels": "prediction",
    "disparity": "prediction",
    "uncertainty": "uncertainty",
    "confidence": "confidence",
    "frame_score": "score",
}


@dataclass(frozen=True)
class InputSpec:
    """The camera image, `uint8` height x width x 3; a height or width of None accepts any."""

    name: str
    height: int | None
    width: int | None
    channel_order: Literal["bgr", "rgb"]
    working_size: tuple[int, int] | None = None  # height, width at which thresholds were fitted

    @property
    def size(self) -> tuple[int | None, int | None]:
        """Height and width that images are scaled to: fixed, or the working size; None: any."""
        if self.height is None and self.width is None and self.working_size is not None:
            return self.working_size
        return self.height, self.width


@dataclass(frozen=True)
class OutputSpec:
    """One output of the graph; None in `shape` is the extent of the image."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    meaning: str
    unit: str
    optional: bool
    role: str


@dataclass(frozen=True)
class ClassSpec:
    """A class of a segmentation, and its display colour (red, green, blue)."""

    name: str
    colour: tuple[int, int, int]


@dataclass(frozen=True)
class DepthSpec:
    """The scale of depth: metres = focal_per_width baseline_m / disparity.

    Focal length and disparity are fractions of the image width.
    """

    baseline_m: float
    focal_per_width: float
    max_depth_m: float


@dataclass(frozen=True)
class ModelReference:
    """How offline tools rebuild the network; never imported on the vehicle."""

    entry_point: str | None  # in the group penumbra.models
    reference: str | None  # package.module:factory
    arguments: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The entry point, or the reference if there is none."""
        return self.entry_point or self.reference or "unknown"


@dataclass(frozen=True)
class RuleSpec:
    """The rules that propagated the variance."""

    relu: str
    softmax: str
    variance: str  # how much of the covariance is kept, and whether gains were fitted


@dataclass(frozen=True)
class Thresholds:
    """Scores above which a pixel or a frame is out of distribution, and how they were fitted."""

    pixel: float
    frame: float
    false_alarm_rate: float
    frames: int
    map: str = "uncertainty"  # the output that is judged
    score_fraction: float = 0.01  # share of its pixels that the frame score averages
    uncertainty_top: float | None = None  # uncertainty at the upper end of the colour map

    def entry(self) -> dict[str, Any]:
        """The entry `alerts` of a manifest."""
        return {
            "false_alarm_rate": self.false_alarm_rate,
            "frames": self.frames,
            "drives": None,
            "causes": {
                "uncertainty": {
                    "output": self.map,
                    "direction": "above",
                    "frame": self.frame,
                    "pixel": self.pixel,
                    "score_fraction": self.score_fraction,
                    "colour_top": self.uncertainty_top,
                }
            },
        }

    @staticmethod
    def of_entry(alerts: Mapping[str, Any]) -> Thresholds | None:
        """Thresholds of the cause `uncertainty`; None if not fitted."""
        cause = alerts["causes"].get("uncertainty")
        if cause is None:
            return None
        return Thresholds(
            pixel=cause["pixel"],
            frame=cause["frame"],
            false_alarm_rate=alerts["false_alarm_rate"],
            frames=alerts["frames"],
            map=cause["output"],
            score_fraction=cause.get("score_fraction", Thresholds.score_fraction),
            uncertainty_top=cause.get("colour_top"),
        )


@dataclass(frozen=True)
class Licence:
    """Licence of the weights."""

    spdx: str
    research_only: bool
    note: str = ""


def read_manifest(manifest: Mapping[str, Any], where: str, folder: str) -> dict[str, Any]:
    """Validate a manifest and upgrade it; `where` and `folder` appear in error messages."""
    version = manifest.get("schema")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise PenumbraError(
            f"{folder} has schema version {version}, and this Penumbra supports up to "
            f"{SCHEMA_VERSION}: update Penumbra, or export the model again with this version"
        )
    if version == 1:
        check_manifest(manifest, where, EXPORT_AGAIN, version=1)
        manifest = _upgraded(manifest)
    check_manifest(manifest, where, EXPORT_AGAIN)
    return dict(manifest)


def check_manifest(
    manifest: Mapping[str, Any], where: str, what_to_do: str, version: int = SCHEMA_VERSION
) -> None:
    """Raise PenumbraError, in one line, if the manifest violates its schema."""
    check_schema(manifest, f"manifest-{version}", where, what_to_do)


def check_schema(document: Mapping[str, Any], schema: str, where: str, what_to_do: str) -> None:
    """Raise PenumbraError, in one line, if a document violates one of the package's schemas."""
    from jsonschema.exceptions import best_match

    error = best_match(_validator(schema).iter_errors(document))
    if error is not None:
        key = printable(".".join(map(str, error.absolute_path)) or "the top level")
        what = printable(" ".join(error.message.split()))
        raise PenumbraError(f"{where} is not valid at {key}: {what}; {what_to_do}")


@cache
def _validator(name: str) -> Any:
    """A cached validator: the schemas do not change while a program runs.

    A site folder has the alerts of a manifest, so their definitions are those of the manifest.
    """
    from jsonschema import Draft202012Validator

    folder = resources.files("penumbra").joinpath("schemas")
    schema = json.loads(folder.joinpath(f"{name}.schema.json").read_text())
    shared = json.loads(folder.joinpath(f"manifest-{SCHEMA_VERSION}.schema.json").read_text())
    return Draft202012Validator({**schema, "$defs": {**shared["$defs"], **schema.get("$defs", {})}})


def _upgraded(old: Mapping[str, Any]) -> dict[str, Any]:
    """Upgrade a manifest of schema 1 to schema 2; every entry is kept under its new name."""
    variant, thresholds, tolerances = old["variant"], old["thresholds"], old["tolerances"]
    flat = {name: v for name, v in (tolerances or {}).items() if name != "monte_carlo"}
    return {
        "schema": 2,
        "name": old["name"],
        "task": old["task"],
        "licence": None,
        "model": {
            "entry_point": variant["architecture"],
            "reference": None,
            "arguments": {name: variant[name] for name in ("dropout", "rate", "width")},
        },
        "rules": {
            "relu": variant["relu"],
            "softmax": variant.get("softmax", "jacobian"),
            "variance": variant["variance"],
        },
        "precision": old["precision"],
        "input": {**old["input"], "working_size": None},
        "outputs": [{**o, "role": _ROLES.get(o["name"], "map")} for o in old["outputs"]],
        "classes": old["classes"],
        "depth": old["depth"],
        "gains": old["calibration"],
        "alerts": None if thresholds is None else Thresholds(**thresholds).entry(),
        "tolerances": None
        if tolerances is None
        else {
            "precisions": {old["precision"]: flat},
            **{name: v for name, v in tolerances.items() if name == "monte_carlo"},
        },
        "provenance": old["provenance"],
        "files": old["files"],
    }

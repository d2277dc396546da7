"""The manifest of a bundle: its schema, its typed parts, and the reading of earlier versions.

docs/contracts.md explains every field. A manifest of schema 1 is brought to schema 2 when it is
read; only schema 2 is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from penumbra.errors import PenumbraError

SCHEMA_VERSION = 2
FIT_AGAIN = "export the model again"

# Roles of the outputs of schema 1, which had none.
_ROLES = {
    "labels": "prediction",
    "disparity": "prediction",
    "uncertainty": "uncertainty",
    "confidence": "confidence",
    "frame_score": "score",
}


@dataclass(frozen=True)
class InputSpec:
    """The camera image, `uint8` height x width x 3; a height or width of None takes any."""

    name: str
    height: int | None
    width: int | None
    channel_order: Literal["bgr", "rgb"]
    working_size: tuple[int, int] | None = None  # height, width at which thresholds were fitted


@dataclass(frozen=True)
class OutputSpec:
    """One output of the graph; None in `shape` follows the image."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    meaning: str
    unit: str
    optional: bool
    role: str


@dataclass(frozen=True)
class ClassSpec:
    """A class of a segmentation and the colour (red, green, blue) it is painted in."""

    name: str
    colour: tuple[int, int, int]


@dataclass(frozen=True)
class DepthSpec:
    """From disparity d (a fraction of the image width) to metres: focal_per_width baseline_m / d.

    `focal_per_width` is the focal length as a fraction of the image width.
    """

    baseline_m: float
    focal_per_width: float
    max_depth_m: float


@dataclass(frozen=True)
class ModelReference:
    """How offline tools build the network again; the vehicle never imports it."""

    entry_point: str | None  # in the group penumbra.models
    reference: str | None  # package.module:factory
    arguments: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The entry point, or else the reference."""
        return self.entry_point or self.reference or "unknown"


@dataclass(frozen=True)
class RuleSpec:
    """By which rules the variance was propagated."""

    relu: str
    softmax: str
    variance: str  # how much of the covariance is kept, and whether gains were fitted


@dataclass(frozen=True)
class Thresholds:
    """Above which a pixel or a frame is out of distribution, and on how many frames that rests."""

    pixel: float
    frame: float
    false_alarm_rate: float
    frames: int
    map: str = "uncertainty"  # the output that is judged
    score_fraction: float = 0.01  # of its pixels that make a frame's score
    uncertainty_top: float | None = None  # at the upper end of the colours of the uncertainty

    def entry(self) -> dict[str, Any]:
        """As `alerts` of a manifest has it."""
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
        """Of the cause `uncertainty`, if it was fitted."""
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
    """Of the weights."""

    spdx: str
    research_only: bool
    note: str = ""


def read_manifest(manifest: Mapping[str, Any], where: str, folder: str) -> dict[str, Any]:
    """The manifest in its present schema, checked; `where` and `folder` are for the error."""
    version = manifest.get("schema")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise PenumbraError(
            f"{folder} is a bundle of schema version {version} and this Penumbra knows up to "
            f"{SCHEMA_VERSION}: update Penumbra, or export the model again with this one"
        )
    if version == 1:
        check_manifest(manifest, where, FIT_AGAIN, version=1)
        manifest = _upgraded(manifest)
    check_manifest(manifest, where, FIT_AGAIN)
    return dict(manifest)


def check_manifest(
    manifest: Mapping[str, Any], where: str, what_to_do: str, version: int = SCHEMA_VERSION
) -> None:
    """PenumbraError, in one line, if the manifest does not fit its schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    file = resources.files("penumbra").joinpath(f"schemas/manifest-{version}.schema.json")
    error = best_match(Draft202012Validator(json.loads(file.read_text())).iter_errors(manifest))
    if error is not None:
        key = ".".join(map(str, error.absolute_path)) or "the whole"
        what = " ".join(error.message.split())
        what = what if len(what) <= 200 else f"{what[:197]}..."
        raise PenumbraError(f"{where} is not valid at {key}: {what}; {what_to_do}")


def _upgraded(old: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest of schema 1 as schema 2: everything is kept, under its new name."""
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

"""The bundle: a folder in which a model travels from the workshop to the vehicle.

    model.onnx            the whole frame in one graph: camera image in, prediction and scores out
    weights.safetensors   the network itself, for Monte Carlo and calibration
    manifest.yaml         what the two mean, and their SHA-256
    README.md             the model card, for people: data, results, intended use, licence

Nothing in it is ever executed or unpickled. `load_bundle` reads it only if it is whole and of a
version that this Penumbra knows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from penumbra.errors import PenumbraError

SCHEMA_VERSION = 1
MANIFEST = "manifest.yaml"
MODEL = "model.onnx"
WEIGHTS = "weights.safetensors"
CARD = "README.md"


@dataclass(frozen=True)
class InputSpec:
    """The camera image, `uint8` height x width x 3; a height or width of None takes any."""

    name: str
    height: int | None
    width: int | None
    channel_order: Literal["bgr", "rgb"]


@dataclass(frozen=True)
class OutputSpec:
    """One output of the graph; None in `shape` follows the image."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    meaning: str
    unit: str
    optional: bool


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
class Thresholds:
    """Above which a pixel or a frame is out of distribution, and on how many frames that rests."""

    pixel: float
    frame: float
    false_alarm_rate: float
    frames: int
    map: str = "uncertainty"  # the output that is judged
    score_fraction: float = 0.01  # of its pixels that make a frame's score
    uncertainty_top: float | None = None  # at the upper end of the colours of the uncertainty


@dataclass(frozen=True)
class Bundle:
    """A verified bundle: the plain manifest, and views of it that have types."""

    path: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    @property
    def task(self) -> str:
        """`segmentation` or `depth`."""
        return str(self.manifest["task"])

    @property
    def precision(self) -> str:
        """`fp32`, `fp16` or `mixed`."""
        return str(self.manifest["precision"])

    @property
    def model_file(self) -> Path:
        return self.path / MODEL

    @property
    def weights_file(self) -> Path:
        return self.path / WEIGHTS

    @property
    def sha256(self) -> str:
        """Of model.onnx: what an engine built from it is known by."""
        return str(self.manifest["files"][MODEL])

    @cached_property
    def input(self) -> InputSpec:
        return InputSpec(**self.manifest["input"])

    @cached_property
    def outputs(self) -> list[OutputSpec]:
        return [
            OutputSpec(**{**output, "shape": tuple(output["shape"])})
            for output in self.manifest["outputs"]
        ]

    @cached_property
    def classes(self) -> list[ClassSpec]:
        """By label number; empty for depth."""
        return [ClassSpec(c["name"], tuple(c["colour"])) for c in self.manifest["classes"]]

    @cached_property
    def depth(self) -> DepthSpec | None:
        """None for segmentation."""
        depth = self.manifest["depth"]
        return None if depth is None else DepthSpec(**depth)

    @cached_property
    def thresholds(self) -> Thresholds | None:
        """None until they have been measured."""
        thresholds = self.manifest["thresholds"]
        return None if thresholds is None else Thresholds(**thresholds)


def load_bundle(path: Path | str) -> Bundle:
    """The bundle in folder `path`, if it is whole, unchanged and of a known version."""
    folder = Path(path)
    manifest = _read_manifest(folder)
    version = manifest.get("schema")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise PenumbraError(
            f"{folder} is a bundle of schema version {version} and this Penumbra knows up to "
            f"{SCHEMA_VERSION}: update Penumbra, or export the model again with this one"
        )
    _check_manifest(manifest, f"{folder / MANIFEST}", "export the model again")
    for name, expected in manifest["files"].items():
        _check_file(folder / name, expected)
    return Bundle(folder, manifest)


def write_bundle(
    path: Path | str, manifest: Mapping[str, Any], files: Mapping[str, bytes | Path]
) -> Bundle:
    """Write a whole bundle or nothing; a bundle that is already at `path` is replaced.

    `manifest` comes without `schema` and `files`, which are filled in here. The contents may be
    files of the very bundle that is replaced. A model card at `path` stays.
    """
    target = Path(path)
    if target.exists() and not _may_be_replaced(target):
        raise PenumbraError(f"{target} is there and is no bundle: choose another place for it")
    manifest = {"schema": SCHEMA_VERSION, **manifest}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
            made = Path(scratch) / "new"
            made.mkdir()
            for name, content in files.items():
                if isinstance(content, Path):
                    shutil.copyfile(content, made / name)
                else:
                    (made / name).write_bytes(content)
            manifest["files"] = {name: _sha256(made / name) for name in files}
            if (target / CARD).is_file():
                shutil.copyfile(target / CARD, made / CARD)
            _check_manifest(manifest, f"the manifest of {target}", "this is what was to be written")
            text = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=100)
            (made / MANIFEST).write_text(text, encoding="utf-8")
            _flush(made.iterdir())
            _swap(made, target, Path(scratch) / "old")
    except OSError as error:
        raise PenumbraError(
            f"cannot write the bundle {target}: {error.strerror or error}; free some space or "
            "choose another folder"
        ) from error
    return Bundle(target, manifest)


def _read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    if not file.is_file():
        raise PenumbraError(
            f"no bundle at {folder}: there is no {MANIFEST}; give the folder that "
            "`penumbra export` wrote"
        )
    try:
        manifest = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PenumbraError(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        what = " ".join(str(error).split())
        raise PenumbraError(f"{file} is not YAML ({what}): export the model again") from error
    if not isinstance(manifest, dict):
        raise PenumbraError(f"{file} is not a manifest of a bundle: export the model again")
    return manifest


def _check_manifest(manifest: Mapping[str, Any], where: str, what_to_do: str) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    schema = json.loads(
        resources.files("penumbra").joinpath("schemas/manifest.schema.json").read_text()
    )
    error = best_match(Draft202012Validator(schema).iter_errors(manifest))
    if error is not None:
        key = ".".join(map(str, error.absolute_path)) or "the whole"
        what = " ".join(error.message.split())
        what = what if len(what) <= 200 else f"{what[:197]}..."
        raise PenumbraError(f"{where} is not valid at {key}: {what}; {what_to_do}")


def _check_file(file: Path, expected: str) -> None:
    if not file.is_file():
        raise PenumbraError(f"{file} is missing from its bundle: copy the whole folder again")
    try:
        found = _sha256(file)
    except OSError as error:
        raise PenumbraError(f"cannot read {file}: {error.strerror}") from error
    if found != expected:
        raise PenumbraError(
            f"{file} ({file.stat().st_size} bytes) is not the file that was exported: its SHA-256 "
            f"begins with {found[:12]}, the manifest says {expected[:12]}; copy the whole folder "
            "again"
        )


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _may_be_replaced(target: Path) -> bool:
    """A folder that holds a bundle, or at most a card: never somebody's other files."""
    return target.is_dir() and (
        (target / MANIFEST).is_file() or all(file.name == CARD for file in target.iterdir())
    )


def _flush(files: Iterable[Path]) -> None:
    """To the disk, before the rename that makes them visible."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _swap(made: Path, target: Path, old: Path) -> None:
    """Put `made` in the place of `target`; what was there goes to `old`, or back if that fails."""
    if not target.exists():
        made.rename(target)
        return
    target.rename(old)
    try:
        made.rename(target)
    except OSError:
        old.rename(target)
        raise

"""The bundle: a folder in which a model travels from training to the vehicle.

    model.onnx            the whole frame in one graph: camera image in, prediction and scores out
    weights.safetensors   the network itself, for Monte Carlo and for fitting
    gains.safetensors     the gains of its variance, where they were fitted
    manifest.yaml         what the two mean, and their SHA-256
    README.md             the model card, for people: data, results, intended use, licence

Nothing in it is ever executed or unpickled. `load_bundle` reads it only if it is whole and of a
version that this Penumbra knows.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from penumbra.errors import PenumbraError
from penumbra.manifest import (
    SCHEMA_VERSION,
    ClassSpec,
    DepthSpec,
    InputSpec,
    Licence,
    ModelReference,
    OutputSpec,
    RuleSpec,
    Thresholds,
    check_manifest,
    read_manifest,
)

MANIFEST = "manifest.yaml"
MODEL = "model.onnx"
WEIGHTS = "weights.safetensors"
CARD = "README.md"

__all__ = [
    "CARD",
    "MANIFEST",
    "MODEL",
    "SCHEMA_VERSION",
    "WEIGHTS",
    "Bundle",
    "ClassSpec",
    "DepthSpec",
    "InputSpec",
    "Licence",
    "ModelReference",
    "OutputSpec",
    "RuleSpec",
    "Thresholds",
    "load_bundle",
    "rewrite_bundle",
    "write_bundle",
]


@dataclass(frozen=True)
class Bundle:
    """A verified bundle: the plain manifest, and views of it that have types."""

    path: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """As messages and logs call it."""
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
        """The graph."""
        return self.path / MODEL

    @property
    def weights_file(self) -> Path:
        """The network's weights, for Monte Carlo and for fitting."""
        return self.path / WEIGHTS

    @property
    def sha256(self) -> str:
        """Of model.onnx: what an engine built from it is known by."""
        return str(self.manifest["files"][MODEL])

    @property
    def files(self) -> Mapping[str, str]:
        """The SHA-256 of each file, by name."""
        return dict(self.manifest["files"])

    @cached_property
    def model(self) -> ModelReference:
        """How offline tools build the network again."""
        return ModelReference(**self.manifest["model"])

    @cached_property
    def rules(self) -> RuleSpec:
        """By which rules the variance was propagated."""
        return RuleSpec(**self.manifest["rules"])

    @property
    def variant(self) -> dict[str, Any]:
        """Network, its arguments and the rules in one mapping, for reports and tables."""
        return {"architecture": self.model.name, **self.model.arguments, **asdict(self.rules)}

    @cached_property
    def input(self) -> InputSpec:
        """The image that the graph takes."""
        entry = dict(self.manifest["input"])
        size = entry.pop("working_size")
        working_size = None if size is None else (size["height"], size["width"])
        return InputSpec(**entry, working_size=working_size)

    @cached_property
    def outputs(self) -> list[OutputSpec]:
        """What the graph returns."""
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
        """Of the cause `uncertainty`; None until they have been fitted."""
        alerts = self.manifest["alerts"]
        return None if alerts is None else Thresholds.of_entry(alerts)

    @cached_property
    def licence(self) -> Licence | None:
        """Of the weights; None if it is not stated."""
        licence = self.manifest["licence"]
        return None if licence is None else Licence(**licence)

    @property
    def monte_carlo_tolerances(self) -> Mapping[str, float]:
        """How near the node must come to Monte Carlo; empty where nothing is promised."""
        return dict((self.manifest["tolerances"] or {}).get("monte_carlo") or {})


def load_bundle(path: Path | str) -> Bundle:
    """The bundle in folder `path`, if it is whole, unchanged and of a known version."""
    folder = Path(path)
    manifest = read_manifest(_read_manifest(folder), str(folder / MANIFEST), str(folder))
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
            check_manifest(manifest, f"the manifest of {target}", "this is what was to be written")
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


def rewrite_bundle(bundle: Bundle, **changes: Any) -> Bundle:
    """The same bundle, whole or not at all, with other parts of the manifest."""
    kept = {k: v for k, v in bundle.manifest.items() if k not in ("schema", "files")}
    return write_bundle(bundle.path, kept | changes, {f: bundle.path / f for f in bundle.files})


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

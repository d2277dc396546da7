"""The bundle: a folder in which a model travels from training to the vehicle.

    model.onnx            the whole frame in one graph: camera image in, prediction and scores out
    weights.safetensors   the network itself, for Monte Carlo and for fitting
    gains.safetensors     the gains of its variance, where they were fitted
    manifest.yaml         inputs, outputs, thresholds, provenance, and the SHA-256 of each file
    README.md             the model card: data, results, intended use, licence
    signature.json        who vouches for all this, where the bundle was signed

Nothing in it is ever executed or unpickled. `load_bundle` rejects incomplete or modified bundles
and unknown schema versions. What is checked is what is used: the manifest is parsed from the bytes
that the signature covers, and `Bundle.read_model` returns the bytes whose checksum it compared.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from penumbra.errors import PenumbraError
from penumbra.external_data import refuse_external_data
from penumbra.files import (
    check_digest,
    check_files,
    missing,
    plain_name,
    read_regular,
    replace_folder,
)
from penumbra.manifest import (
    EXPORT_AGAIN,
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
from penumbra.safe_yaml import LARGEST, dump_yaml, parse_yaml
from penumbra.signatures import verify_signature

MANIFEST = "manifest.yaml"
MODEL = "model.onnx"
WEIGHTS = "weights.safetensors"
CARD = "README.md"
NOTHING_WRITTEN = "nothing was written"
LARGEST_FILE = (1 << 31) - 1  # bytes read at once: no protocol buffer may be larger

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
    """A verified bundle: the raw manifest, and typed views of it."""

    path: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """The name shown in messages and logs."""
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
        """The exported graph."""
        return self.path / MODEL

    @property
    def weights_file(self) -> Path:
        """The network's weights, for Monte Carlo and for fitting."""
        return self.path / WEIGHTS

    def read_model(self) -> bytes:
        """The exported graph, checked again: these bytes are those that the manifest lists."""
        return self.read_file(MODEL)

    def read_file(self, name: str) -> bytes:
        """A listed file, read once: the bytes returned are the bytes whose SHA-256 was compared."""
        file = self.path / plain_name(name, self.path)
        try:
            data = read_regular(file, LARGEST_FILE)
        except FileNotFoundError as error:
            raise missing(file) from error
        expected = self.files.get(name, "no such file")
        check_digest(file, hashlib.sha256(data).hexdigest(), expected, len(data))
        return data

    @property
    def sha256(self) -> str:
        """Checksum of model.onnx; identifies the engines built from it."""
        return str(self.manifest["files"][MODEL])

    @property
    def files(self) -> Mapping[str, str]:
        """The SHA-256 of each file, by name."""
        return dict(self.manifest["files"])

    @cached_property
    def model(self) -> ModelReference:
        """How offline tools rebuild the network."""
        return ModelReference(**self.manifest["model"])

    @cached_property
    def rules(self) -> RuleSpec:
        """The rules that propagated the variance."""
        return RuleSpec(**self.manifest["rules"])

    @property
    def variant(self) -> dict[str, Any]:
        """Network, arguments and rules in one mapping, for reports and tables."""
        return {"architecture": self.model.name, **self.model.arguments, **asdict(self.rules)}

    @cached_property
    def input(self) -> InputSpec:
        """The input image of the graph."""
        entry = dict(self.manifest["input"])
        size = entry.pop("working_size")
        working_size = None if size is None else (size["height"], size["width"])
        return InputSpec(**entry, working_size=working_size)

    @cached_property
    def outputs(self) -> list[OutputSpec]:
        """The outputs of the graph."""
        return [
            OutputSpec(**{**output, "shape": tuple(output["shape"])})
            for output in self.manifest["outputs"]
        ]

    @cached_property
    def classes(self) -> list[ClassSpec]:
        """Classes by label number; empty for depth."""
        return [ClassSpec(c["name"], tuple(c["colour"])) for c in self.manifest["classes"]]

    @cached_property
    def depth(self) -> DepthSpec | None:
        """Scale of a depth model; None for segmentation."""
        depth = self.manifest["depth"]
        return None if depth is None else DepthSpec(**depth)

    @cached_property
    def thresholds(self) -> Thresholds | None:
        """Thresholds of the cause `uncertainty`; None until they are fitted."""
        alerts = self.manifest["alerts"]
        return None if alerts is None else Thresholds.of_entry(alerts)

    @property
    def alerts(self) -> Mapping[str, Any] | None:
        """Thresholds and models by cause; None until they are fitted."""
        alerts: Mapping[str, Any] | None = self.manifest["alerts"]
        return alerts

    def with_alerts(self, alerts: Mapping[str, Any] | None) -> Bundle:
        """The same bundle with other thresholds, in memory only: those of a site."""
        return Bundle(self.path, {**self.manifest, "alerts": alerts})

    def outputs_of_role(self, role: str) -> list[str]:
        """The names of the outputs with this role."""
        return [output.name for output in self.outputs if output.role == role]

    @cached_property
    def licence(self) -> Licence | None:
        """Licence of the weights; None if not stated."""
        licence = self.manifest["licence"]
        return None if licence is None else Licence(**licence)

    @property
    def monte_carlo_tolerances(self) -> Mapping[str, float]:
        """Tolerances of the node against Monte Carlo; empty if none are stated."""
        return dict((self.manifest["tolerances"] or {}).get("monte_carlo") or {})


def load_bundle(path: Path | str, trusted_keys: Sequence[Path] = ()) -> Bundle:
    """Load the bundle in folder `path`; PenumbraError if it is incomplete, modified or too new.

    With `trusted_keys`, the files of public keys, it must also carry a signature of one of them,
    which is verified before anything else of the bundle is parsed.
    """
    folder = Path(path)
    file = folder / MANIFEST
    try:
        if trusted_keys:
            data = verify_signature(folder, trusted_keys, MANIFEST)
        else:
            data = read_regular(file, LARGEST)
    except FileNotFoundError as error:
        raise PenumbraError(
            f"no bundle at {folder}: {MANIFEST} is missing; give a folder written by "
            "`penumbra export`"
        ) from error
    parsed = parse_yaml(data, file, EXPORT_AGAIN)
    if not isinstance(parsed, dict):
        raise PenumbraError(f"{file} is not a manifest of a bundle: {EXPORT_AGAIN}")
    manifest = read_manifest(parsed, str(file), str(folder))
    bundle = Bundle(folder, manifest)
    check_files(folder, {name: sha for name, sha in bundle.files.items() if name != MODEL})
    refuse_external_data(bundle.read_model(), bundle.model_file)
    return bundle


def write_bundle(
    path: Path | str, manifest: Mapping[str, Any], files: Mapping[str, bytes | Path]
) -> Bundle:
    """Write a bundle atomically; an existing bundle at `path` is replaced.

    `manifest` comes without `schema` and `files`, which are filled in here. `files` may refer to
    files of the bundle that is replaced. A model card at `path` is kept, a signature is not: it
    would not match.
    """
    target = Path(path)
    if target.exists() and not _may_be_replaced(target):
        raise PenumbraError(f"{target} exists and is not a bundle: choose another folder")
    manifest = {"schema": SCHEMA_VERSION, **manifest}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
            staged = Path(scratch) / "new"
            staged.mkdir()
            for name, content in files.items():
                file = staged / plain_name(name, target)
                if isinstance(content, Path):
                    shutil.copyfile(content, file)
                else:
                    file.write_bytes(content)
            manifest["files"] = {name: _sha256(staged / name) for name in files}
            if (target / CARD).is_file() and not (target / CARD).is_symlink():
                shutil.copyfile(target / CARD, staged / CARD)
            where = f"the manifest of {target}"
            check_manifest(manifest, where, NOTHING_WRITTEN)
            text = dump_yaml(manifest)
            parse_yaml(text.encode(), where, NOTHING_WRITTEN)  # what is written can be read
            refuse_external_data((staged / MODEL).read_bytes(), f"the graph for {target}")
            (staged / MANIFEST).write_text(text, encoding="utf-8")
            replace_folder(staged, target, Path(scratch) / "old")
    except OSError as error:
        raise PenumbraError(
            f"cannot write the bundle {target}: {error.strerror or error}; free some space or "
            "choose another folder"
        ) from error
    return Bundle(target, manifest)


def rewrite_bundle(
    bundle: Bundle, files: Mapping[str, bytes | None] | None = None, **changes: Any
) -> Bundle:
    """Rewrite the bundle atomically, with these entries of the manifest and files replaced.

    A file of None is removed, if it is there.
    """
    kept = {k: v for k, v in bundle.manifest.items() if k not in ("schema", "files")}
    content: dict[str, bytes | Path] = {name: bundle.path / name for name in bundle.files}
    for name, data in (files or {}).items():
        content.pop(name, None)
        if data is not None:
            content[name] = data
    return write_bundle(bundle.path, kept | changes, content)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _may_be_replaced(target: Path) -> bool:
    """Whether `target` is a bundle, or empty except for a model card."""
    return target.is_dir() and (
        (target / MANIFEST).is_file() or all(file.name == CARD for file in target.iterdir())
    )

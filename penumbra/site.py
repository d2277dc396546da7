"""The site folder: what a site adds to a bundle, without changing it.

    site.yaml               thresholds by camera and cause, and the bundle that they belong to
    familiarity-front.npz   the model of a camera's scenes
    signature.json          who vouches for all this, where the folder was signed

`penumbra fit-alerts BUNDLE --site DIR` writes it, the node's parameter `site` names it. A folder
that was fitted to another bundle is refused: its numbers mean nothing there. Nothing in it is
executed or unpickled.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.files import (
    check_digest,
    check_files,
    missing,
    plain_name,
    read_regular,
    replace_folder,
)
from penumbra.manifest import check_schema
from penumbra.safe_yaml import LARGEST, dump_yaml, parse_yaml
from penumbra.signatures import verify_signature
from penumbra.text import printable

SITE = "site.yaml"
SITE_SCHEMA = 1
_LARGEST_FILE = 64 * 2**20  # bytes of a model
_FIT_AGAIN = "run `penumbra fit-alerts BUNDLE --site DIR` again"


@dataclass(frozen=True)
class Site:
    """A verified site folder."""

    path: Path
    document: Mapping[str, Any]
    sha256: str  # of site.yaml

    @property
    def label(self) -> str:
        """Name and checksum, as in messages."""
        return f"{self.document['name']}@{self.sha256[:8]}"

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras that it was fitted to."""
        return tuple(self.document["cameras"])

    @property
    def files(self) -> Mapping[str, str]:
        """The SHA-256 of each file, by name."""
        return dict(self.document["files"])

    def causes(self, camera: str) -> Mapping[str, Any]:
        """The causes that it has thresholds of, for one camera."""
        entry = self.document["cameras"].get(camera)
        return {} if entry is None else dict(entry["alerts"]["causes"])

    def health(self, camera: str) -> Mapping[str, Any] | None:
        """The ordinary ranges of a camera's health scores; None if not fitted."""
        entry = self.document["cameras"].get(camera)
        return None if entry is None else entry["health"]

    def applied(self, bundle: Bundle, camera: str) -> Bundle:
        """The bundle with this site's thresholds for a camera, cause by cause."""
        entry = self.document["cameras"].get(camera)
        if entry is None:
            return bundle
        before = {} if bundle.alerts is None else bundle.alerts["causes"]
        alerts = entry["alerts"]
        return bundle.with_alerts({**alerts, "causes": {**before, **alerts["causes"]}})

    def read_file(self, name: str) -> bytes:
        """A listed file: the bytes returned are the bytes whose SHA-256 was compared."""
        file = self.path / plain_name(name, self.path)
        try:
            data = read_regular(file, _LARGEST_FILE)
        except FileNotFoundError as error:
            raise missing(file) from error
        expected = self.files.get(name, "no such file")
        check_digest(file, hashlib.sha256(data).hexdigest(), expected, len(data))
        return data


def load_site(path: Path | str, bundle: Bundle, trusted_keys: Sequence[Path] = ()) -> Site:
    """Load the site folder of a bundle; PenumbraError if it is damaged or of another bundle.

    With `trusted_keys`, the files of public keys, it must carry a signature of one of them, which
    is verified before anything else is parsed.
    """
    folder = Path(path)
    file = folder / SITE
    try:
        if trusted_keys:
            data = verify_signature(folder, trusted_keys, SITE)
        else:
            data = read_regular(file, LARGEST)
    except FileNotFoundError as error:
        raise PenumbraError(
            f"no site at {folder}: {SITE} is missing; give a folder written by `penumbra fit-alerts"
            " BUNDLE --site DIR`"
        ) from error
    document = parse_yaml(data, file, _FIT_AGAIN)
    if not isinstance(document, dict):
        raise PenumbraError(f"{file} is not a site: {_FIT_AGAIN}")
    check_schema(document, f"site-{SITE_SCHEMA}", str(file), _FIT_AGAIN)
    fitted = document["bundle"]
    if fitted["sha256"] != bundle.sha256:
        raise PenumbraError(
            f"{folder} was fitted to {printable(fitted['name'])}@{fitted['sha256'][:8]}, and the "
            f"bundle is {bundle.name}@{bundle.sha256[:8]}: its thresholds mean nothing there; "
            f"{_FIT_AGAIN}"
        )
    check_files(folder, document["files"])
    return Site(folder, document, hashlib.sha256(data).hexdigest())


def write_site(
    path: Path | str,
    bundle: Bundle,
    camera: str,
    alerts: Mapping[str, Any],
    health: Mapping[str, Any] | None,
    files: Mapping[str, bytes],
) -> Site:
    """Write one camera of a site folder atomically; other cameras of the same bundle are kept.

    `files` are the models that `alerts` names. A signature is not kept: it would not match.
    """
    target = Path(path)
    cameras: dict[str, Any] = {}
    kept: dict[str, bytes] = {}
    if (target / SITE).exists():
        before = load_site(target, bundle)
        cameras = {name: e for name, e in before.document["cameras"].items() if name != camera}
        for entry in cameras.values():
            for cause in entry["alerts"]["causes"].values():
                if cause.get("model"):
                    kept[cause["model"]] = before.read_file(cause["model"])
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PenumbraError(f"{target} exists and is not a site folder: choose another")
    content = {**kept, **files}
    document = {
        "schema": SITE_SCHEMA,
        "name": target.resolve().name,
        "bundle": {"name": bundle.name, "sha256": bundle.sha256},
        "cameras": {**cameras, camera: {"alerts": dict(alerts), "health": health}},
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in content.items()},
    }
    where = f"the site {target}"
    check_schema(document, f"site-{SITE_SCHEMA}", where, "nothing was written")
    text = dump_yaml(document).encode()
    parse_yaml(text, where, "nothing was written")  # what is written can be read
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
            staged = Path(scratch) / "new"
            staged.mkdir()
            for name, data in content.items():
                (staged / plain_name(name, target)).write_bytes(data)
            (staged / SITE).write_bytes(text)
            if (target / "README.md").is_file() and not (target / "README.md").is_symlink():
                shutil.copyfile(target / "README.md", staged / "README.md")
            replace_folder(staged, target, Path(scratch) / "old")
    except OSError as error:
        raise PenumbraError(
            f"cannot write the site {target}: {error.strerror or error}; free some space or choose "
            "another folder"
        ) from error
    return Site(target, document, hashlib.sha256(text).hexdigest())

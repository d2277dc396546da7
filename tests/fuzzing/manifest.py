"""Fuzz target: the bytes of a manifest.yaml, up to the typed views that the vehicle reads."""

from __future__ import annotations

import tempfile
from pathlib import Path

import tiny_bundles
from test_bundle import MANIFEST, SCHEMA_1

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.manifest import read_manifest
from penumbra.safe_yaml import dump_yaml, parse_yaml

VIEWS = [name for name, value in vars(Bundle).items() if hasattr(value, "__get__")]
VIEWS = [name for name in VIEWS if not name.startswith("_") and not callable(getattr(Bundle, name))]


def run_one(data: bytes) -> None:
    """Parse one input; every exception but PenumbraError is a defect."""
    try:
        parsed = parse_yaml(data, "manifest.yaml", "export the model again")
        if not isinstance(parsed, dict):
            return
        bundle = Bundle(Path("street"), read_manifest(parsed, "manifest.yaml", "street"))
        for view in VIEWS:
            getattr(bundle, view)
        assert parse_yaml(dump_yaml(bundle.manifest).encode(), "", "") == bundle.manifest
    except PenumbraError as error:
        assert "\n" not in str(error), error


def seeds() -> list[bytes]:
    """Valid manifests of both tasks and both schemas, and the devices of an attacker."""
    with tempfile.TemporaryDirectory() as folder:
        bundles = [
            tiny_bundles.segmentation(Path(folder) / "street"),
            tiny_bundles.depth(Path(folder) / "depth"),
        ]
        found = [(bundle.path / "manifest.yaml").read_bytes() for bundle in bundles]
    files = {"model.onnx": "0" * 64, "weights.safetensors": "1" * 64}
    found.append(dump_yaml({"schema": 2, **MANIFEST, "files": files}).encode())
    found.append(dump_yaml({**SCHEMA_1, "files": files}).encode())
    found += [b"a: &a [1, 2]\nb: [*a, *a]\n", b"[" * 100, b"a: " + b"1" * 5000, b"a: .inf\n<<: {}"]
    found += [b'? "\\0\\ud800"\n: !!python/name:os.system\n', b"a: 2001-01-01 10:00:00\n--- 0x1f"]
    return found

"""A bundle is loaded complete and unmodified, or rejected with a one-line reason."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import yaml

from penumbra.bundle import (
    SCHEMA_VERSION,
    ClassSpec,
    DepthSpec,
    InputSpec,
    Licence,
    ModelReference,
    OutputSpec,
    RuleSpec,
    Thresholds,
    load_bundle,
    rewrite_bundle,
    write_bundle,
)
from penumbra.errors import PenumbraError

# An ONNX file whose only field is its `doc_string` of 100 characters.
FILES = {
    "model.onnx": b"\x32\x64" + b"a graph, or not so " * 5 + b"large",
    "weights.safetensors": b"some weights " * 40,
}
MANIFEST = {
    "name": "street",
    "task": "segmentation",
    "licence": {"spdx": "Apache-2.0", "research_only": False},
    "model": {
        "entry_point": "segnet",
        "reference": "penumbra.offline.models.segnet:SegNet",
        "arguments": {"dropout": "encdec", "rate": 0.5, "width": 0.25},
    },
    "rules": {"relu": "moment", "softmax": "jacobian", "variance": "diagonal"},
    "precision": "fp32",
    "input": {
        "name": "image",
        "height": 360,
        "width": None,
        "channel_order": "bgr",
        "working_size": {"height": 360, "width": 480},
    },
    "outputs": [
        {
            "name": "labels",
            "dtype": "uint8",
            "shape": [360, None],
            "meaning": "the most probable class",
            "unit": "class number",
            "optional": False,
            "role": "prediction",
        }
    ],
    "classes": [
        {"name": "road", "colour": [128, 64, 128]},
        {"name": "sky", "colour": [128, 128, 128]},
    ],
    "depth": None,
    "gains": None,
    "alerts": {
        "false_alarm_rate": 0.01,
        "frames": 101,
        "drives": 3,
        "causes": {
            "uncertainty": {
                "output": "uncertainty",
                "direction": "above",
                "frame": 0.02,
                "pixel": 0.1,
            }
        },
    },
    "tolerances": {"precisions": {"fp32": {"labels": 0.9999}}, "monte_carlo": {"spearman": 0.9}},
    "provenance": {
        "command": "penumbra export …",
        "version": "0.1.0",
        "seed": 0,
        "data": "CamVid",
        "created": "2026-01-01T00:00:00+00:00",
        "torch": "2.13.0",
    },
}


SCHEMA_1 = {
    "schema": 1,
    "name": "street",
    "task": "segmentation",
    "variant": {
        "architecture": "segnet",
        "dropout": "encdec",
        "rate": 0.5,
        "width": 0.25,
        "relu": "moment",
        "variance": "diagonal",
    },
    "precision": "fp32",
    "input": {"name": "image", "height": 360, "width": None, "channel_order": "bgr"},
    "outputs": [
        {
            "name": "labels",
            "dtype": "uint8",
            "shape": [360, None],
            "meaning": "the most probable class",
            "unit": "class number",
            "optional": False,
        }
    ],
    "classes": [
        {"name": "road", "colour": [128, 64, 128]},
        {"name": "sky", "colour": [128, 128, 128]},
    ],
    "depth": None,
    "calibration": None,
    "thresholds": {"pixel": 0.1, "frame": 0.02, "false_alarm_rate": 0.01, "frames": 101},
    "tolerances": {"labels": 0.9999, "monte_carlo": {"spearman": 0.9}},
    "provenance": {
        "command": "penumbra export …",
        "version": "0.1.0",
        "seed": 0,
        "data": "CamVid",
        "created": "2026-01-01T00:00:00+00:00",
        "torch": "2.13.0",
    },
}


@pytest.fixture
def folder(tmp_path):
    return write_bundle(tmp_path / "street", MANIFEST, FILES).path


def edit(folder, change):
    """Edit the manifest of a bundle in place."""
    file = folder / "manifest.yaml"
    manifest = yaml.safe_load(file.read_text())
    change(manifest)
    file.write_text(yaml.safe_dump(manifest))


def refusal(folder) -> str:
    with pytest.raises(PenumbraError) as caught:
        load_bundle(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_written_bundle_is_loaded_unchanged(folder):
    bundle = load_bundle(str(folder))
    assert (bundle.name, bundle.task, bundle.precision) == ("street", "segmentation", "fp32")
    assert bundle.input == InputSpec("image", 360, None, "bgr", (360, 480))
    assert bundle.outputs == [
        OutputSpec(
            "labels",
            "uint8",
            (360, None),
            "the most probable class",
            "class number",
            False,
            "prediction",
        )
    ]
    assert bundle.classes == [
        ClassSpec("road", (128, 64, 128)),
        ClassSpec("sky", (128, 128, 128)),
    ]
    assert bundle.depth is None
    assert bundle.thresholds == Thresholds(0.1, 0.02, 0.01, 101)
    assert bundle.model_file.read_bytes() == FILES["model.onnx"]
    assert bundle.weights_file.read_bytes() == FILES["weights.safetensors"]
    assert bundle.sha256 == hashlib.sha256(FILES["model.onnx"]).hexdigest()
    assert bundle.manifest["schema"] == SCHEMA_VERSION
    assert {k: v for k, v in bundle.manifest.items() if k not in ("schema", "files")} == MANIFEST


def test_the_model_its_rules_and_its_licence_are_typed(folder):
    bundle = load_bundle(folder)
    assert bundle.model == ModelReference(
        "segnet",
        "penumbra.offline.models.segnet:SegNet",
        {"dropout": "encdec", "rate": 0.5, "width": 0.25},
    )
    assert bundle.rules == RuleSpec("moment", "jacobian", "diagonal")
    assert bundle.licence == Licence("Apache-2.0", research_only=False)
    assert bundle.monte_carlo_tolerances == {"spearman": 0.9}


def test_a_bundle_of_schema_1_is_read(folder):
    """It is upgraded to schema 2: the same facts under their new names."""
    written = load_bundle(folder)
    old = {**SCHEMA_1, "files": written.manifest["files"]}
    (folder / "manifest.yaml").write_text(yaml.safe_dump(old))
    bundle = load_bundle(folder)
    assert bundle.manifest["schema"] == SCHEMA_VERSION
    assert bundle.model.entry_point == "segnet" and bundle.model.reference is None
    assert bundle.model.arguments == written.model.arguments
    for name in ("rules", "outputs", "classes", "depth", "thresholds", "monte_carlo_tolerances"):
        assert getattr(bundle, name) == getattr(written, name), name
    assert bundle.manifest["tolerances"] == written.manifest["tolerances"]
    assert (bundle.licence, bundle.input.working_size) == (None, None)
    # Rewriting it produces schema 2.
    assert load_bundle(rewrite_bundle(bundle, name="again").path).name == "again"
    assert yaml.safe_load((folder / "manifest.yaml").read_text())["schema"] == SCHEMA_VERSION
    edit(folder, lambda m: (m.clear(), m.update({**old, "variant": {}})))
    assert "is not valid at variant:" in refusal(folder)


def test_depth_has_a_camera_and_no_classes(tmp_path):
    camera = {"baseline_m": 0.54, "focal_per_width": 0.58, "max_depth_m": 80.0}
    depth = {**MANIFEST, "task": "depth", "classes": [], "depth": camera, "alerts": None}
    bundle = write_bundle(tmp_path / "depth", depth, FILES)
    assert bundle.depth == DepthSpec(0.54, 0.58, 80.0)
    assert bundle.classes == []
    assert bundle.thresholds is None
    for wrong in ({**depth, "depth": None}, {**depth, "classes": MANIFEST["classes"]}):
        with pytest.raises(PenumbraError, match="manifest of .* is not valid"):
            write_bundle(tmp_path / "wrong", wrong, FILES)


def test_no_bundle(tmp_path):
    assert "no bundle at" in refusal(tmp_path)
    assert "no bundle at" in refusal(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "no bundle at" in refusal(tmp_path / "file")


@pytest.mark.parametrize("content", [b"{: [", b"\xff\xfe\x00", b"a: b: c", b"\x00\x01"])
def test_a_manifest_that_is_not_yaml(folder, content):
    (folder / "manifest.yaml").write_bytes(content)
    assert "is not YAML" in refusal(folder)


@pytest.mark.parametrize("content", ["", "- a\n- list\n", "just words"])
def test_a_manifest_that_is_not_a_mapping(folder, content):
    (folder / "manifest.yaml").write_text(content)
    assert "is not a manifest" in refusal(folder)


def test_a_truncated_manifest_is_rejected(folder):
    """Wherever it is truncated, the rest is never taken for a complete bundle."""
    text = (folder / "manifest.yaml").read_text()
    for length in range(0, len(text) - 1, 7):
        (folder / "manifest.yaml").write_text(text[:length])
        refusal(folder)


def test_manifest_runs_no_code(folder):
    (folder / "manifest.yaml").write_text("!!python/object/apply:os.getcwd []")
    assert "has the tag" in refusal(folder)


def test_newer_version_is_named(folder):
    def change(manifest):
        manifest["schema"] = SCHEMA_VERSION + 1
        manifest["something"] = "unknown to this version"

    edit(folder, change)
    message = refusal(folder)
    assert f"schema version {SCHEMA_VERSION + 1}" in message
    assert "update Penumbra" in message


@pytest.mark.parametrize(
    "change, key",
    [
        (lambda m: m.update(schema="1"), "schema"),
        (lambda m: m.update(schema=0), "schema"),
        (lambda m: m.update(task="poetry"), "task"),
        (lambda m: m.update(precision="int8"), "precision"),
        (lambda m: m.update(surprise=1), "the top level"),
        (lambda m: m.pop("classes"), "the top level"),
        (lambda m: m["input"].update(height=0), "input.height"),
        (lambda m: m["input"].update(width="wide"), "input.width"),
        (lambda m: m["input"].update(channel_order="gbr"), "input.channel_order"),
        (lambda m: m["outputs"].clear(), "outputs"),
        (lambda m: m["outputs"][0].update(dtype="float64"), "outputs.0.dtype"),
        (lambda m: m["classes"][1].update(colour=[0, 0, 256]), "classes.1.colour.2"),
        (lambda m: m["classes"][1].update(colour=[0, 0]), "classes.1.colour"),
        (
            lambda m: m["alerts"]["causes"]["uncertainty"].pop("frame"),
            "alerts.causes.uncertainty",
        ),
        (lambda m: m["alerts"]["causes"].update(weather={}), "alerts"),
        (lambda m: m["input"].update(working_size={"height": 360}), "input.working_size"),
        (lambda m: m["rules"].update(relu="guess"), "rules.relu"),
        (lambda m: m["files"].pop("model.onnx"), "files"),
        (lambda m: m["files"].update({"../outside": "0" * 64}), "files"),
        (lambda m: m["files"].update({"a/b": "0" * 64}), "files"),
        (lambda m: m["files"].update({"..": "0" * 64}), "files"),
        (lambda m: m["files"].update({"model.onnx": "short"}), "files.model.onnx"),
        (lambda m: m.update(name="n" * 201), "name"),
        (lambda m: m["classes"][0].update(name="n" * 201), "classes.0.name"),
        (lambda m: m["input"].update(name="n" * 201), "input.name"),
        (lambda m: m["outputs"][0].update(meaning="n" * 2001), "outputs.0.meaning"),
        (lambda m: m["provenance"].update(command="n" * 8001), "provenance.command"),
        (lambda m: m["alerts"]["causes"]["uncertainty"].pop("pixel"), "alerts.causes.uncertainty"),
    ],
)
def test_an_error_in_the_manifest_is_named_by_its_key(folder, change, key):
    edit(folder, change)
    message = refusal(folder)
    assert f"is not valid at {key}:" in message


@pytest.mark.parametrize("name", FILES)
def test_a_missing_truncated_or_changed_file(folder, name):
    whole = FILES[name]
    (folder / name).unlink()
    assert f"{name} is missing" in refusal(folder)
    for content in (b"", whole[:-1], whole + b" ", b"A" + whole[1:]):
        (folder / name).write_bytes(content)
        message = refusal(folder)
        assert name in message
        assert "is not the file that was exported" in message
    (folder / name).write_bytes(whole)
    load_bundle(folder)


def test_replaced_from_its_own_files(folder):
    """As fitting does: same graph, new manifest."""
    before = load_bundle(folder)
    files = {"model.onnx": before.model_file, "weights.safetensors": before.weights_file}
    write_bundle(folder, {**MANIFEST, "name": "measured"}, files)
    after = load_bundle(folder)
    assert (after.name, after.sha256) == ("measured", before.sha256)
    assert [path.name for path in folder.parent.iterdir()] == ["street"]


def test_the_model_card_stays_when_the_bundle_is_replaced(folder):
    (folder / "README.md").write_text("# street\nFor demonstrations only.\n")
    write_bundle(folder, MANIFEST, FILES)
    load_bundle(folder)
    assert (folder / "README.md").read_text() == "# street\nFor demonstrations only.\n"


def test_a_failed_write_leaves_the_bundle_unchanged(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(PenumbraError, match="is not valid at task"):
        write_bundle(folder, {**MANIFEST, "task": "poetry"}, FILES)
    with pytest.raises(PenumbraError, match="cannot write the bundle"):
        write_bundle(folder, MANIFEST, {**FILES, "model.onnx": folder / "nowhere.onnx"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["street"]


def test_a_folder_that_is_not_a_bundle_is_never_replaced(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "dog.jpg").write_bytes(b"woof")
    (tmp_path / "file").write_bytes(b"text")
    for place in ("photos", "file"):
        with pytest.raises(PenumbraError, match="is not a bundle"):
            write_bundle(tmp_path / place, MANIFEST, FILES)
    assert (tmp_path / "photos" / "dog.jpg").read_bytes() == b"woof"
    (tmp_path / "empty").mkdir()
    write_bundle(tmp_path / "empty", MANIFEST, FILES)
    load_bundle(tmp_path / "empty")


def test_loading_needs_neither_torch_nor_onnx(folder):
    code = (
        "import sys; from penumbra.bundle import load_bundle; load_bundle(sys.argv[1]);"
        "print({'torch', 'onnx', 'onnxruntime'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

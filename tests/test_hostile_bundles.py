"""A bundle from anyone: nothing in it blocks, leads outside or passes unchecked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import onnx
import pytest
import tiny_bundles
from test_bundle import FILES, MANIFEST, edit, refusal

from penumbra.bundle import load_bundle, write_bundle
from penumbra.errors import PenumbraError


@pytest.fixture
def folder(tmp_path):
    return write_bundle(tmp_path / "street", MANIFEST, FILES).path


def test_a_file_name_with_a_line_break_is_refused(folder):
    """Python's `$` matches before a final line break, as the schema's pattern does."""
    edit(folder, lambda m: m["files"].update({"model.onnx\n": "0" * 64}))
    assert "lists a file 'model.onnx\\\\n'" in refusal(folder)
    with pytest.raises(PenumbraError, match="lists a file '../outside'"):
        write_bundle(folder, MANIFEST, {**FILES, "../outside": b""})
    assert not (folder.parent / "outside").exists()


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "1.0e+999"])
def test_a_threshold_is_finite(folder, value):
    file = folder / "manifest.yaml"
    file.write_text(file.read_text().replace("frame: 0.02", f"frame: {value}"))
    assert f"{value}, which is not a finite number, in line" in refusal(folder)


def test_nothing_is_written_that_would_be_refused(tmp_path):
    alerts = {**MANIFEST["alerts"], "false_alarm_rate": 0.5, "causes": {}}
    alerts["causes"]["uncertainty"] = {
        **MANIFEST["alerts"]["causes"]["uncertainty"],
        "frame": float("inf"),
    }
    with pytest.raises(PenumbraError, match="not a finite number, .*nothing was written"):
        write_bundle(tmp_path / "street", {**MANIFEST, "alerts": alerts}, FILES)
    assert list(tmp_path.iterdir()) == []
    # One list in two places is written out twice: an alias would be refused.
    grey = [128, 128, 128]
    classes = [{"name": name, "colour": grey} for name in ("road", "sky")]
    write_bundle(tmp_path / "street", {**MANIFEST, "classes": classes}, FILES)
    assert load_bundle(tmp_path / "street").manifest["classes"] == classes


# In a child, which is ended if it blocks: the test would not return from a blocking open.
LOAD = """
import sys
from penumbra.bundle import load_bundle
from penumbra.errors import PenumbraError
try:
    load_bundle(sys.argv[1])
except PenumbraError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["manifest.yaml", *FILES])
@pytest.mark.parametrize("kind", ["a FIFO", "a symbolic link", "a folder", "a device"])
def test_only_regular_files_are_read(folder, name, kind):
    file = folder / name
    file.rename(folder.parent / "moved")
    if kind == "a FIFO":
        os.mkfifo(file)
    elif kind == "a symbolic link":  # the content is right, but it is not in the folder
        file.symlink_to(folder.parent / "moved")
    elif kind == "a folder":
        file.mkdir()
    else:
        try:
            os.mknod(file, 0o020666, os.makedev(1, 5))  # /dev/zero, which never ends
        except PermissionError:
            pytest.skip("only root can make a device")
    command = [sys.executable, "-c", LOAD, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert f"{name} is {kind}: only regular files are read" in done.stdout
    assert done.stdout.count("\n") == 1


def test_the_model_is_read_as_it_was_verified(folder):
    """The runners load these bytes: what replaces the file after the check is refused."""
    bundle = load_bundle(folder)
    assert bundle.read_model() == FILES["model.onnx"]
    (folder / "model.onnx").write_bytes(b"")
    with pytest.raises(PenumbraError, match="is not the file that was exported"):
        bundle.read_model()
    assert bundle.read_file("weights.safetensors") == FILES["weights.safetensors"]
    (folder / "more").write_bytes(b"")
    with pytest.raises(PenumbraError, match="in the manifest no such file"):
        bundle.read_file("more")


def test_external_data_is_refused(tmp_path):
    """The numbers lie in another file, which no checksum covers."""
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    model = onnx.load(bundle.model_file)
    file = tmp_path / "outside.onnx"
    onnx.save(
        model,
        file,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    with pytest.raises(PenumbraError, match=r"has a tensor '\w+' in another file"):
        tiny_bundles.write_model(tmp_path / "again", bundle, file.read_bytes())
    assert not (tmp_path / "again").exists()
    # As a forger would: the graph replaced, its checksum corrected, the numbers beside it.
    (tmp_path / "weights.bin").rename(bundle.path / "weights.bin")
    bundle.model_file.write_bytes(file.read_bytes())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    edit(bundle.path, lambda m: m["files"].update({"model.onnx": digest}))
    assert "in another file, which no checksum covers" in refusal(bundle.path)

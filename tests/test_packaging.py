"""The package as ROS 2 tools see it: one version, valid manifests, files that load."""

from __future__ import annotations

import ast
import re
import runpy
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
import setuptools
import yaml
from catkin_pkg.package import InvalidPackage, parse_package

import penumbra

ROOT = Path(__file__).resolve().parents[1]
MANIFESTS = [ROOT / "package.xml", ROOT / "ros2_ws/src/penumbra_msgs/package.xml"]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.parent.name)
def test_manifest_is_valid(manifest):
    """By the parser that colcon, rosdep and bloom use; it refuses unknown tags and bad values."""
    warnings: list[str] = []
    package = parse_package(str(manifest), warnings=warnings)
    package.validate(warnings=warnings)
    assert warnings == []
    assert package.package_format == 3
    assert package.licenses == ["Apache-2.0"]


@pytest.mark.parametrize(
    "change",
    [
        ("<license", "<licence"),
        ("</license>", "</licence>"),
        ("<version>0", "<version>v0"),
        ("<exec_depend>rclpy</exec_depend>", "<run_depend>rclpy</run_depend>"),
    ],
)
def test_a_broken_manifest_is_refused(tmp_path, change):
    """So that the test above means something."""
    text = MANIFESTS[0].read_text()
    assert change[0] in text
    (tmp_path / "package.xml").write_text(text.replace(*change))
    with pytest.raises(InvalidPackage):
        parse_package(str(tmp_path / "package.xml"))


def test_one_version_everywhere():
    changelogs = [manifest.with_name("CHANGELOG.rst").read_text() for manifest in MANIFESTS]
    newest = [re.search(r"^(\d+\.\d+\.\d+)", text, re.MULTILINE).group(1) for text in changelogs]
    manifests = [parse_package(str(manifest)).version for manifest in MANIFESTS]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    found = {version("penumbra"), cited, *manifests, *newest}
    assert found == {penumbra.__version__}


def test_data_files_of_the_package_are_installed():
    """setup.py names every file that is not Python."""
    text = (ROOT / "setup.py").read_text()
    patterns = re.search(r"package_data=\{NAME: (\[.*?\])\}", text).group(1)
    named = {
        path for pattern in ast.literal_eval(patterns) for path in (ROOT / "penumbra").glob(pattern)
    }
    files = {path for path in (ROOT / "penumbra").rglob("*") if path.is_file()}
    data = {path for path in files if path.suffix not in (".py", ".pyc")}
    assert named == data


def test_models_are_installed_and_checkpoints_are_not(monkeypatch):
    given: dict = {}
    monkeypatch.setattr(setuptools, "setup", lambda **words: given.update(words))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    installed = {file for _, files in given["data_files"] for file in files}
    assert "config/models/segnet-street/weights.safetensors" in installed
    assert (ROOT / "config/checkpoints").is_dir()
    assert not any(file.startswith("config/checkpoints") for file in installed)


def test_console_scripts_lead_somewhere():
    ours = [e for e in entry_points(group="console_scripts") if e.value.startswith("penumbra.")]
    assert {"penumbra", "perception_node", "guard_node"} <= {script.name for script in ours}
    assert all(callable(script.load()) for script in ours)


@pytest.mark.parametrize("path", sorted(ROOT.glob("launch/**/*.py")), ids=lambda p: p.name)
def test_launch_file_compiles(path):
    """`launch` is not on PyPI: here a launch file is compiled, and must define what ros2 calls."""
    code = compile(path.read_text(), str(path), "exec")
    assert "generate_launch_description" in code.co_names


YAML_FILES = [
    *ROOT.glob("*.y*ml"),
    *ROOT.glob(".*.y*ml"),
    *ROOT.glob(".github/**/*.y*ml"),
    *ROOT.glob("config/**/*.y*ml"),
    ROOT / "CITATION.cff",
]


@pytest.mark.parametrize("path", sorted(YAML_FILES), ids=lambda p: p.name)
def test_yaml_loads(path):
    assert yaml.safe_load(path.read_text()) is not None

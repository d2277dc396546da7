"""A folder of the package is a rule about imports, and imports between folders go one way.

A folder that the table below does not name follows the rule of the folder above it.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from package_graph import PackageGraph

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "penumbra"
LINES = 400

# Room: what its modules import without ("" is the files directly in penumbra, the shared ground).
IMPORTS_WITHOUT = {
    "":                 {"torch", "rclpy"},
    "vehicle":          {"torch", "rclpy"},
    "vehicle/node":     {"torch"},
    "propagation":      {"rclpy"},
    "offline":          {"rclpy"},
    "offline/datasets": {"torch", "rclpy"},
    "offline/scenes":   {"torch", "rclpy"},
    "bags":             {"torch", "rclpy"},
    "replay":           {"torch"},
    "verification":     {"rclpy"},
    "lab":              {"rclpy"},
    "cli":              {"torch", "rclpy"},
}  # fmt: skip
# Room: the only other rooms that it uses, even lazily. A room that is not named here may use all.
USES_ONLY = {
    "":            set(),
    "vehicle":     {""},
    "propagation": {""},
}  # fmt: skip
# Room: what no line of it imports, not even lazily, since it is not installed where it runs.
NEVER_IMPORTS = {
    "vehicle": {"torch"},
}

# Imports every module named on the command line in a Python where the first name does not exist.
IMPORT_WITHOUT = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r} (absent in this test)", name=name)

sys.meta_path.insert(0, Absent())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""

PLANTED = {
    "vehicle/planted_direct.py": "import torch\n",
    "vehicle/planted_indirect.py": "from penumbra.propagation import Moments\n",
    "vehicle/planted_lazy.py": "def late():\n    from torch import nn\n",
    # A cycle between rooms, of which one half is lazy and the other for the type checker only.
    "bags/planted.py": "def late():\n    import penumbra.lab.planted\n",
    "lab/planted.py": "from typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    from penumbra.bags.planted import late\n",
    # A cycle within a room, by relative imports, through the `__init__` of a package.
    "bags/planted_room/__init__.py": "from .one import ONE\n",
    "bags/planted_room/one.py": "from . import ONE\n",
    "bags/planted_class.py": "class PenumbraError:\n    pass\n",
}


@pytest.fixture(scope="module")
def graph() -> PackageGraph:
    return PackageGraph(PACKAGE)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory) -> PackageGraph:
    """A copy of the package with one fault of every kind planted in it."""
    root = tmp_path_factory.mktemp("faulty")
    unused = shutil.ignore_patterns("__pycache__")
    package = shutil.copytree(PACKAGE, root / "penumbra", ignore=unused)
    for name, text in PLANTED.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(text)
    return PackageGraph(package)


def rule(room: str, table: dict[str, set[str]]) -> set[str]:
    """A room's entry: its own, or else that of the closest folder above it."""
    above = [room, *(parent.as_posix() for parent in Path(room).parents)]
    return next((table[name] for name in above if name in table), table[""])


def modules_without(graph: PackageGraph, absent: str) -> list[str]:
    """Modules whose room's rule is to import without `absent`."""
    return [name for name in graph.files if absent in rule(graph.room(name), IMPORTS_WITHOUT)]


def import_without(
    absent: str, names: list[str], root: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Import modules of the package in `root`, in a separate process, without `absent`."""
    command = [sys.executable, "-c", IMPORT_WITHOUT, absent, *names]
    return subprocess.run(command, capture_output=True, text=True, cwd=root)


def uses_beyond_rule(graph: PackageGraph) -> list[str]:
    """Imports, lazy ones included, that leave a room for one that it must not use."""
    found = []
    for each in graph.imports:
        top = graph.room(each.importer).partition("/")[0]
        if each.imported in graph.files:
            target = graph.room(each.imported).partition("/")[0]
            allowed = USES_ONLY.get(top)
            bad = allowed is not None and target not in {top, *allowed}
        else:
            bad = each.imported.partition(".")[0] in NEVER_IMPORTS.get(top, ())
        if bad:
            found.append(f"{each.place} imports {each.imported}")
    return found


def repeated_classes(graph: PackageGraph) -> dict[str, list[str]]:
    """Public class names that more than one place defines."""
    places = defaultdict(list)
    for module, tree in graph.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{module}:{node.lineno}")
    return {name: where for name, where in places.items() if len(where) > 1}


@pytest.mark.parametrize("absent", ["torch", "rclpy"])
def test_imports_without(graph, absent):
    names = modules_without(graph, absent)
    assert {"penumbra.cli.main", "penumbra.errors", "penumbra.vehicle.pipeline"} <= set(names)
    done = import_without(absent, names)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "absent, needs_it", [("rclpy", "penumbra.vehicle.node.perception_node"), ("torch", "torch")]
)
def test_absent_packages_are_absent(absent, needs_it):
    """So that the test above can fail."""
    done = import_without(absent, [needs_it])
    assert done.returncode == 1
    assert "absent in this test" in done.stderr


def test_every_room_of_the_tables_exists():
    rooms = {*IMPORTS_WITHOUT, *USES_ONLY, *NEVER_IMPORTS}
    assert [room for room in rooms if not (PACKAGE / room / "__init__.py").exists()] == []


def test_rooms_use_only_what_they_may(graph):
    assert uses_beyond_rule(graph) == []


def test_no_cycles(graph):
    """Neither between rooms nor between the files and folders of any room."""
    assert graph.cycles() == [], "\n".join(graph.cycles())


def test_public_class_names_are_unique(graph):
    assert repeated_classes(graph) == {}


def test_no_file_is_too_long():
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines > LINES} == {}


@pytest.mark.parametrize("name", ["planted_direct", "planted_indirect"])
def test_planted_torch_under_vehicle_is_found(faulty, name):
    module = f"penumbra.vehicle.{name}"
    assert module in modules_without(faulty, "torch")
    done = import_without("torch", [module], root=faulty.package.parent)
    assert done.returncode == 1
    assert str(faulty.files[module]) in done.stderr
    assert "No module named 'torch'" in done.stderr
    assert any(f"vehicle/{name}.py:1" in use for use in uses_beyond_rule(faulty))


def test_planted_lazy_torch_under_vehicle_is_found(faulty):
    """Importing its module would not show it."""
    assert "penumbra/vehicle/planted_lazy.py:2 imports torch" in uses_beyond_rule(faulty)


def test_planted_cycle_between_rooms_is_found(faulty):
    (cycle,) = (cycle for cycle in faulty.cycles() if cycle.startswith("penumbra: "))
    assert "bags -> lab -> bags" in cycle or "lab -> bags -> lab" in cycle
    assert "penumbra/bags/planted.py:2 imports penumbra.lab.planted" in cycle


def test_planted_cycle_within_a_room_is_found(faulty):
    folder = "penumbra/bags/planted_room"
    (cycle,) = (cycle for cycle in faulty.cycles() if cycle.startswith(f"{folder}: "))
    assert f"{folder}/__init__.py:1 imports penumbra.bags.planted_room.one" in cycle
    assert f"{folder}/one.py:1 imports penumbra.bags.planted_room" in cycle


def test_planted_repeated_class_is_found(faulty):
    assert "PenumbraError" in repeated_classes(faulty)


def test_help_starts_nothing_heavy():
    """The reason why `penumbra --help` answers at once."""
    code = (
        "import sys; from penumbra.cli.main import build_parser; build_parser();"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "rclpy", "numpy", "cv2", "onnx", "onnxruntime", "scipy", "matplotlib", "yaml"}
    assert heavy & set(done.stdout.split()) == set()

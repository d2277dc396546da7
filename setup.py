"""Where `colcon build` and `pip install -e .` put things; the facts stand in package.xml."""

import sys
from pathlib import Path
from xml.etree import ElementTree

from setuptools import find_packages, setup

NAME = "penumbra"
MANIFEST = ElementTree.parse(Path(__file__).with_name("package.xml")).getroot()
SHARE = f"share/{NAME}"
# The first line of a script cannot name a Python in a path with spaces; `env -S` reads quotes.
QUOTED_PYTHON = {"build_scripts": {"executable": f'/usr/bin/env -S "{sys.executable}"'}}


def tree(folder: str) -> list[tuple[str, list[str]]]:
    """Every file under `folder`, to be installed under share/penumbra at the same place.

    Checkpoints, from which training goes on, stay in the repository.
    """
    files_of: dict[str, list[str]] = {}
    for path in sorted(Path(folder).rglob("*")):
        kept = not path.name.startswith((".", "__")) and path.suffix != ".pyc"
        if path.is_file() and kept and path.parent.name != "checkpoints":
            files_of.setdefault(f"{SHARE}/{path.parent.as_posix()}", []).append(path.as_posix())
    return list(files_of.items())


setup(
    name=NAME,
    version=MANIFEST.findtext("version"),
    description=MANIFEST.findtext("description"),
    maintainer=MANIFEST.findtext("maintainer"),
    maintainer_email=MANIFEST.find("maintainer").get("email"),
    license=MANIFEST.findtext("license"),
    packages=find_packages(include=[NAME, f"{NAME}.*"]),
    package_data={NAME: ["py.typed", "schemas/*.json", "offline/export/*.txt"]},
    python_requires=">=3.10",
    extras_require={
        "test": ["pytest"],  # by which colcon test knows to call pytest
        "fleet": ["ray>=2.60,<3"],  # penumbra verify --ray
    },
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (SHARE, ["package.xml"]),
        *tree("launch"),
        *tree("config"),
    ],
    entry_points={
        "console_scripts": [
            "penumbra = penumbra.cli.main:main",
            "perception_node = penumbra.vehicle.node.perception_node:main",
            "guard_node = penumbra.vehicle.node.guard_node:main",
        ]
    },
    options=QUOTED_PYTHON if " " in sys.executable else {},
    zip_safe=False,
)

"""The modules of a package and what they import, read from the source without running it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """One import statement: where it is, and the module that it names."""

    importer: str
    imported: str
    place: str  # file:line


class PackageGraph:
    """All imports within a package, including those inside functions and under TYPE_CHECKING."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.name = package.name
        self.files = {self._module(path): path for path in sorted(package.rglob("*.py"))}

    def _module(self, path: Path) -> str:
        parts = path.relative_to(self.package.parent).with_suffix("").parts
        return ".".join(parts).removesuffix(".__init__")

    def room(self, module: str) -> str:
        """The folder of a module below the package, "" for one directly in it."""
        folder = self.files[module].parent.relative_to(self.package).as_posix()
        return "" if folder == "." else folder

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """The syntax tree of every module."""
        return {module: ast.parse(path.read_text()) for module, path in self.files.items()}

    @cached_property
    def imports(self) -> list[Import]:
        """Every import statement, by the module it resolves to."""
        found = []
        for module, path in self.files.items():
            place = path.relative_to(self.package.parent)
            for node in ast.walk(self.trees[module]):
                for name in self._named(node, module):
                    found.append(Import(module, name, f"{place}:{node.lineno}"))
        return found

    def _named(self, node: ast.AST, module: str) -> Iterator[str]:
        """What a statement imports: `from a import b` means a.b if that is a module, else a."""
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                is_package = self.files[module].name == "__init__.py"
                parts = module.split(".")
                parent = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parent, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in self.files else base

    def inside(self) -> Iterator[Import]:
        """The imports of one module of this package by another."""
        for each in self.imports:
            if each.imported in self.files and each.imported != each.importer:
                yield each

    def _path(self, module: str) -> list[str]:
        """The way from the package down to a module's file; `__init__` is a file like others."""
        is_package = self.files[module].name == "__init__.py"
        return [*module.split("."), *(["__init__"] if is_package else [])]

    def cycles(self) -> list[str]:
        """For each folder, a cycle among its direct children (files and folders), if there is one.

        Each is described by the imports that make it.
        """
        reasons: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
        for each in self.inside():
            one, other = self._path(each.importer), self._path(each.imported)
            depth = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
            edge = one[depth], other[depth]
            reason = f"{each.place} imports {each.imported}"
            reasons["/".join(one[:depth])].setdefault(edge, reason)
        return [
            f"{folder}: " + " -> ".join(cycle) + "".join(f"\n  {edges[e]}" for e in pairwise(cycle))
            for folder, edges in sorted(reasons.items())
            if (cycle := first_cycle(edges))
        ]


def first_cycle(edges: dict[tuple[str, str], str]) -> list[str]:
    """A cycle in the graph, first node repeated at its end; empty if there is none."""
    graph: dict[str, set[str]] = defaultdict(set)
    for one, other in edges:
        graph[one].add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]  # its edges point from a node to what comes before it
    return []

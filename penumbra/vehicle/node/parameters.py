"""The node's parameters: what they mean is in the schema, what they are by default in the YAML.

Nothing is said twice: the node declares what config/parameters.schema.json describes with the
default of config/<task>.yaml, and the table in docs/parameters.md is made from the same two.
"""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

from penumbra.bundle import MANIFEST
from penumbra.errors import PenumbraError
from penumbra.files import write_atomically
from penumbra.share import TASKS, bundle_folder, config_folder

SCHEMA = "parameters.schema.json"
MARKERS = ("<!-- parameters -->", "<!-- /parameters -->")
NEVER, UNCONFIGURED, ANY_TIME = "never", "unconfigured", "any time"
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """One parameter, as the schema has it; a name with a point is in a group of the YAML."""

    name: str
    schema: Mapping[str, Any]

    @property
    def changes(self) -> str:
        """When it may change: at any time, unconfigured, never."""
        return str(self.schema["changes"])

    def descriptor(self) -> ParameterDescriptor:
        """What ROS 2 shows of it, and refuses by itself."""
        descriptor = ParameterDescriptor(
            name=self.name,
            description=self.schema["description"],
            read_only=self.changes == NEVER,
            additional_constraints=self._constraints(),
        )
        if "minimum" in self.schema:
            limits = {"from_value": self.schema["minimum"], "to_value": self.schema["maximum"]}
            if self.schema["type"] == "integer":
                descriptor.integer_range = [IntegerRange(**limits, step=1)]
            else:
                descriptor.floating_point_range = [FloatingPointRange(**limits)]
        return descriptor

    def complaint(self, value: Any) -> str | None:
        """What is wrong with `value`, in one line; None if nothing is."""
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match

        if isinstance(value, float) and not math.isfinite(value):  # which JSON does not know
            return f"{self.name} cannot be {value}: give a number"
        error = best_match(Draft202012Validator(self.schema).iter_errors(value))
        return None if error is None else f"{self.name}: {' '.join(error.message.split())}"

    def _constraints(self) -> str:
        may_change = {
            NEVER: "set at the start",
            UNCONFIGURED: "changes while the node is unconfigured",
            ANY_TIME: "changes at any time",
        }[self.changes]
        return "; ".join([may_change, *([self.range()] if self.range() else [])])

    def range(self) -> str:
        """Which values it takes, for people."""
        if "enum" in self.schema:
            return ", ".join(self.schema["enum"])
        if "minimum" in self.schema:
            return f"{self.schema['minimum']:.10g} to {self.schema['maximum']:.10g}"
        return ""


@cache
def parameters() -> Mapping[str, Parameter]:
    """All of them by name, in the order of the schema."""
    schema = json.loads((config_folder() / SCHEMA).read_text(encoding="utf-8"))
    group = schema["properties"]["/**"]["properties"]["ros__parameters"]
    return {name: Parameter(name, entry) for name, entry in _flat(group, "properties", "changes")}


@cache
def defaults(task: str) -> Values:
    """The values of config/<task>.yaml by name."""
    text = (config_folder() / f"{task}.yaml").read_text(encoding="utf-8")
    return dict(_flat(yaml.safe_load(text)["/**"]["ros__parameters"]))


def task_of(bundle: str) -> str:
    """The task of a bundle, found without checking the bundle; `segmentation` if it says none."""
    try:
        text = (bundle_folder(bundle) / MANIFEST).read_text(encoding="utf-8")
        task = yaml.safe_load(text)["task"]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return TASKS[0]
    return task if task in TASKS else TASKS[0]


def declare(node: Node) -> str:
    """Declare all parameters with the defaults of the task of the node's bundle; returns the task.

    The bundle is known from the command line or the parameter file, else it is segmentation's.
    """
    given = node._parameter_overrides  # rclpy shows only those that are declared
    bundle = given["bundle"].value if "bundle" in given else ""
    task = task_of(bundle) if isinstance(bundle, str) and bundle else TASKS[0]
    for name, default in defaults(task).items():
        parameter = parameters()[name]
        try:
            declared = node.declare_parameter(name, default, parameter.descriptor())
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            what = " ".join(str(error).split()).removesuffix(f": {name}")
            raise PenumbraError(f"parameter {name}: {what}") from error
        if complaint := parameter.complaint(declared.value):
            raise PenumbraError(f"parameter {complaint}")
    for name in given:
        if not node.has_parameter(name) and not name.startswith("qos_overrides."):
            near = difflib.get_close_matches(name, parameters(), n=1)
            hint = f"; is it {near[0]}?" if near else ""
            node.get_logger().warning(f"there is no parameter {name}: it is ignored{hint}")
    return task


def values(node: Node) -> dict[str, Any]:
    """What the node's parameters are now."""
    return {name: node.get_parameter(name).value for name in parameters()}


def refusal(changed: Iterable[RosParameter], state: str) -> str | None:
    """Why these parameters may not be set in this state of the lifecycle; None if they may."""
    for parameter in changed:
        known = parameters().get(parameter.name)
        if known is None:
            continue  # use_sim_time and the like
        if known.changes == UNCONFIGURED and state != UNCONFIGURED:
            return (
                f"{known.name} is read when the node is configured, and the node is {state}: "
                "deactivate it and clean it up first"
            )
        if complaint := known.complaint(parameter.value):
            return complaint
    return None


def table() -> str:
    """The table of docs/parameters.md."""
    rows = ["| parameter | default | changes | meaning |", "| --- | --- | --- | --- |"]
    first, second = (defaults(task) for task in TASKS)
    for name, parameter in parameters().items():
        shown = [first[name]] if first[name] == second[name] else [first[name], second[name]]
        default = "; ".join(f"`{json.dumps(value)}`" for value in shown)
        limits = f" ({parameter.range()})" if parameter.range() else ""
        meaning = parameter.schema["description"].replace("|", "\\|")
        rows.append(f"| `{name}` | {default} | {parameter.changes} | {meaning}{limits} |")
    return "\n".join(rows)


def put_table(page: Path) -> None:
    """Renew the table in a page of Markdown, between its two markers."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not end:
        raise PenumbraError(f"{page} has no place for the table: add {' and '.join(MARKERS)}")
    write_atomically(page, f"{before}{begin}\n{table()}\n{end}{after}")


def _flat(
    tree: Mapping[str, Any], inside: str | None = None, leaf: str | None = None
) -> list[tuple[str, Any]]:
    """(name, value) pairs of a nested mapping, names joined by points as ROS 2 does.

    `inside` is the key under which a group keeps its members, `leaf` the key that only a leaf has.
    """
    pairs = []
    for name, value in (tree[inside] if inside else tree).items():
        if isinstance(value, dict) and (leaf is None or leaf not in value):
            pairs += [(f"{name}.{rest}", found) for rest, found in _flat(value, inside, leaf)]
        else:
            pairs.append((name, value))
    return pairs


if __name__ == "__main__":
    put_table(Path(sys.argv[1]))

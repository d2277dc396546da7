"""The node's parameters: described in the schema, with defaults in the YAML files.

The node declares the parameters of config/parameters.schema.json with the defaults of
config/<task>.yaml; the table in docs/parameters.md is generated from the same files.
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
from penumbra.safe_yaml import read_yaml
from penumbra.share import TASKS, bundle_folder, config_folder

SCHEMA = "parameters.schema.json"
MARKERS = ("<!-- parameters -->", "<!-- /parameters -->")
NEVER, UNCONFIGURED, ANY_TIME = "never", "unconfigured", "any time"
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """One parameter of the schema; a dot in its name separates a group of the YAML."""

    name: str
    schema: Mapping[str, Any]

    @property
    def changes(self) -> str:
        """When it may be set: `any time`, `unconfigured` or `never`."""
        return str(self.schema["changes"])

    def descriptor(self) -> ParameterDescriptor:
        """The ROS 2 descriptor, with description and range."""
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

    def violation(self, value: Any) -> str | None:
        """Why `value` is invalid, in one line; None if it is valid."""
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match

        if isinstance(value, float) and not math.isfinite(value):  # not covered by JSON
            return f"{self.name} cannot be {value}: give a finite number"
        error = best_match(Draft202012Validator(self.schema).iter_errors(value))
        return None if error is None else f"{self.name}: {' '.join(error.message.split())}"

    def _constraints(self) -> str:
        may_change = {
            NEVER: "fixed after the start",
            UNCONFIGURED: "can be set while the node is unconfigured",
            ANY_TIME: "can be set at any time",
        }[self.changes]
        return "; ".join([may_change, *([self.range()] if self.range() else [])])

    def range(self) -> str:
        """The valid values, human-readable."""
        if "enum" in self.schema:
            return ", ".join(self.schema["enum"])
        if "minimum" in self.schema:
            return f"{self.schema['minimum']:.10g} to {self.schema['maximum']:.10g}"
        return ""


@cache
def parameters() -> Mapping[str, Parameter]:
    """All parameters by name, in the order of the schema."""
    schema = json.loads((config_folder() / SCHEMA).read_text(encoding="utf-8"))
    group = schema["properties"]["/**"]["properties"]["ros__parameters"]
    return {name: Parameter(name, entry) for name, entry in _flat(group, "properties", "changes")}


@cache
def defaults(task: str) -> Values:
    """The values of config/<task>.yaml by name."""
    text = (config_folder() / f"{task}.yaml").read_text(encoding="utf-8")
    return dict(_flat(yaml.safe_load(text)["/**"]["ros__parameters"]))


def task_of(bundle: str) -> str:
    """The task of a bundle, read without validation; `segmentation` if it states none.

    It only chooses the defaults: on configure the bundle is verified, and must have this task.
    """
    try:
        task = read_yaml(bundle_folder(bundle) / MANIFEST, "")["task"]
    except (OSError, ValueError, TypeError, KeyError, PenumbraError):
        return TASKS[0]
    return task if task in TASKS else TASKS[0]


def declare(node: Node) -> str:
    """Declare all parameters with the defaults of the bundle's task; returns the task.

    The bundle comes from the command line or the parameter file; the default is segmentation.
    """
    given = node._parameter_overrides  # the public interface lists declared parameters only
    bundle = given["bundle"].value if "bundle" in given else ""
    task = task_of(bundle) if isinstance(bundle, str) and bundle else TASKS[0]
    for name, default in defaults(task).items():
        parameter = parameters()[name]
        try:
            declared = node.declare_parameter(name, default, parameter.descriptor())
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            what = " ".join(str(error).split()).removesuffix(f": {name}")
            raise PenumbraError(f"parameter {name}: {what}") from error
        if violation := parameter.violation(declared.value):
            raise PenumbraError(f"parameter {violation}")
    for name in given:
        if not node.has_parameter(name) and not name.startswith("qos_overrides."):
            near = difflib.get_close_matches(name, parameters(), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            node.get_logger().warning(f"unknown parameter {name} is ignored{hint}")
    return task


def values(node: Node) -> dict[str, Any]:
    """The current values of the node's parameters."""
    return {name: node.get_parameter(name).value for name in parameters()}


def refusal(changed: Iterable[RosParameter], state: str) -> str | None:
    """Why these parameters cannot be set in this lifecycle state; None if they can."""
    for parameter in changed:
        known = parameters().get(parameter.name)
        if known is None:
            continue  # parameters of rclpy, such as use_sim_time
        if known.changes == UNCONFIGURED and state != UNCONFIGURED:
            return (
                f"{known.name} can only be set while the node is unconfigured, and it is {state}: "
                "deactivate it and clean it up first"
            )
        if violation := known.violation(parameter.value):
            return violation
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


def update_table(page: Path) -> None:
    """Update the table in a Markdown page, between its two markers."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not end:
        raise PenumbraError(f"{page} has no markers for the table: add {' and '.join(MARKERS)}")
    write_atomically(page, f"{before}{begin}\n{table()}\n{end}{after}")


def _flat(
    tree: Mapping[str, Any], inside: str | None = None, leaf: str | None = None
) -> list[tuple[str, Any]]:
    """(name, value) pairs of a nested mapping, with names joined by dots as in ROS 2.

    `inside` is the key of a group's members, `leaf` a key that only leaves have.
    """
    pairs = []
    for name, value in (tree[inside] if inside else tree).items():
        if isinstance(value, dict) and (leaf is None or leaf not in value):
            pairs += [(f"{name}.{rest}", found) for rest, found in _flat(value, inside, leaf)]
        else:
            pairs.append((name, value))
    return pairs


if __name__ == "__main__":
    update_table(Path(sys.argv[1]))

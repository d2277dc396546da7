"""The guard's parameters: described in config/guard.schema.json, defaults in config/guard.yaml.

None can be changed while the guard runs, and an unknown one is an error: a misspelt limit that is
ignored would be a limit that does not exist.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically
from penumbra.share import config_folder
from penumbra.text import printable
from penumbra.vehicle.guard_decision import GuardSettings
from penumbra.vehicle.node.parameters import MARKERS, Parameter, Values
from penumbra.vehicle.node.qos import MISSED_HEARTBEATS

GUARD_SCHEMA, GUARD_DEFAULTS = "guard.schema.json", "guard.yaml"
# Declared by rclpy itself.
_OF_RCLPY = ("use_sim_time", "start_type_description_service", "qos_overrides.")


@cache
def guard_parameters() -> Mapping[str, Parameter]:
    """All parameters by name, in the order of the schema."""
    schema = json.loads((config_folder() / GUARD_SCHEMA).read_text(encoding="utf-8"))
    group = schema["properties"]["/**"]["properties"]["ros__parameters"]["properties"]
    return {name: Parameter(name, entry) for name, entry in group.items()}


@cache
def guard_defaults() -> Values:
    """The values of config/guard.yaml by name."""
    text = (config_folder() / GUARD_DEFAULTS).read_text(encoding="utf-8")
    return dict(yaml.safe_load(text)["/**"]["ros__parameters"])


def declare_guard(node: Node) -> Values:
    """Declare all parameters, and return their values; PenumbraError if one is invalid."""
    for name in node._parameter_overrides:  # the public interface lists declared ones only
        if name not in guard_parameters() and not name.startswith(_OF_RCLPY):
            near = difflib.get_close_matches(name, guard_parameters(), n=1)
            hint = f"did you mean {near[0]}?" if near else "see guard_node --help"
            raise PenumbraError(f"unknown parameter {printable(name)}: {hint}")
    values: dict[str, Any] = {}
    for name, default in guard_defaults().items():
        parameter = guard_parameters()[name]
        try:
            values[name] = node.declare_parameter(name, default, parameter.descriptor()).value
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            what = " ".join(str(error).split()).removesuffix(f": {name}")
            raise PenumbraError(f"parameter {name}: {printable(what)}") from error
        if violation := parameter.violation(values[name]):
            raise PenumbraError(f"parameter {violation}")
    limits = speed_limits(values)
    if sorted(limits, reverse=True) != list(limits):
        raise PenumbraError(
            "the speed limits must not rise from OK over WARN to not safe, and are "
            + ", ".join(f"{limit:g}" for limit in limits)
            + ": lower speed_limit_warn or speed_limit_unsafe"
        )
    return values


def speed_limits(values: Values) -> tuple[float, float, float]:
    """The speed limits of OK, WARN and not safe."""
    return (
        values["speed_limit_ok"],
        values["speed_limit_warn"],
        values["speed_limit_unsafe"],
    )


def guard_settings(values: Values) -> GuardSettings:
    """The settings of the decision."""
    return GuardSettings(
        silence=MISSED_HEARTBEATS * values["heartbeat"],
        stale_after=values["stale_after"],
        max_age=values["max_age"],
        max_lead=values["max_lead"],
        fresh_oks=values["fresh_oks"],
        max_rate=values["max_rate"],
        warn_stops=values["warn"] == "stop",
    )


def guard_help() -> str:
    """The parameters with their defaults, for `--help`."""
    lines = []
    for name, parameter in guard_parameters().items():
        limits = f" ({parameter.range()})" if parameter.range() else ""
        lines.append(f"  {name}:={guard_defaults()[name]}")
        lines.append(f"      {parameter.schema['description']}{limits}")
    return "\n".join(lines)


def guard_table() -> str:
    """The table of docs/fail-safe.md."""
    rows = ["| parameter | default | meaning |", "| --- | --- | --- |"]
    for name, parameter in guard_parameters().items():
        limits = f" ({parameter.range()})" if parameter.range() else ""
        default = json.dumps(guard_defaults()[name])
        rows.append(f"| `{name}` | `{default}` | {parameter.schema['description']}{limits} |")
    return "\n".join(rows)


def update_guard_table(page: Path) -> None:
    """Update the table in a Markdown page, between its two markers."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not end:
        raise PenumbraError(f"{page} has no markers for the table: add {' and '.join(MARKERS)}")
    write_atomically(page, f"{before}{begin}\n{guard_table()}\n{end}{after}")


if __name__ == "__main__":
    update_guard_table(Path(sys.argv[1]))

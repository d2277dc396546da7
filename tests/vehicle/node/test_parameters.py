"""Schema, YAML, node and documentation agree on every parameter."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import rclpy
import yaml
from rclpy.parameter import Parameter

from penumbra.errors import PenumbraError
from penumbra.share import TASKS, config_folder
from penumbra.vehicle.node import parameters

ROOT = Path(__file__).resolve().parents[3]
TYPES = {
    "string": Parameter.Type.STRING,
    "integer": Parameter.Type.INTEGER,
    "number": Parameter.Type.DOUBLE,
    "boolean": Parameter.Type.BOOL,
}


@pytest.fixture
def make_node(ros_domain):
    """A node with parameter overrides, as from the command line."""
    context = rclpy.Context()
    rclpy.init(context=context)
    nodes = []

    def make(**overrides):
        given = [Parameter(name.replace("__", "."), value=v) for name, v in overrides.items()]
        nodes.append(rclpy.create_node("penumbra", context=context, parameter_overrides=given))
        return nodes[-1]

    yield make
    for node in nodes:
        node.destroy_node()
    rclpy.shutdown(context=context)


@pytest.mark.parametrize("task", TASKS)
def test_yaml_matches_the_schema(task):
    schema = json.loads((config_folder() / parameters.SCHEMA).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    text = (config_folder() / f"{task}.yaml").read_text()
    jsonschema.validate(yaml.safe_load(text), schema)
    assert list(parameters.defaults(task)) == list(parameters.parameters())


def test_an_invalid_yaml_is_rejected():
    """The test above can fail."""
    schema = json.loads((config_folder() / parameters.SCHEMA).read_text())
    text = (config_folder() / "depth.yaml").read_text()
    for change in (("max_age: 1.0", "max_aeg: 1.0"), ("threads: 0", "threads: -1")):
        assert change[0] in text
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(text.replace(*change)), schema)


def test_the_node_declares_the_parameters_of_schema_and_yaml(make_node):
    node = make_node()
    assert parameters.declare(node) == "segmentation"
    for name, parameter in parameters.parameters().items():
        declared, about = node.get_parameter(name), node.describe_parameter(name)
        assert declared.value == parameters.defaults("segmentation")[name]
        assert declared.type_ == TYPES[parameter.schema["type"]]
        assert about.description == parameter.schema["description"]
        assert about.read_only == (parameter.changes == "never")
        ranges = [*about.integer_range, *about.floating_point_range]
        limits = [(r.from_value, r.to_value) for r in ranges]
        given = [(parameter.schema[k] for k in ("minimum", "maximum") if k in parameter.schema)]
        assert limits == [expected for expected in map(tuple, given) if expected]
    assert set(parameters.parameters()) == set(node._parameters) - {
        "use_sim_time",
        "start_type_description_service",
    }


def test_the_table_in_the_documentation_is_current():
    text = (ROOT / "docs" / "parameters.md").read_text()
    (table,) = re.findall(r"<!-- parameters -->\n(.*?)\n<!-- /parameters -->", text, re.DOTALL)
    command = "python -m penumbra.vehicle.node.parameters docs/parameters.md"
    assert table == parameters.table(), f"run `{command}`"


def test_an_invalid_value_at_the_start_is_a_one_line_error(make_node):
    with pytest.raises(PenumbraError, match="max_age.*out of range"):
        parameters.declare(make_node(max_age=-1.0))
    with pytest.raises(PenumbraError, match="runner: 'gpu' is not one of"):
        parameters.declare(make_node(runner="gpu"))
    with pytest.raises(PenumbraError, match="threads.*INTEGER"):
        parameters.declare(make_node(threads="many"))


def test_defaults_follow_the_task_of_the_bundle(make_node, tmp_path):
    import tiny_bundles

    bundle = tiny_bundles.depth(tmp_path / "depth")
    node = make_node(bundle=str(bundle.path), ood__stale_after=2.5)
    assert parameters.declare(node) == "depth"
    values = parameters.values(node)
    assert values == {
        **parameters.defaults("depth"),
        "bundle": str(bundle.path),
        "ood.stale_after": 2.5,
    }


@pytest.mark.parametrize(
    "name, value, state, reason",
    [
        ("rate_limit", 5.0, "active", None),
        ("ood.frame_threshold", float("nan"), "active", "cannot be nan"),
        ("cameras", "front,left", "unconfigured", None),
        ("cameras", "front left", "unconfigured", "does not match"),
        ("cameras", "front", "active", "it is active: deactivate it and clean it up first"),
        ("image_size", "480x360", "unconfigured", None),
        ("image_size", "480", "unconfigured", "does not match"),
        ("use_sim_time", True, "active", None),
    ],
)
def test_changes_are_rejected_with_a_reason(name, value, state, reason):
    refused = parameters.refusal([Parameter(name, value=value)], state)
    assert (refused is None) == (reason is None)
    assert reason is None or reason in refused

"""Schema, YAML and documentation agree on every parameter of the guard."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import yaml

from penumbra.share import config_folder
from penumbra.vehicle.guard_decision import GuardSettings
from penumbra.vehicle.node import guard_parameters as guard
from penumbra.vehicle.node import parameters

ROOT = Path(__file__).resolve().parents[3]


def test_yaml_matches_the_schema():
    schema = json.loads((config_folder() / guard.GUARD_SCHEMA).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    text = (config_folder() / guard.GUARD_DEFAULTS).read_text()
    jsonschema.validate(yaml.safe_load(text), schema)
    assert list(guard.guard_defaults()) == list(guard.guard_parameters())
    assert {parameter.changes for parameter in guard.guard_parameters().values()} == {"never"}


def test_the_table_in_the_documentation_is_current():
    text = (ROOT / "docs" / "fail-safe.md").read_text()
    (table,) = re.findall(r"<!-- parameters -->\n(.*?)\n<!-- /parameters -->", text, re.DOTALL)
    command = "python -m penumbra.vehicle.node.guard_parameters docs/fail-safe.md"
    assert table == guard.guard_table(), f"run `{command}`"


def test_defaults_agree_with_those_of_the_perception_node():
    """Or the guard would request more than the node offers, or trust less than it vouches for."""
    ours, theirs = guard.guard_defaults(), parameters.defaults("segmentation")
    assert ours["heartbeat"] == theirs["ood.heartbeat"]
    assert ours["stale_after"] == theirs["ood.stale_after"]
    assert ours["max_lead"] == theirs["max_lead"]
    assert ours["max_age"] >= theirs["max_age"]


def test_the_settings_of_the_decision_have_the_same_defaults():
    assert guard.guard_settings(guard.guard_defaults()) == GuardSettings()

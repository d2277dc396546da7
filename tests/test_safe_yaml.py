"""YAML from outside is read as PyYAML reads it, within limits, or refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from penumbra import safe_yaml
from penumbra.errors import PenumbraError
from penumbra.safe_yaml import dump_yaml, parse_yaml, read_yaml

SHIPPED = Path(__file__).parents[1] / "config" / "models"


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def parser(request, monkeypatch):
    """Both parsers of PyYAML: builds without libyaml have the one in Python only."""
    monkeypatch.setattr(safe_yaml, "_Parser", getattr(yaml, request.param))


def refusal(data: bytes) -> str:
    with pytest.raises(PenumbraError) as caught:
        parse_yaml(data, "site.yaml", "write it again")
    message = str(caught.value)
    assert message.startswith("site.yaml is ") and message.endswith("write it again")
    assert "\n" not in message and len(message) < 400
    return message


@pytest.mark.parametrize(
    "file", sorted(SHIPPED.glob("*/manifest.yaml")), ids=lambda f: f.parent.name
)
def test_a_shipped_manifest_is_read_as_pyyaml_reads_it(parser, file):
    value = parse_yaml(file.read_bytes(), file, "")
    assert repr(value) == repr(yaml.safe_load(file.read_text()))  # types and order as well
    assert parse_yaml(dump_yaml(value).encode(), file, "") == value


@pytest.mark.parametrize(
    "text",
    ["", "# nothing", "a: 1", "[1, -2, 0x10, 0o7, 1_000]", "[1.5, 1.0e+3, -.5]", "[yes, no, ~, '']",
     "x: |\n  two\n  lines\n", '"tab\\t"', "é: 'ü'", "- {a: [], b: {}}", "'1'", "a: 1:30"],
)  # fmt: skip
def test_values_are_those_of_pyyaml(parser, text):
    assert repr(parse_yaml(text.encode(), "x", "")) == repr(yaml.safe_load(text))


BOMB = b"a: &a [x, x]\n" + b"".join(
    b"%c: &%c [*%c, *%c]\n" % (n, n, n - 1, n - 1) for n in range(ord("b"), ord("z"))
)


@pytest.mark.parametrize(
    "data, reason",
    [
        (BOMB, "an alias or anchor in line 1"),
        (b"a: 1\nb: *a", "alias"),
        (b"[" * 100_000, "more than 64 levels"),
        (b"{a: " * 5_000, "more than 64 levels"),
        (b"- " * 100_000, "more than 64 levels"),
        (b"a: " + b"1" * 5_000, "a number of more than 64 characters in line 1"),
        (b"a: " + b"1:" * 5_000 + b"1", "a number of more than 64 characters"),
        (b"a: " + b"9" * 30, "an integer of more than 63 bits"),
        (b"a: .inf", "not a finite number"),
        (b"a: .NaN", "not a finite number"),
        (b"a: 1.0e+999", "not a finite number"),
        (b"a: 1\na: 2", "the key 'a' twice in the map in line 1"),
        (b"1: 2", "the key 1, which is not text"),
        (b"? [a]\n: b", "which is not text"),
        (b"a: 2001-99-99", "a timestamp in line 1"),
        (b"<<: {a: 1}", "a merge"),
        (b"a: !!binary aGk=", "the tag"),
        (b"!!python/object/apply:os.getcwd []", "the tag"),
        (b"a: 1\n---\nb: 2", "a second document in line 2"),
        (b"[" + b"1," * 30_000 + b"]", "more than 20000 values"),
        (b"a: '" + b"x" * 70_000 + b"'", "a text of more than 65536 characters"),
        (b"a: " + b"x" * (1 << 20), "more than 1048576 bytes"),
        (b'a: "\\e[2J"', "a control character"),
        (b'a: "\\0"', "a control character"),
        (b'a: "\\ud800"', "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"a: b: c", "is not YAML"),
        (b"{: [", "is not YAML"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_what_is_refused(parser, data, reason):
    assert reason in refusal(data)


def test_only_regular_files_of_a_bounded_size(tmp_path):
    file = tmp_path / "site.yaml"
    with pytest.raises(FileNotFoundError):
        read_yaml(file, "")
    with file.open("wb") as stream:
        stream.truncate(1 << 40)  # sparse: reading it whole would take a terabyte of memory
    with pytest.raises(PenumbraError, match="more than 1048576 bytes"):
        read_yaml(file, "")
    file.unlink()
    file.symlink_to(tmp_path / "other")
    with pytest.raises(PenumbraError, match="is a symbolic link"):
        read_yaml(file, "")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(PenumbraError, match="is a FIFO"):
        read_yaml(file, "")

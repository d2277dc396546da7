"""The command line as a user meets it: help for every verb, one line for a mistake."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys

import pytest

import penumbra
from penumbra import cli
from penumbra.cli.main import build_parser, main

VERBS = sorted(
    m.name.replace("_", "-") for m in pkgutil.iter_modules(cli.__path__) if m.name != "main"
)


def test_help_lists_every_verb_with_its_summary(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert [verb for verb in VERBS if not re.search(rf"^    {verb}\s+\w", text, re.MULTILINE)] == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example_that_parses(verb, capsys):
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    text = capsys.readouterr().out
    example = re.search(r"example:\n  penumbra (.+)", text)
    assert end.value.code == 0
    assert example and example[1].split()[0] == verb
    build_parser().parse_args(example[1].split())


@pytest.mark.parametrize("words", ["", "no-such-verb", "demo --frames many", "demo --frames 0"])
def test_a_mistake_is_one_line_and_exit_code_2(words):
    command = [sys.executable, "-m", "penumbra.cli.main", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("penumbra")


def test_a_defect_keeps_its_traceback(monkeypatch):
    """Only a PenumbraError is the user's; hiding any other would hide our own mistakes."""

    def raise_it(_):
        raise ZeroDivisionError

    monkeypatch.setattr("penumbra.cli.demo.run", raise_it)
    with pytest.raises(ZeroDivisionError):
        main(["demo"])


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"penumbra {penumbra.__version__}\n"


def test_a_reader_that_goes_away_is_no_mistake():
    command = '"$0" -m penumbra.cli.main --help | true; echo ${PIPESTATUS[0]}'
    done = subprocess.run(["bash", "-c", command, sys.executable], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")

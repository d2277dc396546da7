"""README and documentation are true: commands and Python run, files and options exist."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penumbra.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *(path for path in ROOT.glob("docs/**/*.md") if "_build" not in path.parts),
    *ROOT.glob("config/models/*/README.md"),
    ROOT / "config/checkpoints/README.md",
]
LONGEST_README = 150
# What a command that cannot run here says in its comment.
NEEDS_A_VEHICLE = "on a vehicle"
# Commands that .ci/run itself runs, before the tests or by running them.
RUN_BY_CI = {"scripts/demo", "scripts/test"}
# Options in the text that are not those of a verb.
OTHER_OPTIONS = {"--long", "--ros-args", "--model"}  # the last is fixed for a later release

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[tuple[str, str]]:
    """Every command of a page's bash blocks, with its comment."""
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    found = [re.fullmatch(r"(.*?)(?:\s+#\s*(.*))?", line.strip()).groups("") for line in lines]
    return [(command, comment) for command, comment in found if command and command[0] != "#"]


def verbs() -> dict[str, argparse.ArgumentParser]:
    (action,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def options(parser: argparse.ArgumentParser) -> set[str]:
    """All of a verb, and of the verbs below it."""
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {name for below in action.choices.values() for name in options(below)}
    return found


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


@pytest.mark.parametrize("command, comment", commands(ROOT / "README.md"))
def test_commands_of_the_readme_run(command, comment, ros_domain, tmp_path):
    if comment.startswith(NEEDS_A_VEHICLE):
        return
    words = shlex.split(command)
    if words[0] in RUN_BY_CI:
        assert re.search(rf"^{re.escape(command)}\b", (ROOT / ".ci/run").read_text(), re.MULTILINE)
        return
    assert words[0].startswith(".venv/bin/"), (
        f"{command}: neither run by CI nor '{NEEDS_A_VEHICLE}'"
    )
    words[0] = words[0].replace(".venv", sys.prefix, 1)
    if words[0].endswith("/perception_node"):
        assert_node_starts(words, "waiting for images on /camera/image_raw")
    else:
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def assert_node_starts(words: list[str], line: str) -> None:
    """It logs `line`, and ends well when asked to."""
    environment = {**os.environ, "RCUTILS_LOGGING_BUFFERED_STREAM": "0"}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as node:
        log = []
        for said in node.stderr:
            log.append(said)
            if line in said:
                node.send_signal(signal.SIGINT)
    assert line in "".join(log)
    assert node.returncode == 0, "".join(log)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda path: path.name
)
def test_python_of_a_page_runs(page, tmp_path, monkeypatch):
    """The blocks of a page belong together, as a reader would type them one after the other."""
    monkeypatch.chdir(ROOT)
    script = tmp_path / f"{page.stem}.py"
    script.write_text("\n".join(blocks(page, "python")))
    exec(compile(script.read_text(), str(script), "exec"), {"__name__": page.stem})


@each_page
def test_penumbra_commands_of_a_page_parse(page):
    """Verbs and options exist, and required ones are given."""
    parser = build_parser()
    for command, _ in commands(page):
        words = command.removeprefix(".venv/bin/")
        if words.startswith("penumbra "):
            try:
                parser.parse_args(shlex.split(words)[1:])
            except SystemExit as error:
                assert error.code == 0, command


@each_page
def test_verbs_and_options_in_the_text_of_a_page_exist(page):
    known = verbs()
    for code in re.findall(r"`penumbra ([a-z][^`]*)`", page.read_text()):
        verb, *words = code.split()
        assert verb in known, code
        named = {word for word in words if word.startswith("--")}
        assert named <= options(known[verb]), code
    alone = {code.split()[0] for code in re.findall(r"`(--[a-z][^`]*)`", page.read_text())}
    assert alone - OTHER_OPTIONS <= {name for verb in known.values() for name in options(verb)}


@each_page
def test_links_and_paths_of_a_page_exist(page):
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not link.startswith(("http", "mailto:")):
            assert (page.parent / link).exists(), link
    named = re.findall(
        r"`((?:penumbra|tests|config|docs|scripts|launch|ros2_ws|\.ci)/[\w./-]+)`", text
    )
    assert [path for path in named if not (ROOT / path).exists() and "_build" not in path] == []
    scripts = set(re.findall(r"(?<![\w/.])((?:scripts|\.ci)/[\w-]+)", text))
    assert [script for script in scripts if not (ROOT / script).exists()] == []

"""A bounded, seeded run of each fuzz target; scripts/fuzz runs them for longer."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import mutation
import pytest
from fuzzing.__main__ import TARGETS
from mutation import corpus, mutated, run, target

TESTS = Path(__file__).parent
# As many as take a few seconds.
COUNTS = {
    "manifest": 4000,
    "graph": 4000,
    "image": 6000,
    "bag_mcap": 1000,
    "bag_metadata": 300,
    "bag_db3": 700,
}
guided = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="no wheel of atheris for this Python"
)


def fuzz(*words: str) -> subprocess.CompletedProcess:
    """Fuzz in a process of its own, as scripts/fuzz does."""
    command = [sys.executable, "-m", "fuzzing", *words]
    return subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_and_the_kept_inputs_pass(name):
    for data in corpus(name):
        target(name).run_one(data)


@pytest.mark.parametrize("name", TARGETS)
def test_random_mutation_finds_no_defect(name):
    run(name, COUNTS.get(name, 1500))


@guided
@pytest.mark.parametrize("name", TARGETS)
def test_mutation_guided_by_coverage_finds_no_defect(name):
    done = fuzz(name, "--runs", str(COUNTS.get(name, 1500)), "--by", "coverage", "--hang", "120")
    assert done.returncode == 0, done.stdout + done.stderr


@guided
def test_coverage_leads_to_a_defect_that_chance_does_not_find():
    run("planted", 20_000)
    done = fuzz("planted", "--runs", "400000", "--by", "coverage")
    assert done.returncode == 1
    assert "KeyError: 'planted'" in done.stdout
    (kept,) = [line.split()[-1] for line in done.stdout.splitlines() if "is kept in" in line]
    assert Path(kept).read_bytes().startswith(b"\x93q\x07X")
    Path(kept).unlink()


def test_a_defect_ends_a_random_run_and_tells_its_input(monkeypatch, capsys):
    monkeypatch.setattr(target("planted"), "run_one", lambda data: {}[data])
    with pytest.raises(KeyError):
        run("planted", 10)
    assert "planted: input 0 of seed 0" in capsys.readouterr().out


@pytest.mark.parametrize("endless", ["list(iter(int, 1))", "time.sleep(300)"])
def test_an_endless_input_ends_the_run(endless):
    script = f"""
import time, mutation
mutation.HANG = 0.2
mutation.target("planted").run_one = lambda data: {endless}
mutation.run("planted", 10)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=TESTS, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and "in run\n" in done.stderr


def test_the_corpus_is_small():
    assert sum(file.stat().st_size for file in mutation.CORPUS.rglob("*")) < 200_000


def test_the_mutations_repeat_and_differ():
    first, again = (list(mutated([b"name: street"], 200)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 150

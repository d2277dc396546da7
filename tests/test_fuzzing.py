"""A bounded, seeded run of each fuzz target; tests/mutation.py runs them for longer."""

from __future__ import annotations

import pytest
from fuzzing import graph, manifest
from mutation import mutated, run


@pytest.mark.parametrize("target", [manifest, graph], ids=["manifest", "graph"])
def test_the_seeds_pass(target):
    for data in target.seeds():
        target.run_one(data)


@pytest.mark.parametrize("name", ["manifest", "graph"])
def test_random_mutation_finds_no_defect(name):
    run(name, 1500)


def test_the_mutations_repeat_and_differ():
    first, again = (list(mutated([b"name: street"], 200)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 150

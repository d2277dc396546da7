"""The speed-up by a second worker, with fake workers.

The real ones are tested in tests/verification/test_fleet.py.
"""

from __future__ import annotations

import json
import os

import pytest
import tiny_bundles

from penumbra.cli.main import main
from penumbra.lab.benchmarks import fleet
from penumbra.verification.fleet import BagResult


@pytest.fixture
def caches(monkeypatch):
    """Workers that start one second apart, and take ten seconds for a bag."""
    seen: list[str] = []

    def on_ray(threads, workers):
        assert threads == 1

        def execute(jobs):
            seen.append(os.environ["PENUMBRA_CACHE"])
            for number, job in enumerate(jobs):
                assert job.settings.threads == 1
                start = 100 + 10 * (number // workers) + number % workers
                yield job, BagResult({}, started=start, ended=start + 10)

        return execute

    monkeypatch.setattr(fleet, "on_ray", on_ray)
    return seen


def test_time_is_from_the_first_start_to_the_last_end(caches, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PENUMBRA_CACHE", "before")
    bundle = tiny_bundles.segmentation(tmp_path / "bundle").path
    words = f"fleet --bundle {bundle} --size 48x36 --repetitions 14 --json {tmp_path / 'f.json'}"
    assert main(["benchmark", *words.split()]) == 0
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["fleet"]["seconds"] == {"1": [40.0] * 2, "2": [21.0] * 2}
    assert found["measured"] == {"fleet": pytest.approx(40 / 21)}
    assert "| ≥ 1.7 | 1.905 | yes |" in capsys.readouterr().out
    assert len(set(caches)) == 4  # no run reuses the cache of another
    assert os.environ["PENUMBRA_CACHE"] == "before"


def test_a_failed_bag_fails_the_measurement(tmp_path, monkeypatch, capsys):
    def failing(**_):
        return lambda jobs: ((job, BagResult(error="no node")) for job in jobs)

    monkeypatch.setattr(fleet, "on_ray", failing)
    bundle = tiny_bundles.segmentation(tmp_path / "bundle").path
    assert main(["benchmark", "fleet", "--bundle", str(bundle), "--size", "48x36"]) == 2
    assert "drive-0 with 1 workers: no node" in capsys.readouterr().err

"""A process that saves again and again, until it is killed; and what must hold after that.

    python tests/killed.py record FOLDER 0 [EVENT]

prints `saved N` after each thing saved. With EVENT it kills itself (SIGKILL) before that access to
the file system, counted from the first save, so that every moment between two accesses can be met.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import tiny_bundles
from small_drives import read, small_drive

from penumbra.bags import write_drive
from penumbra.bags.writer import leftovers
from penumbra.bundle import load_bundle, rewrite_bundle

FIGURES = Path(__file__).parent / "verification" / "old_figures.json"
ACCESSES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "ctypes.")


@dataclass(frozen=True)
class Scenario:
    """`save(folder, number)`, and `check(folder, said)`: the last number that was said, or -1."""

    save: Callable[[Path, int], None]
    check: Callable[[Path, int], None]


def _record(folder: Path, number: int) -> None:
    write_drive(small_drive(2), folder / f"bag{number}")


def _check_record(folder: Path, said: int) -> None:
    """What was said to be saved is whole, and what has its final name as well."""
    there = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert {f"bag{number}" for number in range(said + 1)} <= there
    for name in there:
        assert len(read(folder / name)) == 4
    told: list[str] = []
    with mock.patch("penumbra.bags.writer.warn_on_stderr", told.append):
        _record(folder, said + 2)
    left = list(leftovers(folder))
    assert len(told) == min(len(left), 1)
    assert all(str(path) in told[0] and "\n" not in told[0] for path in left[:1])


def _export(folder: Path, number: int) -> None:
    if number == 0:
        tiny_bundles.segmentation(folder / "street", name="street-0")
    else:
        rewrite_bundle(load_bundle(folder / "street"), name=f"street-{number}")


def _check_export(folder: Path, said: int) -> None:
    if said >= 0 or (folder / "street").exists():
        number = int(load_bundle(folder / "street").name.removeprefix("street-"))
        assert number in (said, said + 1)
    _export(folder, 0)
    assert load_bundle(folder / "street").name == "street-0"


def _gains(folder: Path, number: int) -> None:
    import torch

    from penumbra.offline.gains_file import GainFacts, save_gains

    save_gains(folder, {"layer": torch.full((1000,), float(number))}, GainFacts(steps=number))


def _check_gains(folder: Path, said: int) -> None:
    from penumbra.offline.gains_file import load_gains

    found = load_gains(folder)
    if found is None:
        assert said == -1
    else:
        assert found.facts.steps in (said, said + 1)
        assert (found.tensors["layer"] == found.facts.steps).all()
    _gains(folder, said + 2)


def _engine(folder: Path, number: int) -> bytes:
    """An engine whose compiler is quick; everything else is as it is."""
    from penumbra.vehicle.runners import compiler, engine

    street = folder / "street"
    bundle = load_bundle(street) if street.exists() else tiny_bundles.segmentation(street)
    key = engine.Key(bundle.sha256, "float32", 36, 48, "tensorrt-rtx", "1", "8.9", None)
    made = engine.Engine(bundle, key, folder / "cache")
    data = b"engine %d " % number * 1000
    with mock.patch.object(compiler, "build", lambda *_: data):
        if number >= 0:
            made.build(force=True)
        elif not made.built:  # as the next start does
            assert made.build()
    return made.read()


def _check_engine(folder: Path, said: int) -> None:
    """An engine that passes is one that was built, whole; else the next start builds it again."""
    data = _engine(folder, -1)
    number = int(data.split()[1])
    assert data == b"engine %d " % number * 1000
    assert number in (-1, said, said + 1)
    assert not list((folder / "cache").glob(".*.engine.*")) or number != -1


def _report(folder: Path, number: int) -> None:
    from penumbra.verification.facts import VerificationFacts
    from penumbra.verification.fleet import BagResult, store_result

    facts = VerificationFacts.from_dict(json.loads(FIGURES.read_text()))
    page = f"<html>{number}{'x' * 100_000}</html>"
    store_result(folder, _job(number), BagResult(facts, page))


def _job(number: int):
    from penumbra.verification.fleet import Job, VerificationSettings

    return Job(Path("bag"), VerificationSettings("street", 8), "0" * 64, str(number), "bag-1")


def _check_report(folder: Path, said: int) -> None:
    from penumbra.verification.fleet import load_result

    found = [n for n in (said, said + 1) if load_result(folder, _job(n)) is not None]
    assert len(found) == 1 or said == -1
    if found:
        page = (folder / "bag-1" / "index.html").read_text()
        assert page.startswith("<html>") and page.endswith("</html>")
    _report(folder, said + 2)
    assert load_result(folder, _job(said + 2)) is not None


SCENARIOS = {
    "record": Scenario(_record, _check_record),
    "export": Scenario(_export, _check_export),
    "gains": Scenario(_gains, _check_gains),
    "engine": Scenario(_engine, _check_engine),
    "report": Scenario(_report, _check_report),
}


def _kill_at(event: int) -> None:
    """Kill this process before its access number `event` to the file system."""
    seen = itertools.count()

    def hook(name: str, _: object) -> None:
        if name.startswith(ACCESSES) and next(seen) == event:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main(name: str, folder: Path, first: int, event: int | None) -> None:
    """Save for ever."""
    scenario = SCENARIOS[name]
    scenario.save(folder, first)  # what is imported on the first use is not of interest
    print(f"saved {first}", flush=True)
    if event is not None:
        _kill_at(event)
    for number in itertools.count(first + 1):
        scenario.save(folder, number)
        print(f"saved {number}", flush=True)
        if event is not None and number > first + 1:
            return


if __name__ == "__main__":
    which, where, begin, *events = sys.argv[1:]
    main(which, Path(where), int(begin), int(events[0]) if events else None)

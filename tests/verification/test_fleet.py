"""Many bags through the real node, here and on a real Ray cluster that loses a worker."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from penumbra.bags import find_bags, write_drive
from penumbra.cli.main import main
from penumbra.errors import PenumbraError
from penumbra.offline.scenes import Camera
from penumbra.offline.scenes.street_drive import street_drive
from penumbra.verification import fleet, on_ray
from penumbra.verification.fleet import VerificationSettings, verify_all

SAMPLES = 8
NAMES = ["cut", "monday/drive", "sunday/drive"]


@pytest.fixture(scope="module")
def place(tmp_path_factory, exported):
    """Two bags of one name, one that is damaged, and a bundle by whose path we know its nodes."""
    folder = tmp_path_factory.mktemp("fleet")
    for seed, name in enumerate(NAMES[1:]):
        drive = street_drive(seed, 0.4, 5.0, camera=Camera(width=96, height=64))
        write_drive(drive, folder / "drives" / name)
    (folder / "drives" / "cut").mkdir()
    (folder / "drives" / "cut" / "cut.mcap").write_bytes(b"nothing")
    shutil.copytree(exported("class").path, folder / "bundle")
    return folder


@pytest.fixture(autouse=True)
def _one_place_for_references(place, monkeypatch):
    """They are not what is tested here: what one run has sampled may serve another."""
    monkeypatch.setenv("PENUMBRA_CACHE", str(place / "cache"))


@pytest.fixture(scope="module")
def settings(place) -> VerificationSettings:
    return VerificationSettings(str(place / "bundle"), SAMPLES, threads=1)


@pytest.fixture(scope="module")
def done(place):
    """What `penumbra verify` says and leaves of all three, one after another."""
    words = ["verify", place / "drives", "--bundle", place / "bundle", "--samples", SAMPLES]
    words += ["--threads", 1, "--report", place / "report", "--json", place / "rows.json"]
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("PENUMBRA_CACHE", str(place / "cache"))
        code = main(list(map(str, words)))
    rows = json.loads((place / "rows.json").read_text())
    return SimpleNamespace(
        code=code, printed=printed.getvalue(), report=place / "report", rows=rows
    )


def computed_again(monkeypatch, bags, settings, report) -> list[str]:
    """The bags that a run would compute; none of them is."""
    asked = []

    def note(bag, *_, **__):
        asked.append(bag.relative_to(bag.parents[1]).as_posix())
        raise PenumbraError("not now")

    monkeypatch.setattr(fleet, "verify", note)
    verify_all(bags, settings, report)
    return asked


@pytest.mark.slow
def test_one_table_one_page_and_the_error_of_one_bag(done):
    assert done.code == 2
    cut, monday, sunday = done.rows
    assert cut["verdict"] == "failed"
    assert "cut cannot be read" in cut["error"]
    table = done.printed.splitlines()
    assert [line.split()[0] for line in table[1:4]] == NAMES
    assert cut["error"] in table[1]
    assert "3 bags: 1 failed" in done.printed

    page = (done.report / "index.html").read_text()
    for name, row in zip(NAMES[1:], (monday, sunday), strict=True):
        assert f'<a href="{row["place"]}/index.html">{name}</a>' in page
        figures = json.loads((done.report / row["place"] / "figures.json").read_text())
        assert row["figures"]["spearman"] == figures["figures"]["spearman"]
        assert f">{row['figures']['spearman']:.4g}</td>" in page
        assert "<h1>" in (done.report / row["place"] / "index.html").read_text()
    assert monday["sha256"] != sunday["sha256"]
    assert "cut cannot be read" in page
    assert "cut cannot be read" in (done.report / cut["place"] / "error.txt").read_text()


@pytest.mark.slow
def test_what_is_done_is_not_computed_again(done, place, settings, tmp_path, monkeypatch):
    report, bags = tmp_path / "report", find_bags(place / "drives")
    shutil.copytree(done.report, report)
    assert computed_again(monkeypatch, bags, settings, report) == ["drives/cut"]
    more = VerificationSettings(settings.bundle, SAMPLES + 2, threads=2)
    assert computed_again(monkeypatch, bags, more, report) == ["drives/cut", *NAMES[1:]]
    # A number of threads is no other question.
    assert computed_again(
        monkeypatch, bags, VerificationSettings(settings.bundle, SAMPLES, threads=2), report
    ) == ["drives/cut"]
    # A result that is half there, and a bag that has changed since, are not done.
    (report / done.rows[1]["place"] / "figures.json").write_text("{")
    (file,) = (place / "drives" / "sunday" / "drive").glob("*.mcap")
    before = file.stat()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    asked = computed_again(monkeypatch, bags, settings, report)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert asked == ["drives/cut", *NAMES[1:]]


@contextlib.contextmanager
def one_worker_killed(bundle: Path) -> Iterator[list[int]]:
    """kill -9 for the first process that has a node of this bundle at work; its number is noted."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not killed and not over.wait(0.02):
            for parent in parents_of_nodes(bundle):
                assert parent != os.getpid()
                os.kill(parent, signal.SIGKILL)
                killed.append(parent)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield killed
    finally:
        over.set()
        watcher.join()


def parents_of_nodes(bundle: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            words = (process / "cmdline").read_bytes().decode().split("\0")
            if f"bundle:={bundle}" in words:
                found.append(int(words[words.index("penumbra.replay.child") + 1]))
    return found


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(done, place, settings, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: scripts/setup dev")
    bags = find_bags(place / "drives")
    with one_worker_killed(place / "bundle") as killed:
        rows = verify_all(bags, settings, tmp_path / "report", on_ray.on_ray(workers=2))
    assert len(killed) == 1
    assert parents_of_nodes(place / "bundle") == []  # its node did not outlive it
    # Two at once on one machine, one of them twice: each has the answers to its own frames, to the
    # bit. Only the time is another.
    found = [row.to_dict() for row in rows]
    for row in [*found, *done.rows]:
        row["figures"].pop("infer_ms", None)
    assert found == done.rows


@pytest.mark.slow
def test_a_bag_that_kills_every_worker_is_given_up(place, settings, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed: scripts/setup dev")

    def deadly(job):
        import os

        from penumbra.verification.fleet import BagResult

        if "monday" in str(job.bag):
            os._exit(1)
        return BagResult(error="seen")

    monkeypatch.setattr(on_ray, "run", deadly)
    monkeypatch.setattr(on_ray, "RETRIES", 1)  # each takes a worker that imports torch
    bags = find_bags(place / "drives")
    rows = verify_all(bags, settings, tmp_path / "report", on_ray.on_ray(workers=2))
    assert [row.error for row in rows] == [
        "seen",
        "its worker died 2 times, killed or out of memory",
        "seen",
    ]


def test_extra_and_environment_ask_for_the_same_ray():
    root = Path(__file__).resolve().parents[2]
    asked = (root / "scripts" / "environment" / "requirements" / "dev.txt").read_text()
    (line,) = (line for line in asked.splitlines() if line.startswith("ray"))
    assert f'"fleet": ["{line}"]' in (root / "setup.py").read_text()


def test_without_ray_it_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PenumbraError, match="Ray is not installed: run scripts/setup"):
        on_ray.on_ray()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["drives"], "--report is missing"),
        (["drives/cut", "drives/sunday", "--report", "r", "--video", "film.avi"], "for one bag"),
        (["drives", "drives/none", "--report", "r"], "no bag drives/none"),
        (["drives", "--report", "r", "--ray", "drives/cut"], "give auto or HOST:PORT"),
        (["drives", "--report", "r", "--ray", "127.0.0.1:1"], "refused; start one with `ray start"),
        (["drives/cut", "--threads", "-1"], "--threads is -1"),
    ],
)
def test_mistakes_are_reported_first(words, message, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    assert main(["verify", *words, "--bundle", "bundle"]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1
    assert not (place / "r").exists()

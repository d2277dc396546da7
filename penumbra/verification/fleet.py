"""Verify many bags: one job each, run in this process or on a Ray cluster, and one table.

    settings = VerificationSettings("segnet-street", samples=300)
    rows = verify_all(find_bags(Path("drives")), settings, Path("report"))

Each result is written to its own folder as soon as it is available, and reused while bag, bundle
and settings stay the same. A job that fails becomes a row with its error; the others continue.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import penumbra
from penumbra.bags.storages import storage_files
from penumbra.bundle import Bundle, load_bundle
from penumbra.errors import PenumbraError
from penumbra.files import write_atomically
from penumbra.replay.progress import Progress, no_progress
from penumbra.share import bundle_folder
from penumbra.verification.bag_verification import verify
from penumbra.verification.facts import VerificationFacts
from penumbra.verification.overview import BagRow, overview
from penumbra.verification.report import FIGURES, PAGE

FORMAT = 1  # of stored results: increase it when the computation changes
ERROR = "error.txt"


@dataclass(frozen=True)
class VerificationSettings:
    """The arguments of `verify` for every bag."""

    bundle: str
    samples: int
    seed: int = 0
    frames: int | None = None
    runner: str = "auto"
    topic: str | None = None
    threads: int = 0


@dataclass(frozen=True)
class Job:
    """One bag. `mark` is a digest of all that its result depends on, `place` its folder."""

    bag: Path
    settings: VerificationSettings
    model: str  # SHA-256 of the bundle's graph
    mark: str
    place: str


@dataclass(frozen=True)
class BagResult:
    """Facts and page of a bag, or an error in one line, with details."""

    facts: VerificationFacts | None = None
    page: str = ""
    warnings: tuple[str, ...] = ()
    error: str = ""
    details: str = ""
    started: float = 0.0  # by the clock of its machine, in seconds
    ended: float = 0.0


Executor = Callable[[Sequence[Job]], Iterator[tuple[Job, BagResult]]]


def verify_all(
    bags: Iterable[Path],
    settings: VerificationSettings,
    report: Path,
    execute: Executor | None = None,
    progress: Progress = no_progress,
) -> list[BagRow]:
    """Verify all bags and return a row for each, in order; write `report`/index.html about all.

    `execute` gets the jobs without a stored result and yields each with its result, in any order
    (default: one by one in this process).
    """
    execute = execute or sequential()
    bundle = load_bundle(bundle_folder(settings.bundle))
    jobs = jobs_of(bags, settings, bundle)
    rows = {job: row for job in jobs if (row := load_result(report, job)) is not None}
    left = [job for job in jobs if job not in rows]
    for job, result in progress(execute(left), len(left)):
        rows[job] = store_result(report, job, result)
    found = [rows[job] for job in jobs]
    facts = {**asdict(settings), "bags": [row.to_dict() for row in found]}
    write_atomically(report / FIGURES, json.dumps(facts, indent=1))
    write_atomically(report / PAGE, overview(bundle.name, settings.samples, found))
    return found


def jobs_of(bags: Iterable[Path], settings: VerificationSettings, bundle: Bundle) -> list[Job]:
    """One job per bag, without duplicates, with absolute paths for workers in other folders."""
    everywhere = replace(settings, bundle=str(bundle.path.resolve()))
    facts = {k: v for k, v in asdict(everywhere).items() if k not in ("bundle", "threads")}
    common = FORMAT, penumbra.__version__, facts, json.dumps(bundle.manifest)
    jobs = []
    for bag in dict.fromkeys(Path(bag).resolve() for bag in bags):
        files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns)
                 for file in storage_files(bag)]  # fmt: skip
        name = hashlib.sha256(str(bag).encode()).hexdigest()[:8]
        mark = hashlib.sha256(repr((*common, files)).encode()).hexdigest()
        jobs.append(Job(bag, everywhere, bundle.sha256, mark, f"{bag.name}-{name}"))
    return jobs


def run(job: Job, progress: Progress = no_progress) -> BagResult:
    """Verify one bag in a private ROS domain; any error becomes part of the result."""
    started = time.time()
    result = _verified(job, progress)
    return replace(result, started=started, ended=time.time())


def _verified(job: Job, progress: Progress) -> BagResult:
    warnings: list[str] = []
    try:
        with tempfile.TemporaryDirectory(prefix="penumbra-page-") as folder:
            report = Path(folder)
            settings = job.settings
            facts = verify(
                job.bag,
                settings.bundle,
                settings.samples,
                seed=settings.seed,
                frames=settings.frames,
                runner=settings.runner,
                threads=settings.threads,
                topic=settings.topic,
                report=report,
                warn=warnings.append,
                progress=progress,
            )
            if facts.bundle.sha256 != job.model:
                raise PenumbraError(
                    f"{settings.bundle} holds another model on {platform.node()}: copy it"
                )
            return BagResult(facts, (report / PAGE).read_text(encoding="utf-8"), tuple(warnings))
    except Exception as error:  # also our own defects: the other bags must continue
        known = isinstance(error, PenumbraError)
        line = str(error) if known else f"{type(error).__name__}: {error}"
        trace = "" if known else traceback.format_exc()
        return BagResult(error=" ".join(line.split()), details=f"on {platform.node()}\n{trace}")


def sequential(progress: Progress = no_progress) -> Executor:
    """Run the jobs one by one in this process; `progress` shows the frames of a bag."""

    def execute(jobs: Sequence[Job]) -> Iterator[tuple[Job, BagResult]]:
        for job in jobs:
            yield job, run(job, progress)

    return execute


def load_result(report: Path, job: Job) -> BagRow | None:
    """The row of a stored result; None if the job has to be run."""
    folder = report / job.place
    try:
        stored = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
        if stored["mark"] != job.mark or not (folder / PAGE).is_file():
            return None
        facts = VerificationFacts.from_dict(stored)
        return BagRow.of(job.bag, job.place, facts, stored["warnings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # absent or damaged
        return None


def store_result(report: Path, job: Job, result: BagResult) -> BagRow:
    """Write a result and return its row; the figures come last and mark it as complete."""
    folder = report / job.place
    if result.facts is None:
        write_atomically(folder / ERROR, f"{result.error}\n{result.details}")
        return BagRow.failed(job.bag, job.place, result.error)
    write_atomically(folder / PAGE, result.page)
    stored = result.facts.to_dict() | {"mark": job.mark, "warnings": list(result.warnings)}
    write_atomically(folder / FIGURES, json.dumps(stored, indent=1))
    (folder / ERROR).unlink(missing_ok=True)
    return BagRow.of(job.bag, job.place, result.facts, result.warnings)

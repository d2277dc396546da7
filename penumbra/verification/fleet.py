"""Many bags, one table: each is a job of its own, done here or on the machines of a Ray.

    rows = verify_all(find_bags(Path("drives")), Settings("segnet-street", 300), Path("report"))

A job's result goes to a folder of its own as soon as it is there, and is not computed again while
bag, bundle and settings are the same. A job that fails is a row with its error: the others go on.
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
from typing import Any

import penumbra
from penumbra.bags.reader import storage_files
from penumbra.bundle import Bundle, load_bundle
from penumbra.errors import PenumbraError
from penumbra.files import write_atomically
from penumbra.replay.process import Progress
from penumbra.share import bundle_folder
from penumbra.verification import verify
from penumbra.verification.overview import overview, row_of
from penumbra.verification.report import FIGURES, PAGE

FORMAT = 1  # of the kept results: a change of what is computed needs the next number
ERROR = "error.txt"


@dataclass(frozen=True)
class VerificationSettings:
    """What every bag is verified with: see `verify`."""

    bundle: str
    samples: int
    seed: int = 0
    frames: int | None = None
    runner: str = "auto"
    topic: str | None = None
    threads: int = 0


@dataclass(frozen=True)
class Job:
    """One bag. `mark` names all that its result depends on, `place` the folder of the result."""

    bag: Path
    settings: VerificationSettings
    model: str  # SHA-256 of the bundle's graph
    mark: str
    place: str


@dataclass(frozen=True)
class BagResult:
    """Figures and page of a bag, or an error in one line with what else is known about it."""

    facts: dict[str, Any] | None = None
    page: str = ""
    warnings: tuple[str, ...] = ()
    error: str = ""
    details: str = ""
    started: float = 0.0  # by the clock of its machine, in seconds
    ended: float = 0.0


Executor = Callable[[Sequence[Job]], Iterator[tuple[Job, BagResult]]]


def quiet(work: Iterable[Any], total: int | None) -> Iterable[Any]:
    """No progress is shown."""
    return work


def verify_all(
    bags: Iterable[Path],
    settings: VerificationSettings,
    report: Path,
    execute: Executor | None = None,
    progress: Progress = quiet,
) -> list[dict[str, Any]]:
    """A row for each bag, in their order; the page about all of them is `report`/index.html.

    `execute` takes the jobs that are not done yet and yields each with its result, in any order;
    by default one after another in this process.
    """
    execute = execute or one_after_another()
    bundle = load_bundle(bundle_folder(settings.bundle))
    jobs = jobs_of(bags, settings, bundle)
    rows = {job: kept(report, job) for job in jobs}
    left = [job for job, row in rows.items() if row is None]
    for job, result in progress(execute(left), len(left)):
        rows[job] = keep(report, job, result)
    found = list(rows.values())
    write_atomically(report / FIGURES, json.dumps({**asdict(settings), "bags": found}, indent=1))
    write_atomically(report / PAGE, overview(bundle.name, settings.samples, found))
    return found


def jobs_of(bags: Iterable[Path], settings: VerificationSettings, bundle: Bundle) -> list[Job]:
    """With paths that are the same in whatever folder a worker runs; no bag twice."""
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


def run(job: Job, progress: Progress = quiet) -> BagResult:
    """Verify one bag, in a ROS domain of its own; whatever goes wrong is part of the result."""
    started = time.time()
    result = _verified(job, progress)
    return replace(result, started=started, ended=time.time())


def _verified(job: Job, progress: Progress) -> BagResult:
    warnings: list[str] = []
    try:
        with tempfile.TemporaryDirectory(prefix="penumbra-page-") as folder:
            report = Path(folder)
            settings = asdict(job.settings)
            bundle, samples = settings.pop("bundle"), settings.pop("samples")
            facts = verify(
                job.bag,
                bundle,
                samples,
                **settings,
                report=report,
                warn=warnings.append,
                progress=progress,
            )
            if facts["bundle"]["sha256"] != job.model:
                raise PenumbraError(f"{bundle} holds another model on {platform.node()}: copy it")
            return BagResult(facts, (report / PAGE).read_text(encoding="utf-8"), tuple(warnings))
    except Exception as error:  # also a defect of ours: it must not take the other bags with it
        known = isinstance(error, PenumbraError)
        line = str(error) if known else f"{type(error).__name__}: {error}"
        trace = "" if known else traceback.format_exc()
        return BagResult(error=" ".join(line.split()), details=f"on {platform.node()}\n{trace}")


def one_after_another(progress: Progress = quiet) -> Executor:
    """In this process; `progress` is of the frames of a bag."""

    def execute(jobs: Sequence[Job]) -> Iterator[tuple[Job, BagResult]]:
        for job in jobs:
            yield job, run(job, progress)

    return execute


def kept(report: Path, job: Job) -> dict[str, Any] | None:
    """The row of a job that was done before; None if it has to be done."""
    folder = report / job.place
    try:
        facts = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
        if facts["mark"] != job.mark or not (folder / PAGE).is_file():
            return None
        return row_of(job.bag, job.place, facts)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(report: Path, job: Job, result: BagResult) -> dict[str, Any]:
    """Write a result and return its row; the figures come last and say that all is there."""
    folder = report / job.place
    if result.facts is None:
        write_atomically(folder / ERROR, f"{result.error}\n{result.details}")
        return row_of(job.bag, job.place, error=result.error)
    write_atomically(folder / PAGE, result.page)
    facts = result.facts | {"mark": job.mark, "warnings": result.warnings}
    write_atomically(folder / FIGURES, json.dumps(facts, indent=1))
    (folder / ERROR).unlink(missing_ok=True)
    return row_of(job.bag, job.place, facts)

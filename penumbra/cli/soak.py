"""Run the real node at a camera's rate for a long time, and check that it stays stable.

A rendered street (or a bag) is sent in a loop to the node in its own process, which is measured
from outside. Checked are memory, open handles and threads (median of the last tenth of the time
against that of the second tenth: at most 5 MiB, 0 and 0 more), the time from sending an image to
receiving its last output (median of the last tenth over that of the first: at most 1.05), and that
every image is answered. Exit code 1 if a check fails. Ctrl-C ends the test early, with a verdict.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penumbra.lab.soak.assessment import SoakFinding
    from penumbra.replay.load_record import LoadRecord

EXAMPLE = "penumbra soak --minutes 60 --json soak.json --plot soak.png"
NOT_HELD = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The duration, the model, the images and where to write the result."""
    parser.add_argument("--minutes", type=float, required=True, metavar="N", help="duration")
    parser.add_argument("--bundle", default="segnet-street", metavar="B", help="folder, or a "
                        "shipped model (default: segnet-street)")  # fmt: skip
    parser.add_argument("--rate-hz", type=float, metavar="R", help="images a second (default: 10, "
                        "or fewer if an answer takes longer than two thirds of that)")  # fmt: skip
    parser.add_argument("--bag", type=Path, help="images to send (default: a rendered street)")
    parser.add_argument("--topic", help="of the images in the bag (default: the only ones)")
    parser.add_argument("--runner", default="auto", help="of the node (default: auto)")
    parser.add_argument("--threads", type=int, default=0, help="of a CPU runner (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot them (.png)")


def run(arguments: argparse.Namespace) -> int:
    """0 if all checks pass."""
    from tqdm import tqdm

    from penumbra.files import cache_folder
    from penumbra.lab.soak.assessment import assess
    from penumbra.lab.soak.soak_run import LOG, SoakPlan, soak

    plan = SoakPlan(
        arguments.minutes,
        arguments.bundle,
        arguments.rate_hz,
        arguments.bag,
        arguments.topic,
        arguments.runner,
        arguments.threads,
    )
    stop = threading.Event()
    duration = plan.minutes * 60
    bar = tqdm(total=duration, unit="s", leave=False, delay=1e-6,
               bar_format="{l_bar}{bar}| {n:.0f}/{total:.0f} s{postfix}")  # fmt: skip

    def on_start(record: LoadRecord) -> None:
        for number in _SIGNALS:
            handlers[number] = signal.signal(number, lambda *_: stop.set())
        bar.write(
            f"{record.bundle} on {record.runner}: {record.answer_ms:.1f} ms for one image and its "
            f"answer, sent at {record.rate_hz:.2f} Hz for {plan.minutes:g} minutes"
        )

    def on_status(seconds: float, text: str) -> None:
        bar.set_postfix_str(text, refresh=False)
        bar.update(min(seconds, duration) - bar.n)

    handlers: dict[signal.Signals, Any] = {}
    try:
        record = soak(
            plan,
            stop,
            on_start,
            on_status,
            lambda work, total: tqdm(work, total=total, unit="frame", leave=False),
        )
    finally:
        bar.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    findings = assess(record)
    _print(record, findings, cache_folder() / LOG)
    if arguments.json:
        _write_json(arguments.json, record, findings)
    if arguments.plot:
        _draw(arguments.plot, record)
    return 0 if all(finding.passed for finding in findings) else NOT_HELD


def _print(record: LoadRecord, findings: list[SoakFinding], log: Path) -> None:
    how = "interrupted after" if record.interrupted else "measured for"
    print(f"{how} {record.seconds:.0f} s, {len(record.sent)} images sent; the node's log: {log}")
    for finding in findings:
        print(f"{'holds ' if finding.passed else 'FAILED'}  {finding.what:28} {finding.text}")


def _write_json(path: Path, record: LoadRecord, findings: list[SoakFinding]) -> None:
    from penumbra.files import write_atomically
    from penumbra.lab.timing import machine

    facts = {
        "passed": all(finding.passed for finding in findings),
        "findings": [asdict(finding) for finding in findings],
        "machine": asdict(machine()),
        "record": asdict(record),
    }
    write_atomically(path, json.dumps(_without_nan(facts), indent=1) + "\n")


def _without_nan(value: Any) -> Any:
    """Replace NaN, which JSON lacks, by null."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and value != value else value


def _draw(path: Path, record: LoadRecord) -> None:
    from penumbra.files import write_atomically
    from penumbra.lab.soak.plot import draw

    write_atomically(path, draw(record))

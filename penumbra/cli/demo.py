"""Send a drive through the real node and show where its output should not be trusted.

Without an argument: a rendered street that an object of no trained class enters. Or your own bag,
folder of images or video. The node runs in its own process and communicates over DDS.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penumbra.lab.demo import DemoSummary

EXAMPLE = "penumbra demo --out penumbra-demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The drive, the model, and the folder of the results."""
    parser.add_argument("source", type=Path, nargs="?", help="BAG, DIR of images or VIDEO")
    parser.add_argument("--bundle", default="segnet-street", help="default: segnet-street")
    parser.add_argument("--runner", default="auto", help="default: auto")
    parser.add_argument("--frames", type=int, help="at most this many")
    parser.add_argument("--out", type=Path, default=Path("penumbra-demo"), help="(penumbra-demo)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """1 if the rendered object was not reported, or too early."""
    from tqdm import tqdm

    from penumbra.lab.demo import demonstrate

    finding = demonstrate(
        arguments.source,
        arguments.bundle,
        arguments.out,
        arguments.runner,
        arguments.frames,
        lambda work, total: tqdm(work, total=total, unit="frame", leave=False),
    )
    facts = _facts(finding)
    if arguments.json:
        print(json.dumps(facts))
    else:
        _print(facts, arguments.out)
    return 0 if finding.failure is None else 1


def _facts(finding: DemoSummary) -> dict[str, Any]:
    import numpy as np

    latency = [frame.latency_ms for frame in finding.frames]
    return {
        "model": finding.model,
        "runner": finding.runner,
        "frames": len(finding.frames),
        "latency_p50_ms": float(np.nanmedian(latency)),
        "latency_p99_ms": float(np.nanquantile(latency, 0.99)),
        "visible_from_s": finding.visible_from,
        "alerts": [{"at_s": frame.time, "reason": frame.reason} for frame in finding.alerts],
        "failure": finding.failure,
    }


def _print(facts: dict[str, Any], out: Path) -> None:
    rows = [
        ("model", facts["model"]),
        ("runner", facts["runner"]),
        ("frames", f"{facts['frames']}, each answered"),
        ("latency", f"p50 {facts['latency_p50_ms']:.0f} ms, p99 {facts['latency_p99_ms']:.0f} ms"),
    ]
    if facts["visible_from_s"] is not None:
        rows.append(("object", f"in view from {facts['visible_from_s']:.1f} s on"))
    rows += [("ALERT", f"{alert['at_s']:.1f} s: {alert['reason']}") for alert in facts["alerts"]]
    if not facts["alerts"]:
        rows.append(("alerts", "none"))
    rows += [("panel", out / "panel.png"), ("recording", out / "answers")]
    for name, value in rows:
        print(f"{name:10} {value}")
    if facts["failure"]:
        print(f"not as it should be: {facts['failure']}")

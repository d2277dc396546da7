"""The page of one verified bag: a single HTML file with all images embedded."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from penumbra.files import write_atomically
from penumbra.offline.metrics.coverage import NOTE
from penumbra.verification import curves
from penumbra.verification.explanations import how_to_read
from penumbra.verification.facts import (
    OURS,
    SAMPLED,
    BundleFacts,
    Figures,
    FrameFacts,
    SpeedFacts,
    VerificationFacts,
)
from penumbra.verification.figures import COLUMNS, NOISE, TITLES
from penumbra.verification.html_page import data_url, document, number, table
from penumbra.verification.tolerance import Check

PAGE, FIGURES = "index.html", "figures.json"
SHOWN = 12  # panels: the worst frames, and others spread over the drive
WORST = 4

Panels = Callable[[Collection[int]], Iterable[np.ndarray]]


def write_report(
    folder: Path, facts: VerificationFacts, density: np.ndarray, panels: Panels
) -> None:
    """Write `index.html`, which needs no other file, and `figures.json`."""
    write_atomically(folder / FIGURES, json.dumps(facts.to_dict(), indent=1))
    write_atomically(folder / PAGE, page(facts, density, panels))


def page(facts: VerificationFacts, density: np.ndarray, panels: Panels) -> str:
    """The page as HTML."""
    bundle = facts.bundle
    places = shown_frames(facts.per_frame)
    parts = [
        f"<h1>{escape(bundle.name)} on {escape(facts.bag.name)}</h1>",
        f"<p>{_verdict(facts)} <span class=small>{escape(facts.created)}</span></p>",
        f"<p>{_summary(facts)}</p>",
        "<h2>Against the tolerances of the bundle</h2>", _checks(facts.checks),
        "<h2>Against Monte Carlo</h2>", _figures(facts.figures),
        "<h2>Against ground truth</h2>", _truth(facts.truth),
        _coverage(facts.coverage),
        "<h2>Speed</h2>", _speed(facts.speed, facts.versions["runner"]),
        "<h2>Curves</h2>", _curves(facts, density),
        f"<h2>Frames</h2><p class=small>{_which(places, facts.per_frame)}</p>",
        *(_figure(place, panel, facts.per_frame[place])
          for place, panel in zip(places, panels(places), strict=True)),
        "<h2>Every frame</h2>", _every_frame(facts.per_frame),
        "<h2>How to read it</h2>", how_to_read(facts),
        "<h2>Provenance of the model</h2>", _rows(_provenance(bundle)),
        "<h2>Versions</h2>", _rows(facts.versions),
    ]  # fmt: skip
    return document(f"{bundle.name}: verification", parts)


def shown_frames(per_frame: Sequence[FrameFacts]) -> list[int]:
    """The frames with the largest errors, and others spread evenly, in the order of time."""
    count = len(per_frame)
    if count <= SHOWN:
        return list(range(count))
    worst = sorted(range(count), key=lambda i: -per_frame[i].figures["std_relative_error"])[:WORST]
    spread = [int(place) for place in np.linspace(0, count - 1, SHOWN - WORST)]
    return sorted({*worst, *spread})


def _verdict(facts: VerificationFacts) -> str:
    if all(check.tolerance is None for check in facts.checks):
        return '<span class="verdict open">report only: the bundle states no tolerance</span>'
    word = "every tolerance is held" if facts.passed else "a tolerance is not held"
    return f'<span class="verdict {"held" if facts.passed else "missed"}">{word}</span>'


def _summary(facts: VerificationFacts) -> str:
    bundle, variant, reference = facts.bundle, facts.bundle.variant, facts.reference
    dropout = variant["dropout"]
    dropout = dropout if isinstance(dropout, str) else ", ".join(dropout)
    return (
        f"{facts.bag.frames} frames of <code>{escape(facts.bag.topic)}</code> were sent over DDS, "
        "each after the answer to the one before, to the perception node in its own process, and "
        f"compared with {reference.samples} Monte-Carlo samples each (PyTorch, seed "
        f"{reference.seed}) of the same weights. The model: {escape(bundle.task)}, "
        f"{escape(variant['architecture'])} of width {variant['width']:g}, dropout "
        f"<code>{escape(dropout)}</code> at rate {variant['rate']:g}, variance kept as "
        f"{escape(variant['variance'])}, {escape(bundle.precision)}."
    )


def _checks(checks: Sequence[Check]) -> str:
    rows = []
    for check in checks:
        kind = check.verdict if check.verdict != "not asked" else "open"
        rows.append(
            (
                TITLES[check.name],
                number(check.figure),
                number(check.noise),
                number(check.tolerance),
                number(check.limit),
                f'<span class="verdict {kind}">{check.verdict}</span>',
            )
        )
    heads = ("figure", "", "noise of the reference", "tolerance", "with the noise", "")
    return table(heads, rows)


def _figures(figures: Figures) -> str:
    rows = [
        (title, number(figures[name]), number(NOISE[name](figures)) if name in NOISE else "")
        for name, title in TITLES.items()
        if name in figures
    ]
    return table(("figure", "", "noise of the reference"), rows)


def _truth(truth: Mapping[str, Figures]) -> str:
    if not truth:
        return "<p>The bag has no ground truth for this task.</p>"
    rows = [
        (escape(TITLES.get(name, name)), number(truth[OURS][name]), number(truth[SAMPLED][name]))
        for name in truth[OURS]
    ]
    return table(("figure", "propagated, in the node", "Monte Carlo"), rows)


def _coverage(coverage: Mapping[str, Sequence[Figures]]) -> str:
    """The nominal share and those of both methods; nothing without measured disparity."""
    if not coverage:
        return ""
    rows = [
        (
            f"measured disparity within ±{ours['sigmas']:.3f} σ",
            *(f"{share:.1%}" for share in (ours["nominal"], ours["observed"], mc["observed"])),
        )
        for ours, mc in zip(coverage[OURS], coverage[SAMPLED], strict=True)
    ]
    heads = ("coverage", "nominal (Gaussian)", "propagated, in the node", "Monte Carlo")
    return f"{table(heads, rows)}<p>{NOTE}</p>"


def _speed(speed: SpeedFacts, runner: str) -> str:
    rows = [
        (f"node, {escape(runner)}: inference", _time(speed.node_infer_s), ""),
        ("node: from arrival of the image to its last output", _time(speed.node_total_s), ""),
    ]
    rows += [
        (
            f"Monte Carlo, {count} samples (PyTorch, {speed.torch_threads} threads)",
            _time(seconds),
            f"{speed.times_faster[count]:.1f} times the node's inference",
        )
        for count, seconds in speed.monte_carlo_s.items()
    ]
    how = (
        f"Medians for images of {speed.width}x{speed.height} pixels, measured in this run at a load"
        f" of {speed.load_average:.1f}."
    )
    return f"<p>{how}</p>{table((), rows)}"


def _curves(facts: VerificationFacts, density: np.ndarray) -> str:
    drawn = [curves.density(density)]
    if facts.sparsification:
        segments = facts.bundle.task == "segmentation"
        what = "share of wrong labels" if segments else "mean |z - truth| / truth"
        drawn.append(curves.error_by_quantile(facts.sparsification, what))
        drawn.append(curves.sparsification_curves(facts.sparsification, what))
    for check in facts.checks:
        title, noise = TITLES[check.name], NOISE[check.name]
        drawn.append(curves.over_frames(facts.per_frame, check.name, title, check.tolerance, noise))
    images = (f'<img alt="curve" src="{data_url("svg+xml", svg.encode())}">' for svg in drawn)
    return f"<div class=curves>{''.join(images)}</div>"


def _figure(place: int, panel: np.ndarray, frame: FrameFacts) -> str:
    done, data = cv2.imencode(
        ".jpg", cv2.cvtColor(panel, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 90]
    )
    assert done
    caption = f"frame {place + 1}, {frame.time_s:.2f} s"
    source = data_url("jpeg", data.tobytes())
    return f'<figure><img alt="{caption}" src="{source}"><figcaption class=small>{caption}' + (
        "</figcaption></figure>"
    )


def _which(places: Sequence[int], per_frame: Sequence[FrameFacts]) -> str:
    if len(places) == len(per_frame):
        return "All frames. The colour scale of the standard deviation is the same in each."
    return (
        f"{len(places)} of {len(per_frame)} frames: the {WORST} with the largest error of the "
        "standard deviation, and others spread over the drive. The colour scale is the same in "
        "each."
    )


def _every_frame(per_frame: Sequence[FrameFacts]) -> str:
    frames = [frame.to_dict() for frame in per_frame]
    heads = {name: head for name, head in COLUMNS.items() if any(name in f for f in frames)}
    rows = [[number(frame.get(name)) for name in heads] for frame in frames]
    return f"<div class='wide small'>{table(heads.values(), rows)}</div>"


def _provenance(bundle: BundleFacts) -> dict[str, Any]:
    facts: dict[str, Any] = {"model.onnx, SHA-256": bundle.sha256, "gains": bundle.gains}
    for name, value in bundle.provenance.items():
        if isinstance(value, dict):
            facts |= {f"{name}: {inner}": text for inner, text in value.items()}
        else:
            facts[name] = value
    return facts


def _rows(facts: Mapping[str, Any]) -> str:
    shown = []
    for name, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value)
        shown.append(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>")
    return f"<table class=small>{''.join(shown)}</table>"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"

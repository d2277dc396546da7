"""The page that goes with a release: one HTML file in which everything is embedded."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterable
from html import escape
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from penumbra.files import write_atomically
from penumbra.offline.metrics.coverage import NOTE
from penumbra.verification import curves
from penumbra.verification.comparison import OURS, SAMPLED
from penumbra.verification.explanations import how_to_read

PAGE, FIGURES = "index.html", "figures.json"
SHOWN = 12  # panels: the worst frames, and others spread over the drive
WORST = 4

TITLES = {
    "label_agreement": "labels as Monte Carlo's",
    "std_relative_error": "standard deviation, relative error",
    "spearman": "Spearman correlation of the uncertainty maps",
    "disparity_relative_error": "disparity, relative difference to Monte Carlo's",
    "std_ratio": "standard deviation, ratio",
    "variance_relative_error": "variance, relative error",
    "variance_ratio": "variance, ratio",
    "global_accuracy": "labels right",
    "class_average": "labels right, class average",
    "mean_iou": "mean intersection over union",
    "expected_calibration_error": "expected calibration error of the probabilities",
    "ause": "AUSE (0 is best)",
    "aurg": "AURG (above 0: better than chance)",
}
# Of each frame, and short enough to stand above a column.
COLUMNS = {
    "time_s": "time, s",
    "label_agreement": "labels as MC",
    "disparity_relative_error": "disparity err",
    "std_relative_error": "std err",
    "std_relative_error_noise": "± noise",
    "std_ratio": "std ratio",
    "variance_relative_error": "var err",
    "variance_ratio": "var ratio",
    "spearman": "Spearman",
    "propagated_global_accuracy": "right",
    "monte_carlo_global_accuracy": "right, MC",
    "propagated_mean_iou": "IoU",
    "propagated_abs_rel": "abs_rel",
    "monte_carlo_abs_rel": "abs_rel, MC",
    "propagated_ause": "AUSE",
    "monte_carlo_ause": "AUSE, MC",
    "infer_ms": "infer, ms",
}
# What the noise of the reference adds to a figure, by the name of the figure.
NOISE: dict[str, Callable[[dict[str, float]], float]] = {
    "label_agreement": lambda f: f["label_agreement_noise"],
    "std_relative_error": lambda f: f["std_relative_error_noise"],
    "variance_relative_error": lambda f: f["variance_relative_error_noise"],
    "spearman": lambda f: 1 - f["spearman_attainable"],
}
Panels = Callable[[Collection[int]], Iterable[np.ndarray]]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; background: #fff; margin: 2rem auto;
       max-width: 74rem; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #dde2ea;
         vertical-align: top; }
td { overflow-wrap: anywhere; } .wide td { white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; } .small { font-size: 13px; color: #55606e; }
.verdict { display: inline-block; padding: .3rem .8rem; border-radius: .3rem; color: #fff;
           font-weight: 600; }
.held { background: #1a7f4b; } .missed, .undecided { background: #b2182b; }
.open { background: #5b6675; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem; }
img { max-width: 100%; height: auto; } figure { margin: 1rem 0; } .wide { overflow-x: auto; }
code { font-size: 13px; }
@media print { h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


def write_report(folder: Path, facts: dict[str, Any], density: np.ndarray, panels: Panels) -> None:
    """`index.html`, with nothing beside it that it needs, and the figures for machines."""
    write_atomically(folder / FIGURES, json.dumps(facts, indent=1))
    write_atomically(folder / PAGE, page(facts, density, panels))


def page(facts: dict[str, Any], density: np.ndarray, panels: Panels) -> str:
    """The page as HTML."""
    bundle, bag = facts["bundle"], facts["bag"]
    places = shown_frames(facts["per_frame"])
    parts = [
        f"<h1>{escape(bundle['name'])} on {escape(bag['name'])}</h1>",
        f"<p>{_verdict(facts)} <span class=small>{escape(facts['created'])}</span></p>",
        f"<p>{_summary(facts)}</p>",
        "<h2>Against the tolerances of the bundle</h2>", _checks(facts["checks"]),
        "<h2>Against Monte Carlo</h2>", _figures(facts["figures"]),
        "<h2>Against ground truth</h2>", _truth(facts["truth"]),
        _coverage(facts["coverage"]),
        "<h2>Speed</h2>", _speed(facts["speed"], facts["versions"]["runner"]),
        "<h2>Curves</h2>", _curves(facts, density),
        f"<h2>Frames</h2><p class=small>{_which(places, facts['per_frame'])}</p>",
        *(_figure(place, picture, facts["per_frame"][place])
          for place, picture in zip(places, panels(places), strict=True)),
        "<h2>Every frame</h2>", _every_frame(facts["per_frame"]),
        "<h2>How to read it</h2>", how_to_read(facts),
        "<h2>Where the model comes from</h2>", _rows(_provenance(bundle)),
        "<h2>Versions</h2>", _rows(facts["versions"]),
    ]  # fmt: skip
    return document(f"{bundle['name']}: verification", parts)


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page of HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def shown_frames(per_frame: list[dict[str, Any]]) -> list[int]:
    """The worst by their standard deviation, and others spread evenly, in the order of time."""
    count = len(per_frame)
    if count <= SHOWN:
        return list(range(count))
    worst = sorted(range(count), key=lambda i: -per_frame[i]["std_relative_error"])[:WORST]
    spread = [int(place) for place in np.linspace(0, count - 1, SHOWN - WORST)]
    return sorted({*worst, *spread})


def number(value: float | None) -> str:
    """Four digits, whatever the size."""
    return "" if value is None else f"{value:.4g}"


def _verdict(facts: dict[str, Any]) -> str:
    asked = any(check["tolerance"] is not None for check in facts["checks"])
    if not asked:
        return '<span class="verdict open">report only: the bundle states no tolerance</span>'
    good = facts["passed"]
    word = "every tolerance is held" if good else "a tolerance is not held"
    return f'<span class="verdict {"held" if good else "missed"}">{word}</span>'


def _summary(facts: dict[str, Any]) -> str:
    bundle, bag, reference = facts["bundle"], facts["bag"], facts["reference"]
    variant = bundle["variant"]
    dropout = variant["dropout"]
    dropout = dropout if isinstance(dropout, str) else ", ".join(dropout)
    return (
        f"{bag['frames']} frames of <code>{escape(bag['topic'])}</code> were sent, one after the "
        f"answer to the other, through the perception node in a process of its own, over DDS, and "
        f"compared with {reference['samples']} Monte-Carlo samples each (PyTorch, seed "
        f"{reference['seed']}) of the same weights. The model: {escape(bundle['task'])}, "
        f"{escape(variant['architecture'])} of width {variant['width']:g}, dropout "
        f"<code>{escape(dropout)}</code> at rate {variant['rate']:g}, variance kept as "
        f"{escape(variant['variance'])}, {escape(bundle['precision'])}."
    )


def _checks(checks: list[dict[str, Any]]) -> str:
    rows = []
    for check in checks:
        kind = check["verdict"] if check["verdict"] != "not asked" else "open"
        rows.append(
            (
                TITLES[check["name"]],
                number(check["figure"]),
                number(check["noise"]),
                number(check["tolerance"]),
                number(check["limit"]),
                f'<span class="verdict {kind}">{check["verdict"]}</span>',
            )
        )
    heads = ("figure", "", "noise of the reference", "tolerance", "with the noise", "")
    return table(heads, rows)


def _figures(figures: dict[str, float]) -> str:
    rows = [
        (title, number(figures[name]), number(NOISE[name](figures)) if name in NOISE else "")
        for name, title in TITLES.items()
        if name in figures
    ]
    return table(("figure", "", "noise of the reference"), rows)


def _truth(truth: dict[str, dict[str, float]]) -> str:
    if not truth:
        return "<p>The bag has no ground truth for this task.</p>"
    rows = [
        (TITLES.get(name, name), number(truth[OURS][name]), number(truth[SAMPLED][name]))
        for name in truth[OURS]
    ]
    return table(("figure", "propagated, in the node", "Monte Carlo"), rows)


def _coverage(coverage: dict[str, list[dict[str, float]]]) -> str:
    """Beside the nominal share those of both methods; nothing where no disparity is known."""
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


def _speed(speed: dict[str, Any], runner: str) -> str:
    rows = [(f"node, {runner}: inference", _time(speed["node_infer_s"]), "")]
    rows += [
        ("node: from the image's arrival to the last output", _time(speed["node_total_s"]), "")
    ]
    rows += [
        (
            f"Monte Carlo, {count} samples (PyTorch, {speed['torch_threads']} threads)",
            _time(seconds),
            f"{speed['times_faster'][count]:.1f} times the node's inference",
        )
        for count, seconds in speed["monte_carlo_s"].items()
    ]
    size = f"{speed['width']}x{speed['height']}"
    how = (
        f"Medians for images of {size} pixels, measured in this run at a load of "
        f"{speed['load_average']:.1f}."
    )
    return f"<p>{how}</p>{table((), rows)}"


def _curves(facts: dict[str, Any], density: np.ndarray) -> str:
    drawn = [curves.density(density)]
    if facts["calibration"]:
        segments = facts["bundle"]["task"] == "segmentation"
        what = "share of wrong labels" if segments else "mean |z - truth| / truth"
        drawn.append(curves.error_by_quantile(facts["calibration"], what))
        drawn.append(curves.sparsification(facts["calibration"], what))
    for check in facts["checks"]:
        name = check["name"]
        drawn.append(
            curves.over_frames(
                facts["per_frame"], name, TITLES[name], check["tolerance"], NOISE[name]
            )
        )
    pictures = (f'<img alt="curve" src="{_data("svg+xml", svg.encode())}">' for svg in drawn)
    return f"<div class=curves>{''.join(pictures)}</div>"


def _figure(place: int, picture: np.ndarray, frame: dict[str, Any]) -> str:
    done, data = cv2.imencode(
        ".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 90]
    )
    assert done
    caption = f"frame {place + 1}, {frame['time_s']:.2f} s"
    source = _data("jpeg", data.tobytes())
    return f'<figure><img alt="{caption}" src="{source}"><figcaption class=small>{caption}' + (
        "</figcaption></figure>"
    )


def _which(places: list[int], per_frame: list[dict[str, Any]]) -> str:
    if len(places) == len(per_frame):
        return "All frames. The colours of the standard deviation mean the same in each."
    return (
        f"{len(places)} of {len(per_frame)} frames: the {WORST} worst by the error of their "
        "standard deviation, and others spread over the drive. The colours mean the same in each."
    )


def _every_frame(per_frame: list[dict[str, Any]]) -> str:
    heads = {name: head for name, head in COLUMNS.items() if any(name in f for f in per_frame)}
    rows = [[number(frame.get(name)) for name in heads] for frame in per_frame]
    return f"<div class='wide small'>{table(heads.values(), rows)}</div>"


def _provenance(bundle: dict[str, Any]) -> dict[str, Any]:
    facts = {"model.onnx, SHA-256": bundle["sha256"], "calibration": bundle["calibration"]}
    for name, value in bundle["provenance"].items():
        if isinstance(value, dict):
            facts |= {f"{name}: {inner}": text for inner, text in value.items()}
        else:
            facts[name] = value
    return facts


def _rows(facts: dict[str, Any]) -> str:
    shown = []
    for name, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value)
        shown.append(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>")
    return f"<table class=small>{''.join(shown)}</table>"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """The first column is text, the others are numbers."""
    kinds = ["", *[" class=n"] * 99]
    top = "".join(f"<th{k}>{head}</th>" for head, k in zip(heads, kinds, strict=False))
    body = "".join(
        f"<tr>{''.join(f'<td{k}>{cell}</td>' for cell, k in zip(row, kinds, strict=False))}</tr>"
        for row in rows
    )
    return f"<table>{top and f'<tr>{top}</tr>'}{body}</table>"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _data(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"

"""Out of distribution: whether uncertainty holds where the network was never trained.

Not in the paper, whose method was calibrated here on ordinary pictures: gains that were fitted to
streets in fair weather might say nothing of fog or of a kitchen. So the maps of our standard
deviation are held against Monte Carlo's on test frames as they are, in fog, in the dark and noisy,
on indoor photographs, and at the pixels of classes that a network was trained without:

- is it as large (the ratio of the mean standard deviations, ours over 200 samples),
- does it tell strange pixels from ordinary ones as well (AUROC, ours and 50 samples), and
- does it find wrong labels as well (AUROC again, each method by its own labels)?
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from penumbra.bundle import MANIFEST
from penumbra.lab.drawing import BLUE, GREY, ORANGE, plate
from penumbra.lab.experiments.distribution_shift.corruptions import LIGHT, SIGMA
from penumbra.lab.experiments.distribution_shift.figures import METHODS, figures, withheld
from penumbra.lab.experiments.distribution_shift.maps import (
    OURS,
    SAMPLED,
    Maps,
    SampledNetwork,
    changed,
    frames_of,
    photographs,
)
from penumbra.lab.experiments.reporting import Setting
from penumbra.lab.experiments.reporting.markdown import rows
from penumbra.share import bundle_folder

NEEDS = "camvid"
BUNDLES = {"class": "segnet-camvid-class", "encdec": "segnet-camvid-encdec"}
HELD_OUT = "segnet-camvid-holdout"
INDOOR = "ood_indoor"  # below --data, as CamVid is
CLEAN = "as they are"
FRAMES, EVERY = 8, 30
FEW, MANY = 50, 200  # samples: what ours is held against, and what tells the size
WORSE, LARGER = 0.01, 1.5  # AUROC may be so much lower, the size off by such a factor


def measure(setting: Setting) -> dict[str, Any]:
    frames = frames_of(setting.data / NEEDS, EVERY, FRAMES)
    groups = {CLEAN: frames} | changed(frames, setting.seed)
    absent = []
    if (setting.data / INDOOR).is_dir():
        size = frames[0].image.shape[1::-1]
        groups["indoor"] = photographs(setting.data / INDOOR, FRAMES, size)
    else:
        absent.append(f"Indoor photographs are left out: there is no {INDOOR}/ beside {NEEDS}/.")
    found: dict[str, Any] = {"frames": len(frames), "few": FEW, "many": MANY, "networks": {}}

    def maps_of(network: SampledNetwork, name: str, kind: str) -> list[Maps]:
        return [network.of(picture) for picture in setting.bar(groups[kind], f"{name}, {kind}")]

    for name in BUNDLES.values():
        network = SampledNetwork(name, FEW, MANY, setting.seed)
        ordinary = maps_of(network, name, CLEAN)
        found["networks"][name] = {CLEAN: figures(ordinary, None)} | {
            kind: figures(maps_of(network, name, kind), ordinary)
            for kind in groups
            if kind != CLEAN
        }
    if (bundle_folder(HELD_OUT) / MANIFEST).is_file():
        network = SampledNetwork(HELD_OUT, FEW, MANY, setting.seed)
        found["withheld"] = withheld(frames, maps_of(network, HELD_OUT, CLEAN))
    else:
        absent.append(
            f"Withheld classes are left out: the bundle {HELD_OUT} is not there (with it, "
            "--again adds them to what is kept)."
        )
    return found | {"absent": absent}


def holds(found: dict[str, Any]) -> dict[str, bool]:
    """By what was measured: AUROC no worse than that of few samples, the size within its factor."""
    verdicts = {
        what: found[what][OURS] >= found[what][SAMPLED] - WORSE
        for what in ("strange", "errors")
        if what in found
    }
    return verdicts | {"ratio": 1 / LARGER <= found["ratio"] <= LARGER}


def _lines(result: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Network, kind of pictures, figures: all that was measured, in order."""
    found = [
        (network, kind, one)
        for network, kinds in result["networks"].items()
        for kind, one in kinds.items()
    ]
    if "withheld" in result:
        found.append((HELD_OUT, "withheld classes", result["withheld"]))
    return found


def table(result: dict[str, Any]) -> str:
    few, many = result["few"], result["many"]
    head = ["network", "pictures", "labels right", f"mean σ, MC-{many}", f"ours / MC-{many}",
            "by picture", "strange pixels: AUROC ours", f"MC-{few}", "wrong labels: AUROC ours",
            f"MC-{few}", "held"]  # fmt: skip
    lines = []
    for network, kind, found in _lines(result):
        right = found.get("right")
        aurocs = [
            f"{found[what][method]:.3f}" if what in found else ""
            for what in ("strange", "errors") for method in METHODS
        ]  # fmt: skip
        missed = [_WHAT[what] for what, held in holds(found).items() if not held]
        lines.append([
            network, kind, f"{right['ours']:.1%}" if right else "", f"{found['std']:.4f}",
            f"{found['ratio']:.2f}", f"{min(found['ratios']):.2f} to {max(found['ratios']):.2f}",
            *aurocs, f"**no: {', '.join(missed)}**" if missed else "yes",
        ])  # fmt: skip
    return "\n\n".join([rows(head, lines), *result["absent"], _words(result)])


_WHAT = {"strange": "strange pixels", "errors": "wrong labels", "ratio": "size"}


def _words(result: dict[str, Any]) -> str:
    verdicts = [holds(found) for *_, found in _lines(result)]
    counted = [
        f"{_WHAT[what]} {sum(v[what] for v in verdicts if what in v)} of "
        f"{sum(what in v for v in verdicts)}"
        for what in _WHAT
    ]
    few, many = result["few"], result["many"]
    return (
        f"Held: {'; '.join(counted)}. It is held where ours has an AUROC of at least that of {few} "
        f"samples less {WORSE}, and a mean standard deviation within a factor of {LARGER} of that "
        f"of {many} samples.\n\n"
        f"{result['frames']} frames of CamVid's test split, every {EVERY}th, and as many "
        "photographs. σ is the mean over the classes of the standard deviation of their "
        "probabilities. *Strange pixels*: all pixels of these pictures against all pixels of the "
        "frames as they are; for withheld classes, their pixels against those of the classes that "
        "the network has. Half is chance, and less than half means that strange pictures are given "
        "*less* uncertainty. *Wrong labels*: among the labelled pixels, each method by its own "
        "labels. Fog grows with the distance on a flat road, the dark leaves "
        f"{LIGHT:.0%} of the light, the noise has a standard deviation of {SIGMA:g} of 255 "
        "(penumbra/experiments/strange/changes.py)."
    )


def draw(result: dict[str, Any]) -> Figure:
    """Both AUROCs and the size, a row for each kind of pictures."""
    lines = _lines(result)
    few, many = result["few"], result["many"]
    figure, (panels,) = plate(1, 3, (3.6, 0.32 * len(lines) + 1.4), sharey=True)
    places = np.arange(len(lines))[::-1]
    titles = {"strange": "strange pixels found", "errors": "wrong labels found"}
    looks = {
        SAMPLED: {"marker": "s", "color": ORANGE, "mfc": "none", "ms": 8,
                  "label": f"Monte Carlo, {few} samples"},
        OURS: {"marker": "o", "color": BLUE, "ms": 5, "label": "ours, one pass"},
    }  # fmt: skip
    for axes, what in zip(panels, titles, strict=False):
        for method, look in looks.items():
            values = [found[what][method] if what in found else np.nan for *_, found in lines]
            axes.plot(values, places, linestyle="none", **look)
        axes.axvline(0.5, color=GREY, linewidth=1, linestyle=":", label="chance")
        axes.set(title=titles[what], xlabel="AUROC")
    size = panels[2]
    size.axvspan(1 / LARGER, LARGER, color=GREY, alpha=0.2, label=f"within a factor of {LARGER}")
    size.axvline(1, color=GREY, linewidth=1)
    ratios = np.array([[min(f["ratios"]), f["ratio"], max(f["ratios"])] for *_, f in lines])
    spread = np.abs(ratios[:, [0, 2]] - ratios[:, [1]]).T
    size.errorbar(ratios[:, 1], places, xerr=spread, fmt="o", color=BLUE, ms=5, capsize=2,
                  label="all pictures, and their range")  # fmt: skip
    size.set(title="size of the uncertainty", xlabel=f"mean σ, ours / {many} samples")
    size.set_xlim(0, max(2.0, 1.05 * ratios.max()))
    panels[0].set_yticks(places, [f"{network}: {kind}" for network, kind, _ in lines])
    for axes in (panels[0], size):
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return figure

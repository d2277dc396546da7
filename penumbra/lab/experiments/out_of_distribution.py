"""Out of distribution: whether uncertainty holds where the network was never trained.

Not in the paper. Gains are fitted to ordinary street images, and might be wrong for fog or for a
kitchen. This experiment compares our standard deviation with Monte Carlo's on test frames
unchanged, in fog, in darkness and with noise, on indoor photographs, and at the pixels of classes
that a network was trained without:

- is it as large (the ratio of the mean standard deviations, ours over 200 samples),
- does it detect out-of-distribution pixels as well (AUROC, ours and 50 samples), and
- does it detect wrong labels as well (AUROC, each method by its own labels)?
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from penumbra.bundle import MANIFEST
from penumbra.lab.experiments.distribution_shift.corruptions import LIGHT, SIGMA
from penumbra.lab.experiments.distribution_shift.image_groups import (
    camvid_frames,
    corrupted,
    photographs,
)
from penumbra.lab.experiments.distribution_shift.statistics import (
    ERRORS,
    METHODS,
    SHIFTED,
    group_statistics,
    withheld_statistics,
)
from penumbra.lab.experiments.distribution_shift.uncertainty_maps import (
    OURS,
    SAMPLED,
    SampledNetwork,
    UncertaintyMaps,
)
from penumbra.lab.experiments.reporting.markdown import rows
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.lab.figure_style import BLUE, GREY, ORANGE, axes_grid
from penumbra.share import bundle_folder

NEEDS = "camvid"
BUNDLES = {"class": "segnet-camvid-class", "encdec": "segnet-camvid-encdec"}
HELD_OUT = "segnet-camvid-holdout"
INDOOR = "ood_indoor"  # below --data, as CamVid is
CLEAN = "as they are"
FRAMES, EVERY = 8, 30
FEW, MANY = 50, 200  # samples: for the comparison of AUROC, and for the size
WORSE, LARGER = 0.01, 1.5  # tolerated: so much less AUROC, a size off by this factor


def measure(setting: ExperimentSetting) -> dict[str, Any]:
    """Figures by network and group of images, and which groups are missing."""
    frames = camvid_frames(setting.data_set(NEEDS), EVERY, FRAMES)
    groups = {CLEAN: frames} | corrupted(frames, setting.seed)
    absent = []
    if setting.data_set(INDOOR).is_dir():
        height, width = frames[0].image.shape[:2]
        groups["indoor"] = photographs(setting.data_set(INDOOR), FRAMES, (width, height))
    else:
        absent.append(f"Indoor photographs are left out: no {INDOOR}/ beside {NEEDS}/.")
    found: dict[str, Any] = {"frames": len(frames), "few": FEW, "many": MANY, "networks": {}}

    def maps_of(network: SampledNetwork, name: str, kind: str) -> list[UncertaintyMaps]:
        return [network.maps(image) for image in setting.bar(groups[kind], f"{name}, {kind}")]

    for name in BUNDLES.values():
        network = SampledNetwork(name, FEW, MANY, setting.seed)
        ordinary = maps_of(network, name, CLEAN)
        found["networks"][name] = {CLEAN: group_statistics(ordinary, None)} | {
            kind: group_statistics(maps_of(network, name, kind), ordinary)
            for kind in groups
            if kind != CLEAN
        }
    if (bundle_folder(HELD_OUT) / MANIFEST).is_file():
        network = SampledNetwork(HELD_OUT, FEW, MANY, setting.seed)
        found["withheld"] = withheld_statistics(frames, maps_of(network, HELD_OUT, CLEAN))
    else:
        absent.append(
            f"Withheld classes are left out: the bundle {HELD_OUT} is missing (once it exists, "
            "--again adds them)."
        )
    return found | {"absent": absent}


def verdicts(found: dict[str, Any]) -> dict[str, bool]:
    """By figure: AUROC no worse than that of few samples, the size within its factor."""
    detection = {
        what: found[what][OURS] >= found[what][SAMPLED] - WORSE
        for what in (SHIFTED, ERRORS)
        if what in found
    }
    return detection | {"ratio": 1 / LARGER <= found["ratio"] <= LARGER}


def _lines(result: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Network, group of images, figures: everything that was measured, in order."""
    found = [
        (network, kind, one)
        for network, kinds in result["networks"].items()
        for kind, one in kinds.items()
    ]
    if "withheld" in result:
        found.append((HELD_OUT, "withheld classes", result["withheld"]))
    return found


def table(result: dict[str, Any]) -> str:
    """A line for each network and group of images; what the columns mean."""
    few, many = result["few"], result["many"]
    head = ["network", "images", "labels right", f"mean σ, MC-{many}", f"ours / MC-{many}",
            "by image", "OOD pixels: AUROC ours", f"MC-{few}", "wrong labels: AUROC ours",
            f"MC-{few}", "holds"]  # fmt: skip
    lines = []
    for network, kind, found in _lines(result):
        right = found.get("right")
        aurocs = [
            f"{found[what][method]:.3f}" if what in found else ""
            for what in (SHIFTED, ERRORS) for method in METHODS
        ]  # fmt: skip
        missed = [_WHAT[what] for what, passed in verdicts(found).items() if not passed]
        lines.append([
            network, kind, f"{right[OURS]:.1%}" if right else "", f"{found['std']:.4f}",
            f"{found['ratio']:.2f}", f"{min(found['ratios']):.2f} to {max(found['ratios']):.2f}",
            *aurocs, f"**no: {', '.join(missed)}**" if missed else "yes",
        ])  # fmt: skip
    return "\n\n".join([rows(head, lines), *result["absent"], _words(result)])


_WHAT = {SHIFTED: "OOD pixels", ERRORS: "wrong labels", "ratio": "size"}


def _words(result: dict[str, Any]) -> str:
    found = [verdicts(one) for *_, one in _lines(result)]
    counted = [
        f"{name} {sum(v[what] for v in found if what in v)} of {sum(what in v for v in found)}"
        for what, name in _WHAT.items()
    ]
    few, many = result["few"], result["many"]
    return (
        f"Holds: {'; '.join(counted)}. The criterion is an AUROC of at least that of {few} "
        f"samples less {WORSE}, and a mean standard deviation within a factor of {LARGER} of that "
        f"of {many} samples.\n\n"
        f"The images are {result['frames']} frames of CamVid's test split, every {EVERY}th, and as "
        "many photographs. σ is the standard deviation of the class probabilities, averaged over "
        "the classes. *OOD pixels*: all pixels of these images against all pixels of the unchanged "
        "frames; for withheld classes, their pixels against those of the classes that the network "
        "has learnt. An AUROC of 0.5 is chance; below 0.5 the out-of-distribution images have "
        "*less* uncertainty. *Wrong labels*: over the labelled pixels, each method by its own "
        "labels. Fog grows with the distance on a flat road, darkness leaves "
        f"{LIGHT:.0%} of the light, noise has a standard deviation of {SIGMA:g} of 255 "
        "(penumbra/lab/experiments/distribution_shift/corruptions.py)."
    )


def draw(result: dict[str, Any]) -> Figure:
    """Both AUROCs and the size, a row for each group of images."""
    lines = _lines(result)
    few, many = result["few"], result["many"]
    figure, (panels,) = axes_grid(1, 3, (3.6, 0.32 * len(lines) + 1.4), sharey=True)
    places = np.arange(len(lines))[::-1]
    titles = {SHIFTED: "OOD pixels detected", ERRORS: "wrong labels detected"}
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
                  label="all images, and their range")  # fmt: skip
    size.set(title="size of the uncertainty", xlabel=f"mean σ, ours / {many} samples")
    size.set_xlim(0, max(2.0, 1.05 * ratios.max()))
    panels[0].set_yticks(places, [f"{network}: {kind}" for network, kind, _ in lines])
    for axes in (panels[0], size):
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return figure

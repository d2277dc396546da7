"""Print the tables of docs/camera-health.md: ordinary frames, faults by severity, time per frame.

python -m penumbra.lab.experiments.camera_health DATA             # one drive of train and val
                                                                  # left out at a time
python -m penumbra.lab.experiments.camera_health DATA --test      # CamVid's test split
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np

from penumbra.image_files import read_image_file
from penumbra.offline.datasets.camvid import images_of
from penumbra.offline.faults import FAULTS, SEVERITIES, apply_sequence
from penumbra.vehicle.monitor.health_range import HealthRange, fit_health
from penumbra.vehicle.monitor.health_scores import Measured, measure

BLOCK = 24  # frames of a drive with the same fault in the same place


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="the folder that holds camvid/")
    parser.add_argument("--test", action="store_true", help="fit to train and val, judge test")
    parser.add_argument("--blocks", type=int, default=2, help="of faulty frames, for each drive")
    parser.add_argument("--severities", type=int, nargs="+", default=list(SEVERITIES))
    options = parser.parse_args()
    cv2.setNumThreads(1)
    folder = options.data / "camvid"
    fitted = _drives(folder, ("train", "val"))
    ordinary = {name: _measured(map(_read, paths)) for name, paths in fitted.items()}
    if options.test:
        judged = _drives(folder, ("test",))
        whole = fit_health(list(ordinary.values()))
        ranges = dict.fromkeys(judged, whole)
    else:
        judged = fitted
        ranges = {
            name: fit_health([frames for other, frames in ordinary.items() if other != name])
            for name in judged
        }
    healthy = {}
    print("| drive | frames | over the limit | by | twice over |\n| --- | --- | --- | --- | --- |")
    for name, paths in judged.items():
        frames = _measured(map(_read, paths)) if options.test else ordinary[name]
        excess, by = _excess(ranges[name], frames)
        healthy[name] = excess
        over = sorted({by[i] for i in np.flatnonzero(excess > 1)})
        print(f"| {name} | {len(excess)} | {np.mean(excess > 1):.1%} | {', '.join(over)} | "
              f"{np.mean(excess > 2):.1%} |", flush=True)  # fmt: skip
    heads = "".join(f" {severity} |" for severity in options.severities)
    print(f"\n| AUROC / detection, severity |{heads}\n| --- |{' --- |' * len(options.severities)}")
    negative = np.concatenate(list(healthy.values()))
    for fault in FAULTS:
        cells = []
        for severity in options.severities:
            found = [
                _excess(ranges[name], block)[0]
                for name, paths in judged.items()
                for block in _faulty(fault, severity, paths, options.blocks)
            ]
            positive = np.concatenate(found)
            cells.append(f"{_auroc(negative, positive):.3f} / {np.mean(positive > 1):.0%}")
        print(f"| {fault} | {' | '.join(cells)} |", flush=True)
    _print_time(_read(next(iter(judged.values()))[0]))


def _drives(folder: Path, splits: Sequence[str]) -> dict[str, list[Path]]:
    """Images by drive, in the order of the drive: names begin with it."""
    drives: dict[str, list[Path]] = {}
    paths = [path for split in splits for path in images_of(folder, split)]
    for path in sorted(paths, key=lambda path: path.name):
        drives.setdefault(path.name.partition("_")[0], []).append(path)
    return drives


def _read(path: Path) -> np.ndarray:
    return read_image_file(path, cv2.IMREAD_COLOR)


def _measured(images: Iterable[np.ndarray]) -> list[Measured]:
    return [measure(image, "bgr8") for image in images]


def _faulty(fault: str, severity: int, paths: list[Path], blocks: int) -> list[list[Measured]]:
    starts = np.linspace(0, max(0, len(paths) - BLOCK), blocks).astype(int).tolist()
    return [
        _measured(apply_sequence(fault, severity, map(_read, paths[i : i + BLOCK]), seed=number))
        for number, i in enumerate(starts)
    ]


def _excess(normal: HealthRange, frames: list[Measured]) -> tuple[np.ndarray, list[str]]:
    """The largest excess of every frame, the one number that all faults are judged by; its name."""
    history = normal.history()
    found = [normal.excesses(history.step(frame)) for frame in frames]
    names = [max(excesses, key=lambda name: excesses[name]) for excesses in found]
    return np.array([max(excesses.values()) for excesses in found]), names


def _auroc(negative: np.ndarray, positive: np.ndarray) -> float:
    """Share of pairs in the right order; ties count half."""
    difference = positive[:, None] - negative
    return float(np.mean(difference > 0) + np.mean(difference == 0) / 2)


def _print_time(image: np.ndarray, repeats: int = 200) -> None:
    for size in ((480, 360), (3840, 2160)):
        frame = cv2.resize(image, size, interpolation=cv2.INTER_CUBIC)
        took = []
        for _ in range(repeats):
            start = time.perf_counter()
            measure(frame, "bgr8")
            took.append(1e3 * (time.perf_counter() - start))
        print(f"{size[0]}x{size[1]}: median {np.median(took):.2f} ms, fastest {min(took):.2f} ms")


if __name__ == "__main__":
    main()

"""Rendered streets as files, in the layouts of the real data sets.

- `camvid`: train/ trainannot/ val/ …; of ten frames one is for val and one for test.
- `stereo`: left/ right/ depth/ depth_right/ calib.txt (see `kitti.py`); the sky is at 256 m.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from penumbra.errors import PenumbraError
from penumbra.files import cache_folder, write_atomically
from penumbra.offline.scenes.camera import Camera
from penumbra.offline.scenes.dense_traffic import with_dense_traffic
from penumbra.offline.scenes.rendering import render, stereo
from penumbra.offline.scenes.street_layout import street

LAYOUTS = ("camvid", "stereo")
_SPLITS = ("train",) * 8 + ("val", "test")
_NOTE = "scenes.json"
_STREETS_PER_SEED = 1_000_000
_DENSE_TRAFFIC = 0.8  # share of the stereo scenes
_EDITION = 3  # of the stereo scenes; scenes of different editions are not mixed in a cache


@dataclass(frozen=True)
class RenderingPlan:
    """What is rendered. Frame n of a plan is always the same."""

    layout: str
    width: int
    height: int
    seed: int = 0
    baseline_m: float = 0.54

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise PenumbraError(f"unknown layout {self.layout!r}: use {' or '.join(LAYOUTS)}")
        if self.seed < 0:
            raise PenumbraError(f"a seed of {self.seed}: give 0 or more")

    def files(self, number: int) -> dict[str, str]:
        """The file names of a frame by their content."""
        name = f"{number:06d}.png"
        if self.layout == "camvid":
            split = _SPLITS[number % len(_SPLITS)]
            return {"image": f"{split}/{name}", "labels": f"{split}annot/{name}"}
        return {place: f"{place}/{name}" for place in ("left", "right", "depth", "depth_right")}


def kitti_plan(size: tuple[int, int], seed: int = 0, baseline_m: float = 0.54) -> RenderingPlan:
    """Stereo pairs with KITTI's field of view, 1.2 times as wide as (height, width) `size`."""
    width = round(size[1] * 1.2)
    return RenderingPlan("stereo", width, round(width * 375 / 1242), seed, baseline_m)


def cached_stereo(
    plan: RenderingPlan,
    frames: int,
    progress: Callable[[Iterable, int], Iterable] = lambda work, _: work,
) -> Path:
    """The cache folder with at least `frames` pairs of `plan`; missing ones are rendered now."""
    name = f"{plan.width}x{plan.height}-seed{plan.seed}-{plan.baseline_m:g}m-v{_EDITION}"
    folder = cache_folder() / "rendered" / name
    write_scenes(plan, frames, folder, progress=progress)
    return folder


def write_scenes(
    plan: RenderingPlan,
    frames: int,
    folder: Path,
    workers: int | None = None,
    progress: Callable[[Iterable, int], Iterable] = lambda work, _: work,
) -> int:
    """Render the frames that `folder` lacks; returns their number.

    Files are written atomically, so the same call continues an interrupted run. `workers` is the
    number of processes (None: one per core); `progress` may wrap the work in a progress bar.
    """
    if frames < 1:
        raise PenumbraError(f"{frames} frames: give at least one")
    if plan.layout == "camvid" and frames < len(_SPLITS):
        raise PenumbraError(f"{frames} frames: give at least {len(_SPLITS)}, one for each split")
    folder = Path(folder)
    _claim(folder, plan)
    missing = [
        number
        for number in range(frames)
        if not all((folder / name).is_file() for name in plan.files(number).values())
    ]
    workers = min(workers or os.cpu_count() or 1, max(1, len(missing)))
    work = [(plan, number, folder) for number in missing]
    if workers == 1:
        for _ in progress(map(_write_frame, work), len(work)):
            pass
        return len(missing)
    # Spawned, since the threads of torch do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, context, initializer=cv2.setNumThreads, initargs=(1,)
    ) as pool:
        try:
            for _ in progress(pool.map(_write_frame, work), len(work)):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return len(missing)


def _claim(folder: Path, plan: RenderingPlan) -> None:
    """Record the plan in the folder; refuse to mix it with another one."""
    note = folder / _NOTE
    if note.is_file():
        before = json.loads(note.read_text())
        if before != asdict(plan):
            raise PenumbraError(
                f"{folder} holds other scenes ({_described(before)}): use another folder"
            )
        return
    if folder.is_dir() and any(folder.iterdir()):
        raise PenumbraError(f"{folder} is not empty and has no {_NOTE}: use another folder")
    if plan.layout == "stereo":
        write_atomically(folder / "calib.txt", _calibration(plan))
    write_atomically(note, json.dumps(asdict(plan)) + "\n")


def _described(plan: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in plan.items())


def _write_frame(work: tuple[RenderingPlan, int, Path]) -> None:
    plan, number, folder = work
    seed = plan.seed * _STREETS_PER_SEED + number
    scene = street(seed)
    if plan.layout == "camvid":
        view = render(scene, Camera(plan.width, plan.height))
        images = {"image": view.image, "labels": view.labels}
    else:
        random = np.random.default_rng((seed, 8))
        if random.random() < _DENSE_TRAFFIC:
            scene = with_dense_traffic(scene, random)
        left, right = stereo(scene, _rig(plan, seed))
        images = {
            "left": left.image,
            "right": right.image,
            "depth": _sixteen_bit(left.depth),
            "depth_right": _sixteen_bit(right.depth),
        }
    for place, name in plan.files(number).items():
        _, data = cv2.imencode(".png", images[place])
        write_atomically(folder / name, data.tobytes())


def _rig(plan: RenderingPlan, seed: int) -> Camera:
    """KITTI's rig, with a slightly different mounting in every scene."""
    random = np.random.default_rng((seed, 7))
    return Camera.kitti(
        plan.width,
        plan.height,
        baseline=plan.baseline_m,
        height_m=float(random.normal(1.65, 0.05)),
        pitch=float(random.normal(0.0, 0.015)),
        roll=float(random.normal(0.0, 0.01)),
    )


def _calibration(plan: RenderingPlan) -> str:
    """KITTI's P2 and P3 of the rig, which all frames share."""
    rig = _rig(plan, 0)
    (x, y), f = rig.centre, rig.focal_px
    lines = [
        f"{name}: {f:.6f} 0 {x:g} {shift:.6f} 0 {f:.6f} {y:g} 0 0 0 1 0"
        for name, shift in (("P2", 0.0), ("P3", -f * plan.baseline_m))
    ]
    return "\n".join(lines) + "\n"


def _sixteen_bit(depth: np.ndarray) -> np.ndarray:
    """Metres x 256, from 1 (0 means not measured) to 65535."""
    return np.clip(np.rint(depth * 256), 1, 65535).astype(np.uint16)

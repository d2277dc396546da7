"""Render streets into files: images with CamVid's labels, or stereo pairs with depth.

`--layout camvid` writes train/ trainannot/ val/ valannot/ test/ testannot/ (8:1:1), which
`penumbra train segnet --data DIR` reads. `--layout stereo` writes left/ right/ depth/ depth_right/
and calib.txt with KITTI's field of view, for `penumbra train monodepth --data DIR`; depth is a
16-bit PNG of metres x 256. The same command continues an interrupted run or adds frames.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from penumbra.options import width_and_height

EXAMPLE = "penumbra scenes --out streets --frames 200 --layout camvid"
_SIZES = {"camvid": "480x360", "stereo": "620x188"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--frames", type=int, required=True, help="total number of frames")
    parser.add_argument(
        "--layout", choices=tuple(_SIZES), default="camvid", help="of the files (default camvid)"
    )
    parser.add_argument("--size", help="WIDTHxHEIGHT (default: camvid 480x360, stereo 620x188)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the streets (default 0)")
    parser.add_argument("--workers", type=int, help="number of processes (default: one per core)")


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from tqdm import tqdm

    from penumbra.offline.scenes.dataset import RenderingPlan, write_scenes

    width, height = width_and_height(arguments.size or _SIZES[arguments.layout])
    plan = RenderingPlan(arguments.layout, width, height, arguments.seed)
    rendered = write_scenes(
        plan,
        arguments.frames,
        arguments.out,
        arguments.workers,
        lambda work, total: tqdm(work, total=total, unit="frame"),
    )
    existed = arguments.frames - rendered
    print(f"{rendered} frames rendered, {existed} existed; {arguments.out}")
    return 0

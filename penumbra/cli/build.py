"""Build the TensorRT engine of a bundle and keep it in the engine cache.

An engine that fits is not built twice. Without --build-only one image is then run through the
engine, so that what does not work shows now and not on the road.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penumbra.options import width_and_height

if TYPE_CHECKING:
    from penumbra.vehicle.runners import Runner
    from penumbra.vehicle.runners.engine import Engine

EXAMPLE = (
    "penumbra build bundles/street --backend tensorrt-rtx --compute-capability 8.9 --build-only"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which bundle, for which GPU, and whether to try the engine."""
    parser.add_argument("bundle", type=Path, help="folder that `penumbra export` wrote")
    parser.add_argument(
        "--backend",
        choices=["tensorrt", "tensorrt-rtx"],
        default="tensorrt",
        help="tensorrt builds for this machine's GPU, tensorrt-rtx for any (default: tensorrt)",
    )
    parser.add_argument(
        "--compute-capability",
        metavar="X.Y",
        help="of the GPU to build for, such as 8.9 (default: this machine's)",
    )
    parser.add_argument(
        "--size",
        metavar="WIDTHxHEIGHT",
        help="of the images, for a bundle that takes any",
    )
    parser.add_argument("--workspace-mb", type=int, help="limit of the engine's scratch memory")
    parser.add_argument(
        "--engine-cache-dir",
        type=Path,
        help="where engines are kept (default: engines in $PENUMBRA_CACHE or ~/.cache/penumbra)",
    )
    parser.add_argument("--device", type=int, default=0, help="number of the GPU (default: 0)")
    parser.add_argument("--build-only", action="store_true", help="do not run an image through it")
    parser.add_argument("--force", action="store_true", help="build even if it is in the cache")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> int:
    """Build or find the engine, try it, say where it is."""
    from penumbra.bundle import load_bundle
    from penumbra.vehicle.runners import RunnerSettings, create, engine

    bundle = load_bundle(arguments.bundle)
    settings = RunnerSettings(
        image_size=width_and_height(arguments.size)[::-1] if arguments.size else None,
        device=arguments.device,
        engine_cache_dir=arguments.engine_cache_dir,
        workspace_mb=arguments.workspace_mb,
    )
    _check_gpu(arguments)
    needed = engine.find(bundle, arguments.backend, settings, arguments.compute_capability)
    start = time.perf_counter()
    built = _build(needed, arguments.force)
    facts = {
        "engine": str(needed.path),
        "bytes": needed.path.stat().st_size,
        "built": built,
        "seconds": round(time.perf_counter() - start, 3),
    }
    if not arguments.build_only:
        with create(arguments.backend, bundle, settings=settings) as runner:
            facts |= {"frame_ms": _frame_ms(runner), "runner": runner.description}
    if arguments.json:
        json.dump(facts, sys.stdout)
        print()
        return 0
    how = f"built in {facts['seconds']:.1f} s" if built else "was there already"
    print(f"{needed.path}: {facts['bytes'] / 2**20:.1f} MiB, {how}")
    if "frame_ms" in facts:
        print(f"{facts['runner']}: {facts['frame_ms']:.2f} ms for one image")
    return 0


def _build(needed: Engine, force: bool) -> bool:
    from tqdm import tqdm

    with tqdm(total=100, unit="%", leave=False, bar_format="{l_bar}{bar}| {desc}") as bar:

        def show(fraction: float, phase: str) -> None:
            bar.set_description_str(phase, refresh=False)
            bar.update(100 * fraction - bar.n)

        return needed.build(show, force)


def _check_gpu(arguments: argparse.Namespace) -> None:
    """That there is a GPU to build for or to try the engine on, before anything is built."""
    from penumbra.errors import PenumbraError
    from penumbra.vehicle.runners.base import RunnerError
    from penumbra.vehicle.runners.cuda import Cuda

    wanted = arguments.compute_capability
    if arguments.build_only and wanted is not None and arguments.backend == "tensorrt-rtx":
        return  # which needs none
    try:
        present = Cuda(arguments.device).capability
    except RunnerError as error:
        raise PenumbraError(
            f"{error}; to build for another machine: --backend tensorrt-rtx "
            "--compute-capability 8.9 --build-only"
        ) from error
    if wanted not in (None, present):
        raise PenumbraError(
            f"this machine's GPU has compute capability {present} and cannot try an engine for "
            f"{wanted}: use --backend tensorrt-rtx --build-only"
        )


def _frame_ms(runner: Runner) -> float:
    import numpy as np

    height, width = runner.image_size
    image = np.zeros((height, width, 3), np.uint8)
    start = time.perf_counter()
    runner.infer(image)
    return round(1e3 * (time.perf_counter() - start), 3)

"""Build the TensorRT engine of a bundle and store it in the engine cache.

A cached engine is not built again. Without --build-only one image is then run through the engine,
so that a failure shows now and not on the road.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penumbra.errors import PenumbraError
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
        help="of the images, for a bundle that takes any size",
    )
    parser.add_argument("--workspace-mb", type=int, help="limit of the engine's scratch memory")
    parser.add_argument(
        "--engine-cache-dir",
        type=Path,
        help="folder of the engines (default: engines in $PENUMBRA_CACHE or ~/.cache/penumbra)",
    )
    parser.add_argument("--device", type=int, default=0, help="number of the GPU (default: 0)")
    parser.add_argument("--build-only", action="store_true", help="do not run an image through it")
    parser.add_argument("--force", action="store_true", help="build even if it is in the cache")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> int:
    """Build or find the engine, try it, and print its path."""
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
    seconds, size = time.perf_counter() - start, needed.path.stat().st_size
    facts = {
        "engine": str(needed.path),
        "bytes": size,
        "built": built,
        "seconds": round(seconds, 3),
    }
    how = f"built in {seconds:.1f} s" if built else "found in the cache"
    lines = [f"{needed.path}: {size / 2**20:.1f} MiB, {how}"]
    if not arguments.build_only:
        with create(arguments.backend, bundle, settings=settings) as runner:
            frame_ms = _frame_ms(runner)
            facts |= {"frame_ms": frame_ms, "runner": runner.description}
            lines.append(f"{runner.description}: {frame_ms:.2f} ms for one image")
    print(json.dumps(facts) if arguments.json else "\n".join(lines))
    return 0


def _build(needed: Engine, force: bool) -> bool:
    from tqdm import tqdm

    with tqdm(total=100, unit="%", leave=False, bar_format="{l_bar}{bar}| {desc}") as bar:

        def show(fraction: float, phase: str) -> None:
            bar.set_description_str(phase, refresh=False)
            bar.update(100 * fraction - bar.n)

        return needed.build(show, force)


def _check_gpu(arguments: argparse.Namespace) -> None:
    """Raise if there is no GPU to build for, or to try the engine on, before building."""
    from penumbra.vehicle.runners import RunnerError
    from penumbra.vehicle.runners.cuda import Cuda

    wanted = arguments.compute_capability
    if arguments.build_only and wanted is not None and arguments.backend == "tensorrt-rtx":
        return  # needs no GPU
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

    height, width = runner.image_size  # an engine has one size
    if height is None or width is None:
        raise PenumbraError(f"{runner.description} takes images of any size")
    image = np.zeros((height, width, 3), np.uint8)
    start = time.perf_counter()
    runner.infer(image)
    return round(1e3 * (time.perf_counter() - start), 3)

"""Does the node on the vehicle say what PyTorch's Monte Carlo says? A bag decides.

    facts = verify(Path("drive"), "segnet-street", samples=300)

The bag goes through the real node process in lockstep; each frame's answer is compared with a
Monte-Carlo reference computed from the bundle's weights, and both with ground truth where the bag
has some. What comes out is one plain dictionary: printed, written as JSON, and laid out as a page.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import penumbra
from penumbra.bags import Bag, RawMessage, open_bag
from penumbra.bags.messages import header_stamp
from penumbra.bundle import Bundle, load_bundle
from penumbra.errors import PenumbraError
from penumbra.replay.process import NODE, Progress, send_through_node
from penumbra.share import bundle_folder
from penumbra.verification.comparison import Comparison
from penumbra.verification.frames import answers, chosen_frames, outputs_of
from penumbra.verification.panels import Film, film_rate, panels_of
from penumbra.verification.reference import References
from penumbra.verification.report import write_report
from penumbra.verification.tolerance import checked

__all__ = ["verify"]

_PACKAGES = ("torch", "numpy", "onnxruntime", "openvino", "tensorrt", "opencv-python-headless",
             "ros-jazzy-rclpy")  # fmt: skip


def verify(
    bag_path: Path,
    bundle_name: str,
    samples: int,
    *,
    seed: int = 0,
    frames: int | None = None,
    runner: str = "auto",
    threads: int = 0,
    topic: str | None = None,
    report: Path | None = None,
    video: Path | None = None,
    warn: Callable[[str], None] | None = None,
    progress: Progress = lambda work, total: work,
) -> dict[str, Any]:
    """Replay, compare, and write what was asked for; `frames` many, spread evenly over the bag.

    The node and PyTorch take `threads` each (0: one per core), one after the other. What is amiss
    with the bag but does not stop the reading goes to `warn` (default: standard error).
    `passed` in the result says whether every tolerance of the bundle's manifest is held.
    """
    bundle = load_bundle(bundle_folder(bundle_name))
    references = References(bundle, samples, seed)
    film = None if video is None else Film(video)  # refused before anything is computed
    with contextlib.ExitStack() as stack:
        stack.enter_context(_torch_threads(threads))
        bag = stack.enter_context(open_bag(bag_path, warn))
        images = bag.image_topic(topic).name
        stamps = chosen_frames(bag, images, frames)
        work = stack.enter_context(_workplace())
        _send(bag, bundle, images, stamps, work, runner, threads, progress)
        # Its warnings would be of the node's clock, by which it speaks before the first frame.
        recording = stack.enter_context(open_bag(work / "answers", lambda _: None))
        frames_again = partial(answers, bag, recording, images, stamps, bundle)
        comparison = Comparison(bundle)
        digest = hashlib.sha256()
        for answer in progress(frames_again(), len(stamps)):
            digest.update(answer.image.tobytes())
            comparison.add(answer, references.of(answer.image))
        facts = {
            "bag": {
                "name": bag_path.resolve().name,
                "topic": images,
                "frames": len(stamps),
                "sha256": digest.hexdigest(),  # of the frames as the network saw them
            },
            **_facts(bundle, comparison, references),
            "speed": _speed(comparison, references, next(frames_again()).image),
            "versions": _versions(recording),
        }
        pictures = partial(panels_of, frames_again, references, comparison, bundle)
        if film is not None:
            film.write(progress(pictures(range(len(stamps))), len(stamps)), film_rate(stamps))
        if report is not None:
            write_report(report, facts, comparison.density, pictures)
    return facts


def _send(
    bag: Bag, bundle: Bundle, images: str, stamps: list[int], work: Path, runner: str,
    threads: int, progress: Progress,
) -> None:  # fmt: skip
    """The chosen frames, and everything else that the node listens to, through the node."""
    wanted = set(stamps)

    def chosen(recorded: RawMessage) -> bool:
        return recorded.topic != images or header_stamp(recorded.data) in wanted

    done = send_through_node(
        bag,
        bundle,
        work / "answers",
        work / "node.log",
        answers=outputs_of(bundle),
        record_everything=False,
        runner=runner,
        threads=threads,
        image_topic=images,
        progress=lambda messages, total: progress(filter(chosen, messages), None),
    )
    if done.answered != len(stamps):
        raise PenumbraError(
            f"the node answered {done.answered} of {len(stamps)} frames: see {work / 'node.log'}"
        )


@contextlib.contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """As many for PyTorch in this process, for a while; 0 leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _workplace() -> Iterator[Path]:
    """A folder for the node's log and its answers, which stays only if something goes wrong."""
    work = Path(tempfile.mkdtemp(prefix="penumbra-verify-"))
    yield work
    shutil.rmtree(work, ignore_errors=True)


def _facts(bundle: Bundle, comparison: Comparison, references: References) -> dict[str, Any]:
    figures = comparison.figures()
    tolerances = (bundle.manifest["tolerances"] or {}).get("monte_carlo") or {}
    checks = checked(figures, tolerances)
    start = comparison.frames[0].stamp_ns
    return {
        "passed": all(check.is_good for check in checks),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "bundle": {
            "name": bundle.name,
            "sha256": bundle.sha256,
            **{
                key: bundle.manifest[key]
                for key in ("task", "variant", "precision", "calibration", "provenance")
            },
        },
        "reference": {
            "samples": references.samples,
            "seed": references.seed,
            "computed_in_this_run": references.computed,
        },
        "checks": [asdict(check) for check in checks],
        "figures": figures,
        "truth": comparison.truth(),
        "calibration": {
            method: {name: values.tolist() for name, values in asdict(calibration).items()}
            for method, calibration in comparison.calibration().items()
        },
        "coverage": comparison.coverage(),
        "per_frame": [
            {"time_s": (frame.stamp_ns - start) / 1e9, **frame.as_dict()}
            for frame in comparison.frames
        ],
    }


def _speed(comparison: Comparison, references: References, image: np.ndarray) -> dict[str, Any]:
    """The node's time for a frame against that of sampling it, both in this run.

    Sampling is timed on one frame with a few samples; N take what is computed once, and N times
    each. The first of the node's frames is left out where there are others: it warms up.
    """
    timed = comparison.frames[1:] or comparison.frames
    infer = float(np.median([frame.infer_ms for frame in timed])) / 1e3
    once, each = references.seconds_per_frame(image)
    sampled = {count: once + count * each for count in sorted({50, references.samples})}
    return {
        "node_infer_s": infer,
        "node_total_s": float(np.median([frame.total_ms for frame in timed])) / 1e3,
        "sample_s": each,
        "monte_carlo_s": {str(count): seconds for count, seconds in sampled.items()},
        "times_faster": {str(count): seconds / infer for count, seconds in sampled.items()},
        "torch_threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],  # of the machine: what else had its cores
        "height": image.shape[0],
        "width": image.shape[1],
    }


def _versions(recording: Bag) -> dict[str, str]:
    """Of everything that took part; model and runner as the node names them."""
    *_, last = recording.raw([f"{NODE}/stats"])
    stats = recording.decode(last)
    found = {"penumbra": penumbra.__version__, "model": stats.model, "runner": stats.runner}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found | {"python": platform.python_version(), "machine": platform.machine()}

"""Verify one bag: replay it through the node, compare every frame, write report and film."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

import penumbra
from penumbra.bags import Bag, RawMessage, open_bag
from penumbra.bags.messages import header_stamp
from penumbra.bundle import Bundle, load_bundle
from penumbra.errors import PenumbraError
from penumbra.replay.process import NODE, send_through_node
from penumbra.replay.progress import Progress, no_progress
from penumbra.share import bundle_folder
from penumbra.verification.comparison import Comparison
from penumbra.verification.facts import (
    BagFacts,
    BundleFacts,
    ReferenceFacts,
    SparsificationCurves,
    SpeedFacts,
    VerificationFacts,
)
from penumbra.verification.frames import answers, chosen_frames, outputs_of
from penumbra.verification.panels import Film, film_rate, panels_of
from penumbra.verification.reference import References
from penumbra.verification.report import write_report
from penumbra.verification.tolerance import checked

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
    progress: Progress = no_progress,
) -> VerificationFacts:
    """Replay and compare `frames` frames, spread evenly over the bag (None: all of them).

    The node and PyTorch use `threads` each (0: one per core), one after the other. `warn` gets the
    defects of the bag that do not prevent reading (default: standard error). `report` is the folder
    for the page and the figures, `video` the file for the panels of all frames.
    """
    bundle = load_bundle(bundle_folder(bundle_name))
    references = References(bundle, samples, seed)
    film = None if video is None else Film(video)  # a wrong name is refused before any work
    with contextlib.ExitStack() as stack:
        stack.enter_context(_torch_threads(threads))
        bag = stack.enter_context(open_bag(bag_path, warn))
        images = bag.image_topic(topic).name
        stamps = chosen_frames(bag, images, frames)
        work = stack.enter_context(_work_folder())
        _send(bag, bundle, images, stamps, work, runner, threads, progress)
        # Without warnings: the node publishes by its own clock before the first frame.
        recording = stack.enter_context(open_bag(work / "answers", lambda _: None))
        all_answers = partial(answers, bag, recording, images, stamps, bundle)
        comparison = Comparison(bundle)
        digest = hashlib.sha256()
        for answer in progress(all_answers(), len(stamps)):
            digest.update(answer.image.tobytes())
            comparison.add(answer, references.of(answer.image))
        start = comparison.frames[0].stamp_ns
        figures = comparison.figures()
        curves = comparison.sparsification()
        facts = VerificationFacts(
            bag=BagFacts(bag_path.resolve().name, images, len(stamps), digest.hexdigest()),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            bundle=_bundle_facts(bundle),
            reference=ReferenceFacts(references.samples, references.seed, references.computed),
            checks=checked(figures, bundle.monte_carlo_tolerances),
            figures=figures,
            truth=comparison.truth(),
            sparsification={name: SparsificationCurves.of(each) for name, each in curves.items()},
            coverage=comparison.coverage(),
            per_frame=[frame.facts(start) for frame in comparison.frames],
            speed=_speed(comparison, references, next(all_answers()).image),
            versions=_versions(recording),
        )
        panels = partial(panels_of, all_answers, references, comparison, bundle)
        if film is not None:
            film.write(progress(panels(range(len(stamps))), len(stamps)), film_rate(stamps))
        if report is not None:
            write_report(report, facts, comparison.density, panels)
    return facts


def _send(
    bag: Bag, bundle: Bundle, images: str, stamps: list[int], work: Path, runner: str,
    threads: int, progress: Progress,
) -> None:  # fmt: skip
    """Send the chosen frames, and all other topics that the node subscribes to."""
    wanted = set(stamps)

    def is_chosen(recorded: RawMessage) -> bool:
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
        keep=is_chosen,
        progress=progress,
    )
    if done.answered != len(stamps):
        raise PenumbraError(
            f"the node answered {done.answered} of {len(stamps)} frames: see {work / 'node.log'}"
        )


@contextlib.contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """Set the number of PyTorch's threads for a while; 0 leaves it unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _work_folder() -> Iterator[Path]:
    """A folder for the node's log and its answers, which is kept only after an error."""
    work = Path(tempfile.mkdtemp(prefix="penumbra-verify-"))
    yield work
    shutil.rmtree(work, ignore_errors=True)


def _bundle_facts(bundle: Bundle) -> BundleFacts:
    return BundleFacts(
        bundle.name,
        bundle.sha256,
        bundle.task,
        bundle.variant,
        bundle.precision,
        bundle.manifest["gains"],
        bundle.manifest["provenance"],
    )


def _speed(comparison: Comparison, references: References, image: np.ndarray) -> SpeedFacts:
    """The node's time for a frame, and that of sampling it, both measured in this run.

    Sampling is timed on one frame with a few samples; N samples take a fixed part and N times the
    time of one. The node's first frame warms up, and is left out if there are others.
    """
    timed = comparison.frames[1:] or comparison.frames
    infer = float(np.median([frame.infer_ms for frame in timed])) / 1e3
    once, each = references.seconds_per_frame(image)
    sampled = {count: once + count * each for count in sorted({50, references.samples})}
    return SpeedFacts(
        node_infer_s=infer,
        node_total_s=float(np.median([frame.total_ms for frame in timed])) / 1e3,
        sample_s=each,
        monte_carlo_s=sampled,
        times_faster={count: seconds / infer for count, seconds in sampled.items()},
        torch_threads=torch.get_num_threads(),
        load_average=os.getloadavg()[0],
        height=image.shape[0],
        width=image.shape[1],
    )


def _versions(recording: Bag) -> dict[str, str]:
    """Of the packages involved; model and runner as the node names them."""
    *_, last = recording.raw([f"{NODE}/stats"])
    stats = recording.decode(last)
    found = {"penumbra": penumbra.__version__, "model": stats.model, "runner": stats.runner}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found | {"python": platform.python_version(), "machine": platform.machine()}

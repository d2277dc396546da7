"""What the node adds to the bare model, and what a second camera on its engine costs.

The node runs in a process of its own, images go to it over DDS, and somebody subscribes to all of
its raw outputs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

import numpy as np
from tqdm import tqdm

from penumbra.bags.messages import IMAGE, START_NS, image, serialised
from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.files import cache_folder
from penumbra.replay.domain import private_domain
from penumbra.replay.exchange import PATIENCE, Exchange
from penumbra.replay.process import LOCKSTEP, node_process
from penumbra.replay.session import Session
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings

WARM_UP = 10  # frames that are not counted
PICTURES = 4
AT_ONCE = 2  # images of a camera: one in work, one that waits for it


@dataclass(frozen=True)
class Overhead:
    """Milliseconds; overhead is what is left of the node's time without inference."""

    bundle: str
    width: int
    height: int
    frames: int
    runner: str
    bare_p50: float  # the pipeline alone, in this process
    bare_p99: float
    total_p50: float  # in the node, from the image's arrival to the last publishing
    total_p99: float
    ratio: float  # the median of total / bare of the rounds
    infer_p50: float  # the bare model's work inside the node
    overhead_p50: float
    overhead_p99: float
    round_trip_p50: float  # from publishing the image to receiving the last of its outputs
    wait_p50: float
    convert_p50: float
    postprocess_p50: float
    publish_p50: float

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)


@dataclass(frozen=True)
class Cameras:
    """Frames per second of all cameras together, medians; `ratio` is the median of the rounds'."""

    bundle: str
    width: int
    height: int
    rounds: int
    frames_per_round: int  # with one camera, and as many with two
    runner: str
    ratio: float
    one_camera_fps: float
    two_cameras_fps: float


def measure(
    bundle: Bundle, frames: int, width: int, height: int, runner: str = "auto", threads: int = 0
) -> Overhead:
    """By turns: a picture of noise through the bare model here, and one through the node."""
    if frames < 10:
        raise PenumbraError(f"--repetitions is {frames}: at least 10 images have to be sent")
    pictures = _pictures(width, height)
    sent = list(map(_message, pictures))
    bare, trips, stats = [], [], []
    config = PipelineConfig(runner, settings=RunnerSettings(threads=threads))
    with Pipeline(bundle, config) as pipeline, _exchange(bundle, runner, threads) as exchange:
        exchange.open(sent[0])
        for number in tqdm(range(WARM_UP + frames), unit="frame", disable=None, leave=False):
            start = time.perf_counter()
            pipeline.process(pictures[number % PICTURES])
            bare.append((time.perf_counter() - start) * 1e3)
            trips.append(exchange.ask(sent[number % PICTURES]) * 1e3)
            stats.append(exchange.stats)
    bare, trips, stats = bare[WARM_UP:], trips[WARM_UP:], stats[WARM_UP:]
    total = [s.total_ms for s in stats]
    overhead = [s.total_ms - s.infer_ms for s in stats]
    return Overhead(
        bundle=bundle.name,
        width=width,
        height=height,
        frames=frames,
        runner=stats[-1].runner,
        bare_p50=_percentile(bare, 50),
        bare_p99=_percentile(bare, 99),
        total_p50=_percentile(total, 50),
        total_p99=_percentile(total, 99),
        ratio=round(median(t / b for t, b in zip(total, bare, strict=True)), 4),
        infer_p50=_percentile([s.infer_ms for s in stats], 50),
        overhead_p50=_percentile(overhead, 50),
        overhead_p99=_percentile(overhead, 99),
        round_trip_p50=_percentile(trips, 50),
        **{
            f"{part}_p50": _percentile([getattr(s, f"{part}_ms") for s in stats], 50)
            for part in ("wait", "convert", "postprocess", "publish")
        },
    )


def compare_cameras(
    bundle: Bundle,
    rounds: int,
    frames: int,
    width: int,
    height: int,
    runner: str = "auto",
    threads: int = 0,
) -> Cameras:
    """By turns: `frames` images of one camera, and as many of two, each as fast as answers come."""
    names = ("front", "left")
    sent = list(map(_message, _pictures(width, height)))
    rates = []
    with _exchange(bundle, runner, threads, names) as exchange:
        exchange.open(sent[0])
        for number in tqdm(range(-1, rounds), unit="round", disable=None, leave=False):
            pair = [_rate(exchange, sent, frames, used) for used in (names[:1], names)]
            if number >= 0:
                rates.append(pair)
        runs_on = exchange.stats.runner
    return Cameras(
        bundle=bundle.name,
        width=width,
        height=height,
        rounds=rounds,
        frames_per_round=frames,
        runner=runs_on,
        ratio=median(two / one for one, two in rates),
        one_camera_fps=median(one for one, _ in rates),
        two_cameras_fps=median(two for _, two in rates),
    )


def _rate(exchange: Exchange, sent: list[bytes], frames: int, cameras: Sequence[str]) -> float:
    """Frames per second while every camera has always two images with the node.

    From the first answer to the last: the engine is never without work in between.
    """
    camera_of: dict[int, str] = {}
    answers: list[float] = []

    def send(camera: str) -> None:
        if len(answers) + len(exchange.under_way) < frames:
            camera_of[exchange.send(sent[len(camera_of) % PICTURES], camera)] = camera

    def answered(stamp: int, at: float) -> None:
        answers.append(at)
        camera = camera_of[stamp]
        # The node answers in order: what is older was pushed out by a newer one, and will not come.
        for older in [s for s in exchange.under_way if s < stamp and camera_of[s] == camera]:
            del exchange.under_way[older]
            send(camera)
        send(camera)

    exchange.on_answer = answered
    for camera in cameras:
        for _ in range(AT_ONCE):
            send(camera)
    if not exchange.session.wait(lambda: len(answers) >= frames, PATIENCE + 5 * frames):
        raise PenumbraError(f"{frames - len(answers)} of {frames} images were not answered")
    return (frames - 1) / (answers[-1] - answers[0])


@contextlib.contextmanager
def _exchange(
    bundle: Bundle, runner: str, threads: int, cameras: Sequence[str] = ("",)
) -> Iterator[Exchange]:
    """A node for this bundle, and somebody to talk to it."""
    log = cache_folder() / "benchmark.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    parameters = {"bundle": bundle.path.resolve(), "runner": runner, "threads": threads}
    parameters |= LOCKSTEP
    if len(cameras) > 1:
        parameters["cameras"] = ",".join(cameras)
    with private_domain(), node_process(parameters, log) as node, Session() as session:
        yield Exchange(session, node, bundle.task, cameras)


def _pictures(width: int, height: int) -> list[np.ndarray]:
    noise = np.random.default_rng(0)
    shape = (height, width, 3)
    return [noise.integers(0, 256, shape, dtype=np.uint8) for _ in range(PICTURES)]


def _message(picture: np.ndarray) -> bytes:
    return serialised(image(START_NS, "camera", picture, "bgr8"), IMAGE)


def _percentile(values: list[float], percent: int) -> float:
    return round(quantiles(values, n=100, method="inclusive")[percent - 1], 3)

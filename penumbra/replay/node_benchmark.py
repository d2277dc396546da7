"""Overhead of the node over the bare model, and throughput with a second camera on its engine.

The node runs in its own process and receives images over DDS; all raw outputs are subscribed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles

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
IMAGES = 4
AT_ONCE = 2  # images of a camera: one being processed, one waiting


@dataclass(frozen=True)
class NodeOverhead:
    """Milliseconds; the overhead is the node's time minus inference."""

    bundle: str
    width: int
    height: int
    frames: int
    runner: str
    bare_p50: float  # the pipeline alone, in this process
    bare_p99: float
    total_p50: float  # in the node, from the arrival of the image to its last output
    total_p99: float
    ratio: float  # median of total / bare, frame by frame
    infer_p50: float  # inference inside the node
    overhead_p50: float
    overhead_p99: float
    round_trip_p50: float  # from publishing the image to receiving the last of its outputs
    wait_p50: float
    convert_p50: float
    postprocess_p50: float
    publish_p50: float

    def as_dict(self) -> dict[str, float | str]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class CameraThroughput:
    """Median frames per second of all cameras together; `ratio` is the median over the rounds."""

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
) -> NodeOverhead:
    """Alternate: a noise image through the bare model here, and one through the node."""
    if frames < 10:
        raise PenumbraError(f"--repetitions is {frames}: at least 10 images have to be sent")
    images = _noise_images(width, height)
    sent = list(map(_message, images))
    bare, trips, stats = [], [], []
    config = PipelineConfig(runner, settings=RunnerSettings(threads=threads))
    with Pipeline(bundle, config) as pipeline, _exchange(bundle, runner, threads) as exchange:
        exchange.open(sent[0])
        for number in tqdm(range(WARM_UP + frames), unit="frame", disable=None, leave=False):
            start = time.perf_counter()
            pipeline.process(images[number % IMAGES])
            bare.append((time.perf_counter() - start) * 1e3)
            trips.append(exchange.ask(sent[number % IMAGES]) * 1e3)
            stats.append(exchange.stats)
    bare, trips, stats = bare[WARM_UP:], trips[WARM_UP:], stats[WARM_UP:]
    total = [s.total_ms for s in stats]
    overhead = [s.total_ms - s.infer_ms for s in stats]
    return NodeOverhead(
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
) -> CameraThroughput:
    """Alternate: `frames` images of one camera, and as many of two, at the rate of the answers."""
    names = ("front", "left")
    sent = list(map(_message, _noise_images(width, height)))
    rates = []
    with _exchange(bundle, runner, threads, names) as exchange:
        exchange.open(sent[0])
        for number in tqdm(range(-1, rounds), unit="round", disable=None, leave=False):
            pair = [_rate(exchange, sent, frames, used) for used in (names[:1], names)]
            if number >= 0:
                rates.append(pair)
        runs_on = exchange.stats.runner
    return CameraThroughput(
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
    """Frames per second while the node always has two images of every camera.

    From the first answer to the last, so that the engine is never idle in between.
    """
    camera_of: dict[int, str] = {}
    answers: list[float] = []

    def send(camera: str) -> None:
        if len(answers) + len(exchange.under_way) < frames:
            camera_of[exchange.send(sent[len(camera_of) % IMAGES], camera)] = camera

    def answered(stamp: int, at: float) -> None:
        answers.append(at)
        camera = camera_of[stamp]
        # The node answers in order: older images were replaced by newer ones, and are not answered.
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
    """A node for this bundle, and an exchange with it."""
    log = cache_folder() / "benchmark.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    parameters = {"bundle": bundle.path.resolve(), "runner": runner, "threads": threads, **LOCKSTEP}
    if len(cameras) > 1:
        parameters["cameras"] = ",".join(cameras)
    with private_domain(), node_process(parameters, log) as node, Session() as session:
        yield Exchange(session, node, bundle.task, cameras)


def _noise_images(width: int, height: int) -> list[np.ndarray]:
    noise = np.random.default_rng(0)
    shape = (height, width, 3)
    return [noise.integers(0, 256, shape, dtype=np.uint8) for _ in range(IMAGES)]


def _message(pixels: np.ndarray) -> bytes:
    return serialised(image(START_NS, "camera", pixels, "bgr8"), IMAGE)


def _percentile(values: list[float], percent: int) -> float:
    return round(quantiles(values, n=100, method="inclusive")[percent - 1], 3)

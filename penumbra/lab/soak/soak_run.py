"""A soak test: the real node under images at a camera's rate for a long time.

The node runs in a separate process. Its memory, latency and lost frames are measured from outside.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from penumbra.bags import Bag, open_bag, write_drive
from penumbra.bundle import load_bundle
from penumbra.errors import PenumbraError
from penumbra.files import cache_folder
from penumbra.offline.scenes.street_drive import street_drive
from penumbra.replay.load_record import LoadRecord
from penumbra.replay.process import Progress, need_ros, node_process
from penumbra.share import bundle_folder

SECONDS, RATE_HZ, SEED = 3.0, 10.0, 4  # of the rendered drive, which is sent in a loop
LOG = "soak.log"


@dataclass(frozen=True)
class SoakPlan:
    """Options of a soak test.

    Without a bag a street is rendered; without a rate it follows from the node's speed.
    """

    minutes: float
    bundle: str = "segnet-street"
    rate_hz: float | None = None
    bag: Path | None = None
    image_topic: str | None = None
    runner: str = "auto"
    threads: int = 0

    def __post_init__(self) -> None:
        for name, value in (("minutes", self.minutes), ("rate-hz", self.rate_hz)):
            if value is not None and not 0 < value < float("inf"):
                raise PenumbraError(f"--{name} is {value:g}: give a number above 0")


def soak(
    plan: SoakPlan,
    stop: threading.Event,
    on_start: Callable[[LoadRecord], None] = lambda record: None,
    on_status: Callable[[float, str], None] = lambda seconds, text: None,
    progress: Progress = lambda work, total: work,
) -> LoadRecord:
    """Run the test; `stop` ends it early.

    `on_start` gets the record when the rate is known, `on_status` regularly the seconds and a line;
    `progress` is for the rendering.
    """
    need_ros()
    from penumbra.replay import sustained_load as with_ros
    from penumbra.replay.domain import private_domain

    bundle = load_bundle(bundle_folder(plan.bundle))
    log = cache_folder() / LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    with _drive(plan, progress) as bag:
        parameters = {
            "bundle": str(bundle.path.resolve()),
            "runner": plan.runner,
            "threads": plan.threads,
            "compressed": "Compressed" in bag.image_topic(plan.image_topic).type,
            # Best effort loses large images in transit. With reliable delivery and a queue, lost
            # frames were dropped by the node, which counts them.
            "qos.input_reliability": "reliable",
            "qos.input_depth": 5,
            "qos.output_depth": 10,
            "max_age": 0.0,  # late frames show as latency
        }
        with private_domain(), node_process(parameters, log) as node:
            return with_ros.soak(
                bag, plan.image_topic, bundle, node, plan.minutes * 60, plan.rate_hz, stop,
                on_start, on_status,
            )  # fmt: skip


@contextlib.contextmanager
def _drive(plan: SoakPlan, progress: Progress) -> Iterator[Bag]:
    with TemporaryDirectory() as folder:
        path = plan.bag
        if path is None:
            path = Path(folder) / "drive"
            drive = street_drive(SEED, SECONDS, RATE_HZ)
            write_drive(replace(drive, frames=progress(drive.frames, drive.total)), path)
        with open_bag(path) as bag:
            yield bag

"""The frames of a bag with the node's answers and the ground truth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from penumbra.bags import DEPTH_TOPIC, LABELS_TOPIC, Bag, RawMessage, array_of
from penumbra.bags.messages import header_stamp
from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.replay.process import NODE
from penumbra.safe_yaml import read_yaml
from penumbra.vehicle.conversions import compressed_image_of, image_of
from penumbra.vehicle.image_fit import fit_to_size


@dataclass(frozen=True)
class Answer:
    """One frame as input of the network, with the node's maps, and ground truth if known."""

    stamp_ns: int
    image: np.ndarray  # in the bundle's channel order
    prediction: np.ndarray  # labels, or depth in metres
    std: np.ndarray  # of class probabilities (mean), or of the disparity
    confidence: np.ndarray | None  # the largest mean class probability, in steps of 1/255
    disparity: np.ndarray | None
    truth: np.ndarray | None  # labels by the bundle's numbers, 255 unknown; or metres, NaN unknown
    infer_ms: float
    total_ms: float


def outputs_of(bundle: Bundle) -> tuple[str, ...]:
    """The outputs of the node that are compared."""
    if bundle.task == "segmentation":
        return ("prediction", "uncertainty", "confidence", "stats")
    return ("prediction", "disparity", "disparity/std", "stats")


def chosen_frames(bag: Bag, topic: str, count: int | None) -> list[int]:
    """The stamps of `count` frames spread evenly over the bag (None: of all)."""
    stamps = [header_stamp(recorded.data) for recorded in bag.raw([topic])]
    if not stamps:
        raise PenumbraError(f"{topic} in {bag.path} has no frame")
    if len(set(stamps)) < len(stamps):
        raise PenumbraError(
            f"{len(stamps) - len(set(stamps))} frames of {topic} in {bag.path} have the stamp of "
            "another one: answers are matched by stamp; record it again"
        )
    if count is None or count >= len(stamps):
        return stamps
    if count < 1:
        raise PenumbraError(f"--frames is {count}: give a whole number from 1 on")
    return [stamps[place] for place in np.arange(count) * len(stamps) // count]


def answers(
    bag: Bag, recording: Bag, topic: str, stamps: Sequence[int], bundle: Bundle
) -> Iterator[Answer]:
    """The frames in the order of `stamps`, read lazily from both bags."""
    wanted = set(stamps)
    images = _Stream(bag, topic, wanted)
    outputs = {
        name: _Stream(recording, f"{NODE}/{name}", wanted)
        for name in outputs_of(bundle)
        if name != "stats"
    }
    times = _timings(recording)
    truths = _Truth(bag, bundle, wanted)
    segments = bundle.task == "segmentation"
    read = compressed_image_of if "Compressed" in bag.topics[topic].type else image_of
    size = bundle.input.size
    for stamp in stamps:
        maps = {name: array_of(stream.at(stamp)) for name, stream in outputs.items()}
        infer_ms, total_ms = times[stamp]
        yield Answer(
            stamp,
            fit_to_size(read(images.at(stamp), bundle.input.channel_order), size),
            maps["prediction"],
            maps["uncertainty" if segments else "disparity/std"],
            maps["confidence"] / np.float32(255) if segments else None,
            None if segments else maps["disparity"],
            truths.at(stamp, maps["prediction"].shape),
            infer_ms,
            total_ms,
        )


class _Stream:
    """The messages of one topic by stamp, requested mostly in order."""

    def __init__(self, bag: Bag, topic: str, wanted: set[int]) -> None:
        self._bag, self._wanted = bag, wanted
        self._messages = bag.raw([topic])
        self._waiting: dict[int, RawMessage] = {}

    def at(self, stamp: int) -> Any:
        """The message with this stamp; None if there is none."""
        while stamp not in self._waiting:
            recorded = next(self._messages, None)
            if recorded is None:
                return None
            if (found := header_stamp(recorded.data)) in self._wanted:
                self._waiting[found] = recorded
        return self._bag.decode(self._waiting.pop(stamp))


class _Truth:
    """Ground truth in the class numbers and at the size of the node's maps."""

    def __init__(self, bag: Bag, bundle: Bundle, wanted: set[int]) -> None:
        self._segments = bundle.task == "segmentation"
        topic = LABELS_TOPIC if self._segments else DEPTH_TOPIC
        self._stream = _Stream(bag, topic, wanted) if topic in bag.topics else None
        self._numbers = _label_numbers(bag.path, [spec.name for spec in bundle.classes])

    def at(self, stamp: int, shape: tuple[int, ...]) -> np.ndarray | None:
        message = None if self._stream is None else self._stream.at(stamp)
        if message is None:
            return None
        truth = array_of(message)
        if truth.shape != shape:
            truth = cv2.resize(truth, shape[::-1], interpolation=cv2.INTER_NEAREST)
        return self._numbers[truth] if self._segments else truth


def _label_numbers(path: Path, classes: list[str]) -> np.ndarray:
    """The bundle's class number for each label of the bag; classes of no bundle are unknown.

    Matched by name if the bag has the names; otherwise the numbers are assumed to be the same.
    """
    numbers = np.full(256, IGNORE, np.uint8)
    named = _class_names(path) or classes
    for number, name in enumerate(named[:256]):
        if name in classes:
            numbers[number] = classes.index(name)
    return numbers


def _class_names(path: Path) -> list[str]:
    """The note `classes` that `penumbra bag` writes into a bag."""
    file = (path if path.is_dir() else path.parent) / "metadata.yaml"
    try:
        facts = read_yaml(file, "record it again")["rosbag2_bagfile_information"]
        return [name.strip() for name in facts["custom_data"]["classes"].split(",")]
    except (OSError, KeyError, TypeError, AttributeError, PenumbraError):  # a bag from elsewhere
        return []


def _timings(recording: Bag) -> dict[int, tuple[float, float]]:
    """Milliseconds of inference and in total, by stamp.

    The last message with a stamp counts: one that the node's timer sends while it publishes a frame
    may carry the times of the frame before.
    """
    times: dict[int, tuple[float, float]] = {}
    for recorded in recording.raw([f"{NODE}/stats"]):
        message = recording.decode(recorded)
        times[header_stamp(recorded.data)] = float(message.infer_ms), float(message.total_ms)
    return times

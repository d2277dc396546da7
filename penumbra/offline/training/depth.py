"""Training of a depth network on stereo pairs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from penumbra.bundle import DepthSpec
from penumbra.errors import PenumbraError
from penumbra.offline.datasets.kitti import (
    KittiRecording,
    find_measured,
    find_pairs,
    read_depth,
    readable,
)
from penumbra.offline.datasets.rgb_images import read_rgb_image
from penumbra.offline.datasets.stereo_matching import UNKNOWN, match_both
from penumbra.offline.evaluation.depth import depth_errors_of, depth_predictor
from penumbra.offline.models import load_model
from penumbra.offline.models.monodepth import KITTI_RIG, Monodepth
from penumbra.offline.models.network import Network, normalised_for
from penumbra.offline.scenes.dataset import cached_stereo, kitti_plan
from penumbra.offline.training.settings import MonodepthOptions
from penumbra.offline.training.stereo_augmentation import StereoSample, random_stereo_view
from penumbra.offline.training.stereo_losses import StereoLossWeights, stereo_loss
from penumbra.offline.training.task import ViewDataset
from penumbra.options import least_and_most, width_and_height

HELD_OUT = 0.1  # share of each folder's pairs, its last ones, for validation
_BASELINE_TOLERANCE = 0.05  # relative; KITTI's rigs differ by less (0.533 to 0.54 m)


@dataclass
class StereoViews(ViewDataset):
    """Augmented stereo pairs, and their known disparities."""

    pairs: list[KittiRecording]
    size: tuple[int, int]
    zoom: tuple[float, float]
    grey: float
    seed: int
    scale: DepthSpec
    with_known: bool
    with_hints: bool

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        epoch, index = key
        random = np.random.default_rng((self.seed, epoch, index))
        pair = self.pairs[index]
        left, right = (read_rgb_image(file) for file in pair.stereo_pair())
        height, width = left.shape[:2]
        sample = StereoSample(left, right, *self._known(pair, (height, width)))
        view = random_stereo_view(sample, self.size, self.zoom, self.grey, random)
        return view.left, view.right, np.stack((view.known, view.known_right))

    def _known(self, pair: KittiRecording, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Known disparities of both images: measured, or with hints matched."""
        measured = self.with_known and pair.depth is not None
        if self.with_known and self.with_hints and not measured:
            return _matched(pair)
        files = (pair.depth, pair.depth_right) if measured else (None, None)
        left, right = (
            np.full(shape, UNKNOWN, np.float32) if file is None
            else disparity_of(read_depth(file), pair, self.scale)
            for file in files
        )  # fmt: skip
        return left, right


def disparity_of(depth: np.ndarray, recording: KittiRecording, scale: DepthSpec) -> np.ndarray:
    """Depth as disparity in fractions of the width, `UNKNOWN` where it is 0."""
    focal, baseline = scale.focal_per_width, scale.baseline_m
    if recording.calibration:
        focal = recording.calibration.camera.focal_per_width
        baseline = recording.calibration.baseline_m or baseline
    product = np.float32(focal * baseline)
    return np.where(depth > 0, product / np.maximum(depth, 1e-3), np.float32(UNKNOWN))


@lru_cache(maxsize=2000)  # 1 MB each at half of KITTI's size
def _matched(pair: KittiRecording) -> tuple[np.ndarray, np.ndarray]:
    left, right = (read_rgb_image(file) for file in pair.stereo_pair())
    return match_both(left, right)


@dataclass
class DepthTask:
    """Training of depth from stereo pairs."""

    model: Network
    train: list[KittiRecording]
    validation: list[KittiRecording]
    weights: StereoLossWeights
    zoom: tuple[float, float] = (1.0, 1.0)
    grey: float = 0.0
    hints: bool = False
    seed: int = 0
    metric: str = "a1"

    def __post_init__(self) -> None:
        self.scale = DepthSpec(**self.model.config["depth"])

    def data(self) -> ViewDataset:
        """Augmented training pairs."""
        height, width = self.model.config["size"]
        known = self.weights.known > 0
        return StereoViews(
            self.train,
            (height, width),
            self.zoom,
            self.grey,
            self.seed,
            self.scale,
            known,
            self.hints,
        )

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The stereo loss of a batch."""
        left, right, known = batch
        disparities = [d.float() for d in model(normalised_for(self.model, left))]
        left, right = (image.permute(0, 3, 1, 2).float() / 255 for image in (left, right))
        furthest = self.scale.focal_per_width * self.scale.baseline_m / self.scale.max_depth_m
        # In full precision: SSIM's differences of squares cancel in half precision.
        with torch.autocast(left.device.type, enabled=False):
            return stereo_loss(disparities, left, right, self.weights, known, furthest)

    def validate(self, model: Network) -> dict[str, float]:
        """Errors on the validation frames."""
        errors = depth_errors_of(depth_predictor(model), self.validation, self.scale)
        figures = errors.summary()
        return {name: figures[name] for name in ("abs_rel", "rmse", "a1")}


def monodepth_task(options: MonodepthOptions, seed: int) -> DepthTask:
    """Monodepth on stereo pairs, from the options of the command line."""
    width, height = width_and_height(options.size)
    zoom = least_and_most(options.zoom, "--zoom")
    if zoom[0] < 1:
        raise PenumbraError(f"--zoom {options.zoom}: give at least 1")
    depth = KITTI_RIG | {
        "baseline_m": options.baseline,
        "focal_per_width": options.focal_per_width,
    }
    model = Monodepth(
        encoder=options.encoder,
        width=options.width,
        rate=options.dropout_rate,
        batch_norm=options.batch_norm,
        size=(height, width),
        depth=depth,
    )
    multiple = model.pad.multiple
    if height % multiple or width % multiple:
        raise PenumbraError(
            f"--size {options.size}: give multiples of {multiple} for the {options.encoder} encoder"
        )
    if options.init:
        _load_weights(model, options.init)
    train, validation = _data(options, (height, width))
    weights = StereoLossWeights(known=options.known)
    return DepthTask(model, train, validation, weights, zoom, options.grey, options.hints, seed)


def _data(
    options: MonodepthOptions, size: tuple[int, int]
) -> tuple[list[KittiRecording], list[KittiRecording]]:
    folders = [Path(folder) for folder in options.data or ()]
    if options.rendered:
        plan = kitti_plan(size, baseline_m=options.baseline)
        folders.append(cached_stereo(plan, options.rendered, _bar("rendering")))
    if not folders:
        raise PenumbraError(
            "no training pairs: give --data FOLDER … (KITTI raw, odometry, or left/ and right/) "
            "or --rendered N"
        )
    train, validation, skipped = [], [], []
    for folder in folders:
        pairs, faults = _read(find_pairs(folder), options)
        skipped += faults
        for pair in pairs:
            _refuse_other_rig(pair, options.baseline)
        kept = len(pairs) if options.validation else round(len(pairs) * (1 - HELD_OUT))
        train += pairs[:kept]
        validation += pairs[kept:]
    if options.validation:
        validation, faults = _read(find_measured(Path(options.validation)), options)
        skipped += faults
    if not train or not validation:
        raise PenumbraError(
            f"{len(train)} training pairs and {len(validation)} validation pairs are too few; "
            "a tenth of each folder is held out unless --validation FOLDER is given"
        )
    for line in skipped:
        print(f"skipped: {line}", file=sys.stderr)
    if options.skip_bad:
        total = len(train) + len(validation) + len(skipped)
        print(f"skipped {len(skipped)} of {total} frames")
    return train, validation


def _read(
    recordings: list[KittiRecording], options: MonodepthOptions
) -> tuple[list[KittiRecording], list[str]]:
    bar = _bar("checking files")
    return readable(recordings, options.skip_bad, lambda work: bar(work, len(recordings)))


def _bar(text: str) -> Callable[[Iterable[Any], int], Iterable[Any]]:
    return lambda work, total: tqdm(work, total=total, desc=text, unit="frame", delay=2)


def _refuse_other_rig(pair: KittiRecording, baseline_m: float) -> None:
    found = pair.calibration.baseline_m if pair.calibration else None
    if found is not None and abs(found - baseline_m) > _BASELINE_TOLERANCE * baseline_m:
        raise PenumbraError(
            f"{pair.left} has a baseline of {found:.3f} m, --baseline is {baseline_m:g}: train on "
            "pairs of one rig and give its baseline"
        )


def _load_weights(model: Network, path: str) -> None:
    other = load_model(path)
    try:
        model.load_state_dict(other.state_dict())
    except RuntimeError as error:
        raise PenumbraError(f"--init {path} is another network: {other.config}") from error

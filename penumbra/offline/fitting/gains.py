"""Fit the gains of a trained network's variance to Monte Carlo, on pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from penumbra.propagation import Propagated
    from penumbra.propagation.gain_fitting import Example

_HELD_OUT = 0.125  # the share of the views that is only judged by

Progress = Callable[[Iterable, str], Iterable]


@dataclass(frozen=True)
class GainFitOptions:
    """How a fit is made. The rules are those that the network will be exported with.

    `variance` is "truthful", which follows the noise of every dropout, or "fast", which follows
    that of the last one only: its gains take over what the others would have brought. That costs
    the layers behind the last dropout a second time, and not all behind the first.
    """

    views: int = 160
    samples: int = 24
    steps: int = 400
    seed: int = 0
    relu: str = "moment"
    softmax: str = "moment"
    variance: str = "truthful"
    size: tuple[int, int] = (192, 256)  # of a view: height, width
    scales: tuple[float, float] = (0.6, 1.3)
    strange: float = 0.0  # share of the views that are made like nothing the network has seen
    rate: float = 0.03  # of the descent

    def __post_init__(self) -> None:
        if self.samples < 2 or self.steps < 10 or self.views < 2:
            raise PenumbraError(
                f"{self.views} views, {self.samples} samples, {self.steps} steps: at least 2, 2 "
                "and 10 are needed"
            )
        if min(self.size) < 32:
            raise PenumbraError(f"--size is {self.size[1]}x{self.size[0]}: give 32x32 or more")
        if not 0 < self.scales[0] <= self.scales[1] < float("inf"):
            raise PenumbraError(f"--scales is {self.scales}: give LEAST,MOST, above 0")
        if not 0 <= self.strange <= 1:
            raise PenumbraError(f"--strange is {self.strange:g}: give a share, 0 to 1")
        if not 0 < self.rate < float("inf"):
            raise PenumbraError(f"--rate is {self.rate:g}: give a number above 0")


def fit_network_gains(
    checkpoint: Path | str,
    pictures: Sequence[np.ndarray],
    options: GainFitOptions,
    progress: Progress = lambda work, _: work,
    start: tuple[dict[str, Tensor], dict[str, Any]] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Fit a network's gains to Monte Carlo on views of `pictures` (RGB); returns them and facts.

    A view is a random part of a picture in other light, as in training; of a network with a size
    of its own it is the whole picture. An eighth of the views is not fitted to: on them the facts
    tell the relative error and the ratio of the standard deviation, before and after. `start` is an
    earlier calibration (see `load_calibration`) to go on with.
    """
    import torch

    from penumbra.offline.export.walk import walk_of
    from penumbra.offline.models import load_model, read_header
    from penumbra.propagation.gain_fitting import fit_gains, with_gains

    if not pictures:
        raise PenumbraError("no pictures to calibrate on")
    began, earlier = start or (None, {})
    for name in ("relu", "softmax"):  # gains are right for the rules that they were fitted with
        asked = getattr(options, name)
        if earlier.get(name, asked) != asked:
            raise PenumbraError(
                f"the calibration to go on with was fitted with {name}={earlier[name]!r}, not "
                f"{asked!r}: ask for the same, or begin anew"
            )
    architecture = read_header(checkpoint)["architecture"]
    model = load_model(checkpoint)
    walk = walk_of(model, architecture, options.relu, options.softmax, variance=options.variance)
    examples = [
        _example(model, view, options.samples, number)
        for number, view in enumerate(progress(_views(model, pictures, options), "Monte Carlo"))
    ]
    kept = max(1, round(len(examples) * (1 - _HELD_OUT)))
    judged = examples[kept:] or examples
    with torch.no_grad():
        before = _likeness(with_gains(walk, began) if began else walk, judged)
    gains = fit_gains(
        walk,
        examples[:kept],
        options.steps,
        options.rate,
        seed=options.seed,
        result=_last,
        progress=lambda work: progress(work, "fitting"),
        start=began,
    )
    with torch.no_grad():
        after = _likeness(with_gains(walk, gains), judged)
    digest = hashlib.sha256()
    for picture in pictures:
        digest.update(picture.tobytes())
    facts = {
        **{name: list(v) if isinstance(v, tuple) else v for name, v in asdict(options).items()},
        "pictures": len(pictures),
        "pictures_sha256": digest.hexdigest(),
        "std_relative_error": {"before": before[0], "after": after[0]},
        "std_ratio": {"before": before[1], "after": after[1]},
        **({"began_with": earlier} if earlier else {}),
    }
    return gains, facts


def _views(
    model: nn.Module, pictures: Sequence[np.ndarray], options: GainFitOptions
) -> Iterable[np.ndarray]:
    import cv2
    import numpy as np

    from penumbra.offline.training.augmentation import estranged, jitter, random_view

    random = np.random.default_rng(options.seed)
    own = model.config.get("size")
    for _ in range(options.views):
        picture = pictures[int(random.integers(len(pictures)))]
        if own is None:
            blank = np.zeros(picture.shape[:2], np.uint8)
            view = random_view(picture, blank, options.size, options.scales, random)[0]
        else:
            view = jitter(cv2.resize(picture, (own[1], own[0])), random)
        is_strange = options.strange > 0 and random.random() < options.strange
        yield estranged(view, random) if is_strange else view


def _example(model: nn.Module, view: np.ndarray, samples: int, seed: int) -> Example:
    import torch

    from penumbra.offline.models.segnet import Probabilities, SegNet, normalise
    from penumbra.propagation.gain_fitting import Example
    from penumbra.propagation.montecarlo import monte_carlo

    x = normalise(torch.from_numpy(view)[None], model.config["mean"], model.config["std"])
    x = x.contiguous(memory_format=torch.channels_last)
    sampled = Probabilities(model).eval() if isinstance(model, SegNet) else model
    reference = monte_carlo(sampled, x, samples=samples, seed=seed)
    return Example(x, reference.mean.float(), reference.std.float(), samples)


def _last(output: Any) -> Any:
    """Of scores and probabilities the probabilities; of one value that."""
    return output[-1] if isinstance(output, tuple) else output


def _likeness(walk: Propagated, examples: Sequence[Example]) -> tuple[float, float]:
    """Relative error and ratio of the map of mean standard deviations."""
    off = found = true = 0.0
    for example in examples:
        ours = _last(walk(example.input)).std.mean(1)
        theirs = example.unbiased_std.mean(1)
        off += float((ours - theirs).abs().mean())
        found, true = found + float(ours.mean()), true + float(theirs.mean())
    return off / true, found / true

"""Fitting the gains of a trained network's variance to Monte Carlo, on images.

No torch at import: the command line reads the defaults of `GainFitOptions` for its `--help`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError
from penumbra.offline.gains_file import Change, GainFacts, StoredGains

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from penumbra.offline.models.network import Network
    from penumbra.propagation import Propagated
    from penumbra.propagation.gain_fitting import Example

_HELD_OUT = 0.125  # share of the views that are evaluated, not fitted to

Progress = Callable[[Iterable[Any], str], Iterable[Any]]
"""Wraps the work of a stage, such as in a progress bar; the text is the stage's name."""


@dataclass(frozen=True)
class GainFitOptions:
    """Options of a fit. `relu` and `softmax` are the rules of the export.

    `variance` is "truthful", which propagates the noise of every dropout, or "fast", which
    propagates that of the last one only; its gains compensate for the others. Then only the layers
    behind the last dropout compute a variance.
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
    corrupted: float = 0.0  # share of corrupted views
    rate: float = 0.03  # learning rate

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
        if not 0 <= self.corrupted <= 1:
            raise PenumbraError(f"--corrupted is {self.corrupted:g}: give a share from 0 to 1")
        if not 0 < self.rate < float("inf"):
            raise PenumbraError(f"--rate is {self.rate:g}: give a number above 0")


def fit_network_gains(
    checkpoint: Path | str,
    images: Sequence[np.ndarray],
    options: GainFitOptions,
    progress: Progress = lambda work, _: work,
    start: StoredGains | None = None,
) -> tuple[dict[str, Tensor], GainFacts]:
    """Fit a network's gains to Monte Carlo on views of `images` (RGB).

    A view is a random crop with jittered colours, as in training; of a network with an input size
    of its own it is the whole image. An eighth of the views is held out: on them the facts give the
    relative error and the ratio of the standard deviation, before and after. `start` are earlier
    gains to continue with.
    """
    import torch

    from penumbra.offline.export.walk import walk_of
    from penumbra.offline.models import load_model, read_header
    from penumbra.propagation.gain_fitting import fit_gains, with_gains

    if not images:
        raise PenumbraError("no images to fit the gains on")
    initial = _initial_gains(start, options)
    architecture = read_header(checkpoint).architecture
    model = load_model(checkpoint)
    walk = walk_of(model, architecture, options.relu, options.softmax, variance=options.variance)
    examples = [
        _example(model, view, options.samples, number)
        for number, view in enumerate(progress(_views(model, images, options), "Monte Carlo"))
    ]
    fitted = max(1, round(len(examples) * (1 - _HELD_OUT)))
    held_out = examples[fitted:] or examples
    with torch.no_grad():
        before = _agreement(with_gains(walk, initial) if initial else walk, held_out)
    gains = fit_gains(
        walk,
        examples[:fitted],
        options.steps,
        options.rate,
        seed=options.seed,
        result=_last,
        progress=lambda work: progress(work, "fitting"),
        start=initial,
    )
    with torch.no_grad():
        after = _agreement(with_gains(walk, gains), held_out)
    facts = GainFacts(
        **asdict(options),
        images=len(images),
        images_sha256=_digest(images),
        std_relative_error=Change(before[0], after[0]),
        std_ratio=Change(before[1], after[1]),
        started_from=start.facts if start else None,
    )
    return gains, facts


def _initial_gains(
    start: StoredGains | None, options: GainFitOptions
) -> Mapping[str, Tensor] | None:
    """The gains to continue with, if they were fitted with the same rules."""
    if start is None:
        return None
    for name in ("relu", "softmax"):
        wanted, stored = getattr(options, name), getattr(start.facts, name)
        if stored != wanted:
            raise PenumbraError(
                f"the gains to continue with were fitted with {name}={stored!r}, not {wanted!r}: "
                "use the same rules, or start without them"
            )
    return start.tensors


def _digest(images: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for image in images:
        digest.update(image.tobytes())
    return digest.hexdigest()


def _views(
    model: Network, images: Sequence[np.ndarray], options: GainFitOptions
) -> Iterator[np.ndarray]:
    import cv2
    import numpy as np

    from penumbra.offline.datasets.augmentation import jitter, random_view
    from penumbra.offline.datasets.corruption import corrupted

    random = np.random.default_rng(options.seed)
    own = model.input_size
    for _ in range(options.views):
        image = images[int(random.integers(len(images)))]
        if own is None:
            blank = np.zeros(image.shape[:2], np.uint8)
            view = random_view(image, blank, options.size, options.scales, random)[0]
        else:
            view = jitter(cv2.resize(image, (own[1], own[0])), random)
        is_corrupted = options.corrupted > 0 and random.random() < options.corrupted
        yield corrupted(view, random) if is_corrupted else view


def _example(model: Network, view: np.ndarray, samples: int, seed: int) -> Example:
    import torch

    from penumbra.offline.models.network import normalised_for
    from penumbra.offline.models.segnet import Probabilities, SegNet
    from penumbra.propagation import monte_carlo
    from penumbra.propagation.gain_fitting import Example

    x = normalised_for(model, torch.from_numpy(view)[None])
    sampled = Probabilities(model).eval() if isinstance(model, SegNet) else model
    reference = monte_carlo(sampled, x, samples=samples, seed=seed)
    return Example(x, reference.mean.float(), reference.std.float(), samples)


def _last(output: Any) -> Any:
    """The probabilities of (scores, probabilities); otherwise the only output."""
    return output[-1] if isinstance(output, tuple) else output


def _agreement(walk: Propagated, examples: Sequence[Example]) -> tuple[float, float]:
    """Relative error and ratio of the maps of mean standard deviations."""
    error = found = true = 0.0
    for example in examples:
        ours = _last(walk(example.input)).std.mean(1)
        theirs = example.unbiased_std.mean(1)
        error += float((ours - theirs).abs().mean())
        found, true = found + float(ours.mean()), true + float(theirs.mean())
    return error / true, found / true

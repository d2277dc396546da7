"""Calibration of a trained network on pictures, and the file that keeps it.

`calibration.safetensors` stands beside `weights.safetensors`, in a checkpoint as in a bundle: the
gains of each layer (see `propagation.gains`), and in its header what they were fitted to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from penumbra.bundle import Bundle
    from penumbra.propagation import Propagated
    from penumbra.propagation.calibration import Example

CALIBRATION = "calibration.safetensors"
VARIANCES = ("truthful", "fast")
_HELD_OUT = 0.125  # the share of the views that is only judged by

Progress = Callable[[Iterable, str], Iterable]


@dataclass(frozen=True)
class Options:
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


def calibrate(
    checkpoint: Path | str,
    pictures: Sequence[np.ndarray],
    options: Options,
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

    from penumbra.models import load_model, read_header
    from penumbra.propagation.calibration import calibrated, fit_gains

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
        before = _likeness(calibrated(walk, began) if began else walk, judged)
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
        after = _likeness(calibrated(walk, gains), judged)
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


def walk_of(
    model: nn.Module,
    architecture: str,
    relu: str,
    softmax: str,
    gains: Mapping[str, Tensor] | None = None,
    folded: bool = True,
    variance: str = "truthful",
) -> Propagated:
    """The walk through what is exported of a network: its gains set, `folded` into fewer steps."""
    from penumbra.export.folding import fold_batch_norms, narrow_convolutions
    from penumbra.export.frame import frame_of
    from penumbra.propagation import propagate
    from penumbra.propagation.calibration import calibrated

    _, _, head = frame_of(architecture)
    walk = propagate(head(model).eval(), relu=relu, softmax=softmax)
    if variance == "fast":
        _silence_all_but_the_last(walk)
    if folded:
        walk = fold_batch_norms(walk)
    if gains:
        walk = calibrated(walk, gains)
    if folded:  # last, for gains are of all outputs
        narrow_convolutions(walk)
    return walk


def walk_of_bundle(bundle: Bundle, model: nn.Module, folded: bool = True) -> Propagated:
    """What a bundle's graph computes, in PyTorch: `model` with the bundle's rules and gains."""
    variant = bundle.manifest["variant"]
    known = CALIBRATION in bundle.manifest["files"]
    gains, facts = (load_calibration(bundle.path) if known else None) or (None, {})
    softmax = variant.get("softmax", "jacobian")
    how = facts.get("variance", "truthful")
    return walk_of(model, variant["architecture"], variant["relu"], softmax, gains, folded, how)


def _silence_all_but_the_last(walk: Propagated) -> None:
    """Take the noise of all dropouts but the last out of a walk (not of its model)."""
    from torch import nn

    from penumbra.propagation.tracing import is_noise

    graph = walk.model.graph
    noisy = [node for node in graph.nodes if is_noise(node, walk.model, walk.registry)]
    if len(noisy) < 2:
        raise PenumbraError(
            "the network has one dropout: its noise cannot be followed for less; leave "
            "'--variance fast' away"
        )
    for node in noisy[:-1]:
        walk.model.set_submodule(node.target, nn.Identity())


def calibration_file(folder: Path, variance: str) -> Path:
    """Where the gains for a variance are kept beside the weights."""
    name = CALIBRATION if variance == "truthful" else f"-{variance}.".join(CALIBRATION.split("."))
    return Path(folder) / name


def walk_of_checkpoint(path: Path | str, model: nn.Module) -> Propagated:
    """`model`, loaded from there, with the rules and gains of the calibration that lies beside its
    weights; without one the default rules."""
    from penumbra.models import read_header

    gains, facts = load_calibration(path) or (None, {})
    rules = facts.get("relu", "moment"), facts.get("softmax", "jacobian")
    architecture = read_header(path)["architecture"]
    how = facts.get("variance", "truthful")
    return walk_of(model, architecture, *rules, gains, gains is not None, how)


def save_calibration(path: Path, gains: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
    """Write the file into the folder `path`, whole or not at all."""
    from safetensors.torch import save

    file = calibration_file(path, facts.get("variance", "truthful"))
    tensors = {name: gain.contiguous() for name, gain in gains.items()}
    write_atomically(file, save(tensors, metadata={"penumbra": json.dumps(dict(facts))}))
    return file


def load_calibration(
    path: Path | str, variance: str = "truthful"
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Gains and facts of a checkpoint or bundle (the folder, or a file in it), if it has them.

    A bundle has one calibration, whichever that is; a checkpoint may have one for each variance.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    file = calibration_file(path.parent if path.suffix == ".safetensors" else path, variance)
    if not file.is_file():
        only = load_calibration(path) if file.name != CALIBRATION else None
        return only if only and only[1].get("variance") == variance else None
    try:
        with safe_open(file, framework="pt") as tensors:
            header = json.loads((tensors.metadata() or {})["penumbra"])
            return {name: tensors.get_tensor(name) for name in tensors.keys()}, header  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError) as error:
        raise PenumbraError(
            f"{file} is no whole calibration ({error}): run `penumbra calibrate` again or remove it"
        ) from error


def _views(
    model: nn.Module, pictures: Sequence[np.ndarray], options: Options
) -> Iterable[np.ndarray]:
    import cv2
    import numpy as np

    from penumbra.training.augmentation import estranged, jitter, random_view

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

    from penumbra.models.segnet import Probabilities, SegNet, normalise
    from penumbra.montecarlo import monte_carlo
    from penumbra.propagation.calibration import Example

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

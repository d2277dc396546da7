"""One bundle on one runner: the first frame after a cold start, and the cost of later frames.

All times of a comparison come from one interleaved run, whose ratios are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from penumbra.bundle import Bundle
from penumbra.lab.benchmarks.cold_start import ColdStart, fresh_process
from penumbra.lab.benchmarks.goals import network_kind, variance_form
from penumbra.lab.timing import Timing, interleaved, ratio, torch_threads
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings

if TYPE_CHECKING:
    from torch import nn

STARTS = 5
DETERMINISTIC, DIAGONAL, FAST = "deterministic", "plain diagonal", "fast"
PROPAGATED = "propagated"
IN_PYTORCH = "PyTorch, {}"


@dataclass(frozen=True)
class TimeRatio:
    """The time of `over` divided by that of `under`."""

    over: str
    under: str
    ratio: float
    over_ms: float
    over_p99_ms: float
    under_ms: float
    under_p99_ms: float


def cold_start(bundle: Bundle, size: tuple[int, int], runner: str, threads: int) -> ColdStart:
    """The median of several fresh processes, by total time."""
    runs = [fresh_process(bundle, size, runner, threads) for _ in range(STARTS)]
    return sorted(runs, key=lambda run: run.seconds)[STARTS // 2]


def compare(
    bundle: Bundle,
    size: tuple[int, int],
    runner: str,
    threads: int,
    repetitions: int,
    samples: int,
) -> list[TimeRatio]:
    """The bundle on its runner against the same network without noise, and against PyTorch.

    A bundle whose variance is not diagonal is also compared in the diagonal form, and if it has
    gains for it, in the fast form.
    """
    import torch

    from penumbra.offline.export import plain_bundle
    from penumbra.offline.export.walk import walk_of_bundle
    from penumbra.offline.gains_file import load_gains
    from penumbra.offline.models import load_model
    from penumbra.propagation.montecarlo import monte_carlo

    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    settings = PipelineConfig(runner, settings=RunnerSettings(threads=threads))
    model = load_model(bundle.weights_file)
    head = _probabilities_of(model)
    x = torch.rand(1, 3, *(model.input_size or size))
    sampled = IN_PYTORCH.format(f"MC-{samples}")
    with TemporaryDirectory() as folder, torch_threads(threads), ExitStack() as active:
        forms = {DETERMINISTIC: plain_bundle(bundle, Path(folder) / "plain"), PROPAGATED: bundle}
        if variance_form(bundle) != "diagonal":
            forms[DIAGONAL] = _exported(bundle, Path(folder) / "diagonal", use_gains=False)
        if load_gains(bundle.path, "fast") is not None:
            forms[FAST] = _exported(bundle, Path(folder) / "fast", variance="fast")
        candidates: dict[str, Callable[[], object]] = {}
        for name, form in forms.items():
            pipeline = active.enter_context(Pipeline(form, settings))
            candidates[name] = partial(pipeline.process, image)
        for name, form in forms.items():
            is_plain = name == DETERMINISTIC
            network = head if is_plain else walk_of_bundle(form, model, folded=False)
            candidates[IN_PYTORCH.format(name)] = _without_gradients(partial(network, x))
        times = interleaved(candidates, repetitions)
        slow = {sampled: lambda: monte_carlo(head, x, samples=samples), **candidates}
        slow_times = interleaved(slow, max(2, repetitions // 10), warm_up=0)
    noisy = [name for name in forms if name != DETERMINISTIC]
    pairs = [(name, DETERMINISTIC) for name in noisy]
    pairs += [
        (IN_PYTORCH.format(PROPAGATED), under)
        for under in (IN_PYTORCH.format(DETERMINISTIC), PROPAGATED)
    ]
    slow_pairs = [(sampled, IN_PYTORCH.format(name)) for name in noisy] + [(sampled, PROPAGATED)]
    return [
        *(_comparison(over, under, times) for over, under in pairs),
        *(_comparison(over, under, slow_times) for over, under in slow_pairs),
    ]


def measured(bundle: Bundle, comparisons: list[TimeRatio], samples: int) -> dict[str, float | str]:
    """The ratios by the keys of their goals."""
    kind = network_kind(bundle)
    ratios = {(line.over, line.under): line.ratio for line in comparisons}
    found: dict[str, float | str] = {
        f"{kind}/eager": ratios[IN_PYTORCH.format(PROPAGATED), PROPAGATED]
    }
    sampled = IN_PYTORCH.format("MC-50")  # the goals are defined for 50 samples
    for form, name in ((PROPAGATED, variance_form(bundle)), (DIAGONAL, "diagonal"), (FAST, "fast")):
        if (form, DETERMINISTIC) in ratios:
            found[f"{kind}/{name}"] = ratios[form, DETERMINISTIC]
            if samples == 50:
                found[f"{kind}/{name}/sampled"] = ratios[sampled, IN_PYTORCH.format(form)]
    if samples == 50:
        found[f"{kind}/sampled"] = ratios[sampled, PROPAGATED]
    return found


def _exported(
    bundle: Bundle, out: Path, use_gains: bool = True, variance: str = "truthful"
) -> Bundle:
    """The bundle that `penumbra export` makes from its weights and gains."""
    from penumbra.offline.export import ExportOptions, export_bundle

    image = bundle.input
    options = ExportOptions(image.height, image.width, image.channel_order, variance=variance)
    return export_bundle(bundle.path, out, options, use_gains=use_gains)


def _comparison(over: str, under: str, times: dict[str, Timing]) -> TimeRatio:
    a, b = times[over], times[under]
    milliseconds = (a.median * 1e3, a.p99 * 1e3, b.median * 1e3, b.p99 * 1e3)
    return TimeRatio(over, under, ratio(a, b), *milliseconds)


def _without_gradients(call: Callable[[], object]) -> Callable[[], object]:
    import torch

    def timed() -> object:
        with torch.inference_mode():
            return call()

    return timed


def _probabilities_of(model: nn.Module) -> nn.Module:
    """What Monte Carlo samples: class probabilities, or the disparity."""
    from penumbra.offline.models.segnet import Probabilities, SegNet

    return Probabilities(model).eval() if isinstance(model, SegNet) else model

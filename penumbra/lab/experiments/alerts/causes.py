"""What each cause of an alert adds alone, and all together, on folders of images.

    python -m penumbra.lab.experiments.alerts.causes BUNDLE --site DIR --images fog indoor

Every image is judged as the first frame of a camera, without hysteresis and without the health
scores that need several frames: photographs have no order. Counted are scores over their threshold.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from penumbra.bundle import load_bundle
from penumbra.offline.fitting.ordinary_drives import ordinary_drives
from penumbra.site import load_site
from penumbra.vehicle.monitor import Cause, Conditions, Monitor, MonitorSettings
from penumbra.vehicle.ordinary import Ordinary, ordinary_of
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings

CAUSES = (Cause.UNCERTAINTY, Cause.SCENE, Cause.CAMERA)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--site", type=Path, help="site folder whose thresholds are used")
    parser.add_argument("--images", type=Path, nargs="+", required=True, help="folders of images")
    parser.add_argument("--runner", default="auto")
    options = parser.parse_args(arguments)
    bundle = load_bundle(options.bundle)
    site = None if options.site is None else load_site(options.site, bundle)
    ordinary = ordinary_of(bundle, site)
    print(f"| images |{''.join(f' {cause.value} |' for cause in CAUSES)} any |")
    print(f"| --- |{' --- |' * len(CAUSES)} --- |")
    config = PipelineConfig(
        options.runner, also=ordinary.outputs, settings=RunnerSettings(threads=1)
    )
    with Pipeline(ordinary.bundle, config) as pipeline:
        for drive in ordinary_drives(options.images, [], None, None):
            over = np.array(list(_over(pipeline, ordinary, drive.images())))
            shares = [*over.mean(axis=0), over.any(axis=1).mean()]
            cells = "".join(f" {share:.1%} |" for share in shares)
            print(f"| {drive.name} ({len(over)}) |{cells}", flush=True)
    return 0


def _over(
    pipeline: Pipeline, ordinary: Ordinary, images: Iterator[np.ndarray]
) -> Iterator[list[bool]]:
    """For each image and cause, whether the score is over its threshold."""
    fitted = ordinary.bundle.thresholds
    settings = MonitorSettings(None, None)
    if fitted is not None:
        settings = MonitorSettings(fitted.frame, fitted.pixel, fitted.score_fraction)
    swapped = ordinary.bundle.input.channel_order == "rgb"
    for image in images:
        monitor = Monitor(settings, ordinary.models)
        own = np.ascontiguousarray(image[..., ::-1]) if swapped else image
        verdict = pipeline.process(own, None, monitor, Conditions.assumed).verdict
        assert verdict is not None  # there is a monitor
        found = {c.cause: c for c in verdict.causes if c.threshold is not None}
        yield [
            cause in found and not found[cause].score <= (found[cause].threshold or 0.0)
            for cause in CAUSES
        ]


if __name__ == "__main__":
    raise SystemExit(main())

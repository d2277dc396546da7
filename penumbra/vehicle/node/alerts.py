"""From parameters and bundle to the settings of the alerts, and from a judgement to its message."""

from __future__ import annotations

import math
from dataclasses import replace

from std_msgs.msg import Header

from penumbra.bundle import Bundle
from penumbra.vehicle.monitor import Judgement, Level, OodSettings
from penumbra.vehicle.node.parameters import Values
from penumbra_msgs.msg import OodAlert, OodRegion

# Stands for a threshold that nobody knows; such a frame is never OK, see `without_thresholds`.
UNKNOWN = 1e30


def ood_settings(values: Values, bundle: Bundle) -> OodSettings:
    """The parameters under `ood`; what is 0 there is the bundle's."""
    measured = bundle.thresholds
    return OodSettings(
        frame_threshold=values["ood.frame_threshold"] or (measured.frame if measured else UNKNOWN),
        pixel_threshold=values["ood.pixel_threshold"] or (measured.pixel if measured else UNKNOWN),
        score_fraction=values["ood.score_fraction"]
        or (measured.score_fraction if measured else OodSettings.score_fraction),
        raise_frames=(values["ood.raise_frames"], values["ood.raise_window"]),
        clear_frames=(values["ood.clear_frames"], values["ood.clear_window"]),
        min_region_area=values["ood.min_region_area"],
        max_regions=values["ood.max_regions"],
        stale_after=values["ood.stale_after"],
    )


def without_thresholds(settings: OodSettings) -> bool:
    """Neither bundle nor parameters say when a frame is out of distribution."""
    return UNKNOWN in (settings.frame_threshold, settings.pixel_threshold)


def without_unknown_thresholds(judgement: Judgement) -> Judgement:
    """Without thresholds no frame can be called OK: it is WARN, and the reason says what to do.

    What is no number needs no threshold: that stays as it is.
    """
    if UNKNOWN not in (judgement.frame_threshold, judgement.pixel_threshold):
        return judgement
    known = {
        name: math.nan
        for name in ("frame_threshold", "pixel_threshold")
        if getattr(judgement, name) == UNKNOWN
    }
    if judgement.level in (Level.STARTING, Level.STALE) or math.isinf(judgement.score):
        return replace(judgement, **known)
    return replace(
        judgement,
        level=Level.WARN,
        reason="the bundle has no thresholds: run `penumbra fit-alerts` on it, or set "
        "ood.frame_threshold and ood.pixel_threshold",
        **known,
    )


def never_alerts(values: Values) -> str | None:
    """Why no frame can ever raise an ALERT with these parameters; None if one can."""
    rate, gap = values["rate_limit"], values["ood.stale_after"]
    if not 0 < rate * gap < 1:
        return None
    return (
        f"rate_limit {rate:g} Hz leaves {1 / rate:g} s between two frames, more than "
        f"ood.stale_after ({gap:g} s): each is STALE before the next comes, and no ALERT can be "
        "raised; raise ood.stale_after"
    )


def colour_top(bundle: Bundle, pixel_threshold: float) -> float:
    """What is judged, at the upper end of the colours: fixed, so that they compare over time."""
    if unit(bundle) == "nat":
        return math.log(len(bundle.classes))  # all classes equally probable
    if 0 < pixel_threshold < UNKNOWN:
        return 2 * pixel_threshold
    return 0.5 if bundle.depth is None else bundle.depth.max_depth_m / 10


def uncertainty_top(bundle: Bundle, judged_top: float) -> float:
    """The same of the uncertainty, where another map is judged."""
    measured = bundle.thresholds
    if measured is None or measured.map == "uncertainty":
        return judged_top
    return measured.uncertainty_top or 0.5


def unit(bundle: Bundle) -> str:
    """Of what is judged."""
    if bundle.depth is not None:
        return "m"
    return "nat" if bundle.thresholds is not None and bundle.thresholds.map == "entropy" else "1"


def alert(judgement: Judgement, header: Header, bundle: Bundle, size: tuple[int, int]) -> OodAlert:
    """The message; `size` is height and width of the uncertainty map, zero if there is none."""
    return OodAlert(
        header=header,
        level=int(judgement.level),
        unit=unit(bundle),
        model=model_name(bundle),
        frame_score=judgement.score,
        frame_threshold=judgement.frame_threshold,
        pixel_threshold=judgement.pixel_threshold,
        uncertain_fraction=judgement.uncertain_fraction,
        image_height=size[0],
        image_width=size[1],
        regions=[
            OodRegion(
                x=region.x,
                y=region.y,
                width=region.width,
                height=region.height,
                area=region.area,
                mean_uncertainty=region.mean_uncertainty,
                max_uncertainty=region.max_uncertainty,
            )
            for region in judgement.regions
        ],
        reason=judgement.reason,
    )


def model_name(bundle: Bundle) -> str:
    """Name and checksum, as the messages have it."""
    return f"{bundle.name}@{bundle.sha256[:8]}"

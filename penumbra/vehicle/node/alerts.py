"""The monitor's settings from parameters and bundle, and the message of a verdict."""

from __future__ import annotations

import math

from std_msgs.msg import Header

from penumbra.bundle import Bundle
from penumbra.vehicle.monitor import Cause, CauseVerdict, MonitorSettings, Verdict
from penumbra.vehicle.node.parameters import Values
from penumbra_msgs.msg import OodAlert, OodCause, OodRegion

# Two drives, so that one can be left out; how many frames are enough is in docs/alerts.md.
MINUTES_TO_COLLECT = 10


def monitor_settings(values: Values, bundle: Bundle) -> MonitorSettings:
    """The parameters under `ood`; 0 selects the value of the bundle."""
    fitted = bundle.thresholds
    return MonitorSettings(
        frame_threshold=values["ood.frame_threshold"] or (fitted.frame if fitted else None),
        pixel_threshold=values["ood.pixel_threshold"] or (fitted.pixel if fitted else None),
        score_fraction=values["ood.score_fraction"]
        or (fitted.score_fraction if fitted else MonitorSettings.score_fraction),
        raise_frames=(values["ood.raise_frames"], values["ood.raise_window"]),
        clear_frames=(values["ood.clear_frames"], values["ood.clear_window"]),
        min_region_area=values["ood.min_region_area"],
        max_regions=values["ood.max_regions"],
        stale_after=values["ood.stale_after"],
        frozen_after=values["frozen_after"],
    )


def never_alerts(values: Values) -> str | None:
    """Why these parameters prevent every ALERT; None if they do not."""
    rate, gap = values["rate_limit"], values["ood.stale_after"]
    if not 0 < rate * gap < 1:
        return None
    return (
        f"rate_limit {rate:g} Hz leaves {1 / rate:g} s between two frames, more than "
        f"ood.stale_after ({gap:g} s): the level is STALE before the next frame, and no ALERT can "
        "be raised; increase ood.stale_after"
    )


def unfamiliar(bundle: Bundle, camera: str) -> str:
    """What to do about a camera whose first frames are strange."""
    named = f" --camera {camera}" if camera else ""
    return (
        f"this camera is unfamiliar to {bundle.name}; collect {MINUTES_TO_COLLECT} minutes of "
        f"ordinary driving and run `penumbra fit-alerts {bundle.path} --bag BAG --site DIR{named}`,"
        " then set the parameter site to DIR"
    )


def colour_top(bundle: Bundle, values: Values) -> float:
    """The value of the judged map at the upper end of the colour map.

    It does not depend on the frame, so that colours are comparable over time.
    """
    if unit(bundle) == "nat":
        return math.log(len(bundle.classes))  # all classes equally probable
    if threshold := monitor_settings(values, bundle).pixel_threshold:
        return 2 * threshold
    return 0.5 if bundle.depth is None else bundle.depth.max_depth_m / 10


def uncertainty_top(bundle: Bundle, judged_top: float) -> float:
    """The uncertainty at the upper end of the colour map; differs if another map is judged."""
    fitted = bundle.thresholds
    if fitted is None or fitted.map == "uncertainty":
        return judged_top
    return fitted.uncertainty_top or 0.5


def unit(bundle: Bundle) -> str:
    """The unit of the judged map."""
    if bundle.depth is not None:
        return "m"
    return "nat" if bundle.thresholds is not None and bundle.thresholds.map == "entropy" else "1"


def alert_message(
    verdict: Verdict, header: Header, bundle: Bundle, size: tuple[int, int], site: str = ""
) -> OodAlert:
    """The message of a verdict; `size` is the height and width of the judged map, or zero.

    `site` is the label of the site folder whose thresholds were used.
    """
    return OodAlert(
        header=header,
        level=int(verdict.level),
        unit=unit(bundle),
        model=model_name(bundle),
        frame_score=verdict.score,
        frame_threshold=_or_nan(verdict.frame_threshold),
        pixel_threshold=_or_nan(verdict.pixel_threshold),
        uncertain_fraction=verdict.uncertain_fraction,
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
            for region in verdict.regions
        ],
        reason=verdict.reason,
        causes=[
            OodCause(
                cause=cause.cause.value,
                level=int(cause.level),
                score=cause.score,
                threshold=_or_nan(cause.threshold),
                direction=cause.direction.value,
                unit=_unit(cause, bundle),
                reason=cause.reason,
            )
            for cause in verdict.causes
        ],
        site=site,
    )


def model_name(bundle: Bundle) -> str:
    """Name and checksum of the bundle, as in messages."""
    return f"{bundle.name}@{bundle.sha256[:8]}"


def _unit(cause: CauseVerdict, bundle: Bundle) -> str:
    """The scores of scene and camera are numbers without a unit; other causes have none."""
    if cause.cause is Cause.UNCERTAINTY:
        return unit(bundle)
    return "" if cause.threshold is None else "1"


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value

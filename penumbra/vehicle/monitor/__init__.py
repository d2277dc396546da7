"""The monitor: one verdict per frame, with its causes."""

from penumbra.vehicle.monitor.conditions import HOLDS, Conditions, Fact, conclude
from penumbra.vehicle.monitor.first_frames import FirstFrames
from penumbra.vehicle.monitor.levels import Level
from penumbra.vehicle.monitor.models import CauseModels, SceneModel
from penumbra.vehicle.monitor.monitor import Monitor
from penumbra.vehicle.monitor.regions import Region, uncertain_regions
from penumbra.vehicle.monitor.scores import frame_score
from penumbra.vehicle.monitor.settings import MonitorSettings
from penumbra.vehicle.monitor.verdict import Cause, CauseVerdict, Direction, Verdict

__all__ = [
    "HOLDS",
    "Cause",
    "CauseModels",
    "CauseVerdict",
    "Conditions",
    "Direction",
    "Fact",
    "FirstFrames",
    "Level",
    "Monitor",
    "MonitorSettings",
    "Region",
    "SceneModel",
    "Verdict",
    "conclude",
    "frame_score",
    "uncertain_regions",
]

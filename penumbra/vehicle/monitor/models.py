"""What is ordinary for one camera, for the causes that need more than a threshold."""

from __future__ import annotations

from dataclasses import dataclass

from penumbra.vehicle.monitor.familiarity import Familiarity
from penumbra.vehicle.monitor.health_range import HealthRange


@dataclass(frozen=True)
class SceneModel:
    """Familiarity of the scene, and the score above which a frame is strange."""

    familiarity: Familiarity
    threshold: float


@dataclass(frozen=True)
class CauseModels:
    """The models of one camera. A cause whose model is None is not judged."""

    scene: SceneModel | None = None
    camera: HealthRange | None = None
    channel_order: str = "bgr"  # of the camera's images

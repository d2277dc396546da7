"""A rendered drive with full ground truth, in which an anomaly may enter the road."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penumbra.bags.frames import Drive, DriveFrame, positive, stamp_at
from penumbra.bags.messages import START_NS, CameraModel
from penumbra.errors import PenumbraError
from penumbra.offline.datasets.camvid_classes import CLASSES
from penumbra.offline.scenes.anomalies import KINDS as ANOMALIES
from penumbra.offline.scenes.camera import Camera
from penumbra.offline.scenes.driving import drive


def street_drive(
    seed: int = 0,
    seconds: float = 10.0,
    rate_hz: float = 10.0,
    *,
    camera: Camera | None = None,
    speed: float = 7.0,
    anomaly: str | None = None,
    anomaly_at: float = 5.0,
) -> Drive:
    """`seconds` of a drive; the object `anomaly` (None: none) enters the road at `anomaly_at`.

    The same arguments give the same bytes.
    """
    if anomaly is not None and anomaly not in ANOMALIES:
        raise PenumbraError(f"--anomaly {anomaly}: choose one of {', '.join(ANOMALIES)}")
    camera = camera or Camera()
    count = max(1, round(positive(seconds, "--seconds") * positive(rate_hz, "--rate-hz")))
    if anomaly is None:
        views = drive(seed, count, rate_hz, camera=camera, speed=speed)
    else:
        views = drive(
            seed, count, rate_hz, camera=camera, speed=speed, anomaly=anomaly, anomaly_at=anomaly_at
        )
    (cx, cy), f = camera.centre, camera.focal_px
    intrinsics = np.array([[f, 0, cx], [0, f, cy], [0, 0, 1]], float)
    model = CameraModel.rectified(camera.width, camera.height, intrinsics)

    def frames() -> Iterator[DriveFrame]:
        for place, moment in enumerate(views):
            view = moment.view
            yield DriveFrame(
                stamp_at(place, rate_hz, START_NS),
                view.image,
                camera=model,
                labels=view.labels,
                depth=view.depth,
                anomaly=view.anomaly,
            )

    notes = {"source": f"rendered street, seed {seed}", "classes": ", ".join([*CLASSES, "void"])}
    if anomaly is not None:
        notes["anomaly"] = f"{anomaly}, {anomaly_at:g} s after the first frame"
    return Drive(frames(), count, notes)

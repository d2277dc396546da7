"""The table of what each cause adds: shares over the thresholds, by folder."""

from __future__ import annotations

import cv2
import numpy as np
from strange_scenes import familiarity, with_statistics

from penumbra.bundle import rewrite_bundle
from penumbra.lab.experiments.alerts.causes import main
from penumbra.vehicle.monitor.familiarity import familiarity_bytes

SCENE = {"output": "statistics", "direction": "above", "frame": 2.0, "model": "familiarity.npz"}
# No uncertainty is below 0, so every frame is over this one.
UNCERTAINTY = {"output": "uncertainty", "direction": "above", "frame": 0.0, "pixel": 0.0}


def test_shares_by_cause(tmp_path, capsys):
    causes = {"scene": SCENE, "uncertainty": UNCERTAINTY}
    entry = {"false_alarm_rate": 0.01, "frames": 9, "drives": 1, "causes": causes}
    bundle = rewrite_bundle(
        with_statistics(tmp_path / "street"),
        {"familiarity.npz": familiarity_bytes(familiarity(0.5))},
        alerts=entry,
    )
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number, grey in enumerate((128, 127, 129, 255)):  # the last one is far from the centre
        cv2.imwrite(str(folder / f"{number}.png"), np.full((36, 48, 3), grey, np.uint8))
    assert main([str(bundle.path), "--images", str(folder), "--runner", "onnxruntime"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "| photographs (4) | 100.0% | 25.0% | 0.0% | 100.0% |"

"""Memory is level over many image sizes, and a large camera runs within its budget.

The real node with OpenVINO. PENUMBRA_SIZES sets the number of sizes of the long test; -s shows the
curve.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tiny_bundles
from perception import Peer, resident, running

from penumbra.share import config_folder
from penumbra_msgs.msg import FrameStats

SIZES = int(os.environ.get("PENUMBRA_SIZES", "1200"))
# Bytes. Kernels kept for every size would be 170 kB each: 130 MB over 800 sizes.
ALLOWED = 40 * 2**20
BUDGET = 1.0e9  # bytes at any camera up to 8.3 megapixels

pytest.importorskip("openvino")


@pytest.mark.parametrize(
    "count", [60, pytest.param(SIZES, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_memory_is_level_over_image_sizes(peer, tmp_path, count):
    bundle = tiny_bundles.segmentation(tmp_path / "street", None, None)
    settings = {"runner": "openvino", "qos.input_reliability": "reliable", "max_age": 0.0}
    choose = np.random.default_rng(0)
    with running(bundle=bundle.path, **settings) as node:
        node.wait_for("engine: running")
        peer.collect(FrameStats, "/penumbra/stats")
        peer.until_processed(tiny_bundles.image(240, 320))
        curve = {}
        for number in range(1, count + 1):
            height, width = (int(value) for value in choose.integers(64, 400, 2))
            send_and_wait(peer, number, tiny_bundles.image(height, width))
            if number % (count // 12) == 0:
                curve[number] = resident(node.process.pid)
        print("\nMB resident after sizes:", {n: round(v / 1e6) for n, v in curve.items()})
        settled = [size for number, size in curve.items() if number >= count // 2]
        assert max(settled) - settled[0] < ALLOWED


def test_a_camera_of_eight_megapixels_runs_within_a_gigabyte(peer):
    """The working size of the bundle: the camera's pixels are scaled before the network."""
    street = config_folder() / "models" / "segnet-street"
    settings = {"runner": "openvino", "qos.input_reliability": "reliable", "max_age": 0.0}
    with running(bundle=street, **settings) as node:
        node.wait_for("engine: running")
        peer.collect(FrameStats, "/penumbra/stats")
        pixels = tiny_bundles.image(2160, 3840)
        peer.until_processed(pixels)
        for number in range(1, 4):
            send_and_wait(peer, number, pixels)
        peak = peak_resident(node.process.pid)
        print(f"\n3840x2160: {peak / 1e6:.0f} MB at most")
        assert peak < BUDGET


def send_and_wait(peer: Peer, number: int, pixels: np.ndarray) -> None:
    for received in peer.received.values():
        del received[:-1]
    name = f"size {number}"
    peer.publisher().publish(peer.image(pixels, frame_id=name))
    peer.wait(
        lambda: peer.stats() and peer.stats()[-1].header.frame_id == name, f"a result of {name}"
    )


def peak_resident(pid: int) -> int:
    """The largest resident memory that the process has had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

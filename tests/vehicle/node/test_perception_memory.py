"""Memory is constant over many frames, and no frame gets stuck.

PENUMBRA_FRAMES sets the number of frames, e.g. 10000.
"""

from __future__ import annotations

import os

import tiny_bundles
from perception import STUB_NODE, Peer, resident, running
from sensor_msgs.msg import Image

from penumbra_msgs.msg import FrameStats

FRAMES = int(os.environ.get("PENUMBRA_FRAMES", "800"))
SETTLED = 500  # frames after which memory should be constant
HEIGHT, WIDTH = 240, 320
# Bytes. Growth without a leak was 0.01 MiB. One 8-bit map kept per frame would be
# 22 MiB after 300 frames (one kept on purpose: 22.9 MiB).
ALLOWED = 5 * 2**20


def test_memory_is_constant_and_no_frame_gets_stuck(peer, tmp_path):
    assert HEIGHT * WIDTH * (FRAMES - SETTLED) > 4 * ALLOWED  # detects the smallest leak of a map
    bundle = tiny_bundles.segmentation(tmp_path / "street", None, None)
    settings = {"runner": "onnxruntime", "qos.input_reliability": "reliable", "max_age": 0.0}
    with running(str(STUB_NODE), bundle=bundle.path, **settings) as node:
        peer.collect(FrameStats, "/penumbra/stats")
        names = ("prediction", "uncertainty", "confidence", "uncertainty/color", "overlay")
        peer.collect(Image, *(f"/penumbra/{name}" for name in names))
        pixels = tiny_bundles.image(HEIGHT, WIDTH)
        peer.until_processed(pixels)
        before = 0
        for number in range(1, FRAMES + 1):
            for received in peer.received.values():
                received.clear()
            image = peer.image(pixels, frame_id=str(number))
            peer.publisher().publish(image)
            peer.wait(lambda n=str(number): last_frame(peer) == n, f"frame {number}")
            if number == SETTLED:
                before = resident(node.process.pid)
        growth = resident(node.process.pid) - before
        print(f"{growth / 2**20:.2f} MiB more after {FRAMES - SETTLED} frames")
        assert growth < ALLOWED
        assert peer.stats()[-1].processed >= FRAMES


def last_frame(peer: Peer) -> str:
    return peer.stats()[-1].header.frame_id if peer.stats() else ""

"""Lorries and dense traffic."""

from __future__ import annotations

import numpy as np
import pytest

from penumbra.offline.datasets.camvid_classes import CAR
from penumbra.offline.scenes import Camera, render, street
from penumbra.offline.scenes.dense_traffic import with_dense_traffic
from penumbra.offline.scenes.lorries import lorry

NEAR = 15.0


@pytest.mark.parametrize("kind", ["box", "tarpaulin", "tank", "flat"])
def test_size_of_a_lorry(kind: str) -> None:
    for seed in range(20):
        body = lorry(np.random.default_rng(seed), kind)
        corners = body.quads["corners"].reshape(-1, 3)
        size = np.ptp(corners, axis=0)
        assert 2.2 < size[0] < 2.8
        assert 5.9 < size[2] < 14.5
        assert corners[:, 1].min() == pytest.approx(0, abs=1e-6)  # its wheels touch the road
        assert corners[:, 1].max() < 4.1
        assert (body.quads["label"] == CAR).all()
        assert (body.rounds["label"] == CAR).all()


def test_the_same_seed_draws_the_same_lorry() -> None:
    first, again = (lorry(np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(first.quads, again.quads)
    np.testing.assert_array_equal(first.rounds, again.rounds)


def test_dense_traffic_fills_the_view_with_near_vehicles() -> None:
    camera = Camera.kitti(310, 94)
    shares = []
    for seed in range(8):
        free = street(seed)
        dense = with_dense_traffic(free, np.random.default_rng(seed))
        views = [render(scene, camera) for scene in (free, dense)]
        shares.append([((v.labels == CAR) & (v.depth < NEAR)).mean() for v in views])
        # No vehicle contains the camera: the nearest one in the own lane is 3 m ahead, and those
        # beside are a lane less half a lorry and its offset away.
        assert views[1].depth.min() > 0.5
    free_share, dense_share = np.mean(shares, axis=0)
    assert dense_share > 0.15 > free_share

"""Bundles of small networks, each exported once per test run, and real frames."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from exported_networks import network

from penumbra.bundle import Bundle
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.offline.models import save_model


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """`exported(kind, **options)` is the bundle of a network, made once in a test run."""

    @functools.cache
    def make(kind: str, **options) -> Bundle:
        folder = tmp_path_factory.mktemp("export")
        save_model(network(kind), folder / "checkpoint")
        return export_bundle(folder / "checkpoint", folder / "bundle", ExportOptions(**options))

    return make


@pytest.fixture(scope="session")
def frame(data_dir) -> Callable[[int, int], np.ndarray]:
    """`frame(height, width)` is a real street (BGR), scaled: KITTI's if wide, or CamVid's."""

    def read(height: int, width: int) -> np.ndarray:
        name = "kitti/raw/**/image_02/data/*" if width > 2 * height else "camvid/test/*"
        path = sorted(Path(data_dir).glob(name))[0]
        return cv2.resize(cv2.imread(str(path)), (width, height), interpolation=cv2.INTER_AREA)

    return read

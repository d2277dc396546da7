"""Small bundles, small drives, and a place of its own for the references of each test run."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import cv2
import pytest
from exported_networks import network

from penumbra.bags import Drive, DriveFrame, write_drive
from penumbra.bundle import Bundle
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.offline.models import save_model


@pytest.fixture(autouse=True)
def _own_references(tmp_path, monkeypatch):
    """What another run has kept must not stand in for what is computed here."""
    monkeypatch.setenv("PENUMBRA_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """`exported(kind, **options)` is the bundle of a small network, made once in a test run."""

    @functools.cache
    def make(kind: str, **options) -> Bundle:
        folder = tmp_path_factory.mktemp("verified")
        save_model(network(kind), folder / "checkpoint")
        return export_bundle(folder / "checkpoint", folder / kind, ExportOptions(**options))

    return make


@pytest.fixture
def small_bag(tmp_path):
    """`small_bag(drive, width)` writes a drive as a bag whose pictures are `width` pixels wide."""

    def write(drive: Drive, width: int) -> Path:
        frames = (_scaled(frame, width) for frame in drive.frames)
        write_drive(replace(drive, frames=frames), tmp_path / "drive")
        return tmp_path / "drive"

    return write


def _scaled(frame: DriveFrame, width: int) -> DriveFrame:
    height = round(frame.image.shape[0] * width / frame.image.shape[1])

    def nearest(array):
        return None if array is None else cv2.resize(array, (width, height), interpolation=0)

    image = cv2.resize(frame.image, (width, height), interpolation=cv2.INTER_AREA)
    return DriveFrame(
        frame.stamp_ns, image, labels=nearest(frame.labels), depth=nearest(frame.depth)
    )  # the calibration is of another size, and a depth bundle knows its own camera

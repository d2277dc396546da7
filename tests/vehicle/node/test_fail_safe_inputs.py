"""Situations in which the level must not be OK: cameras, clocks, stamps (docs/fail-safe.md)."""

from __future__ import annotations

import shutil
import time

import cv2
import fail_safe
import numpy as np
import pytest
import tiny_bundles
from builtin_interfaces.msg import Time
from fail_safe import ERROR, STALE, THRESHOLDS, Drive, ordinary
from perception import STUB_NODE, resident, running
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from stub_node import fault_pixel


@pytest.fixture(scope="module", autouse=True)
def reactions():
    """Print the measured reactions at the end; shown with -s."""
    fail_safe.REACTIONS.clear()
    yield
    print(f"\n{fail_safe.table()}")


@pytest.fixture
def street(tmp_path):
    bundle = tiny_bundles.segmentation(tmp_path / "street", thresholds=THRESHOLDS)
    return {"bundle": bundle.path, "runner": "onnxruntime"}


def broken(folder, how: str):
    """A bundle that cannot be used."""
    if how == "missing":
        return folder.with_name("missing")
    copy = shutil.copytree(folder, folder.with_name("broken"))
    if how == "corrupt":
        (copy / "model.onnx").write_bytes(b"something else")
    else:
        manifest = copy / "manifest.yaml"
        text = manifest.read_text()
        assert "frame: 0.9" in text
        manifest.write_text(text.replace("frame: 0.9", "frame: .nan"))
    return copy


@pytest.mark.parametrize(
    "how, words",
    [
        ("corrupt", "is not the file that was exported"),
        ("missing", "no bundle at"),
        ("non-finite thresholds", "manifest.yaml"),
    ],
)
def test_1_a_bundle_that_cannot_be_used(peer, street, how, words):
    settings = {**street, "bundle": broken(street["bundle"], how)}
    with running(str(STUB_NODE), **settings):
        drive = Drive(peer)
        drive.leaves_ok("A.1", f"bundle: {how}", words, send=lambda: None)
        drive.diagnosed("engine", ERROR, words)


def test_1_a_node_that_is_finalized(peer, street):
    with running(str(STUB_NODE), **street):
        drive = Drive(peer)
        drive.reach_ok()
        assert peer.change("shutdown")
        drive.leaves_ok("A.1", "node finalized", "the node", send=lambda: None)
        drive.diagnosed("engine", fail_safe.WARN, "the node is finalized")


def camera_info(width: int, height: int, focal: float) -> CameraInfo:
    info = CameraInfo(width=width, height=height)
    info.k = [focal, 0.0, width / 2, 0.0, focal, height / 2, 0.0, 0.0, 1.0]
    return info


@pytest.mark.parametrize(
    "situation, info, words",
    [
        ("of another size", camera_info(1280, 720, 1000.0), "CameraInfo is for 1280x720"),
        ("of another camera", camera_info(48, 36, 120.0), "focal length"),
        ("in metres", camera_info(48, 36, 0.0368), "focal length"),
        ("1e-300", camera_info(48, 36, 1e-300), "focal length"),
    ],
)
def test_2_depth_with_a_wrong_calibration(peer, tmp_path, situation, info, words):
    thresholds = {**THRESHOLDS, "pixel": 1e6, "frame": 1e6}
    bundle = tiny_bundles.depth(tmp_path / "depth", thresholds=thresholds)
    with running(bundle=bundle.path, runner="onnxruntime") as node:
        node.wait_for("engine: running")
        drive = Drive(peer)
        peer.collect(Image, "/penumbra/prediction")
        infos = peer.publisher("/penumbra/image/camera_info", CameraInfo)

        def send(about: CameraInfo) -> Image:
            infos.publish(about)
            return drive.message()

        good = camera_info(48, 36, 38.4)
        drive.run(lambda: drive.level == "OK", "OK", lambda: send(good))
        alert = drive.leaves_ok("A.2", f"CameraInfo {situation}", words, lambda: send(info))
        assert not alert.regions
        drive.diagnosed("camera calibration", STALE, words, lambda: send(info))
        metres = peer.received["/penumbra/prediction"]
        before = len(metres)
        later = len(drive.alerts) + 3
        drive.run(lambda: len(drive.alerts) > later, "more alerts", lambda: send(info))
        assert len(metres) == before  # no depth is published in metres


@pytest.mark.parametrize("ahead", [0.7, 3.5e8])
def test_3_stamps_in_the_future(peer, street, ahead):
    with running(str(STUB_NODE), **street):
        drive = Drive(peer)
        drive.reach_ok()

        def send() -> Image:
            image = drive.message()
            image.header.stamp.sec += int(ahead)
            image.header.stamp.nanosec = min(
                999_999_999, image.header.stamp.nanosec + round(ahead % 1 * 1e9)
            )
            if ahead < 1:  # without a carry
                image.header.stamp.sec += 1
            return image

        drive.leaves_ok("A.3", f"stamps {ahead:g} s in the future", "in the future", send)
        drive.diagnosed("conversion errors", ERROR, "", send)


def test_3_stamps_that_run_backwards(peer, street):
    with running(str(STUB_NODE), max_age=0.0, **street):
        drive = Drive(peer)
        drive.reach_ok()
        now = peer.node.get_clock().now().nanoseconds
        backwards = iter(range(10**6))

        def send() -> Image:
            image = drive.message()
            stamp = now - next(backwards) * 10**7
            image.header.stamp = Time(sec=stamp // 10**9, nanosec=stamp % 10**9)
            return image

        drive.leaves_ok("A.3", "stamps run backwards", "went back", send)


class SimulatedClock:
    """Publishes /clock, and images with its time."""

    def __init__(self, drive: Drive) -> None:
        self.drive, self.now = drive, 100 * 10**9
        self.step = 5 * 10**7
        self.ticks = drive.peer.publisher("/clock", Clock)

    def send(self) -> Image:
        """One tick and one image."""
        self.now += self.step
        stamp = Time(sec=self.now // 10**9, nanosec=self.now % 10**9)
        self.ticks.publish(Clock(clock=stamp))
        image = self.drive.message()
        image.header.stamp = stamp
        return image


def test_3_simulated_time_without_a_clock(peer, street):
    with running(str(STUB_NODE), use_sim_time=True, **street):
        drive = Drive(peer)
        drive.leaves_ok("A.3", "use_sim_time without /clock", "no /clock arrives")
        drive.diagnosed("clock", STALE, "no /clock arrives", drive.message)


def test_3_a_clock_that_stops_and_one_that_is_set_back(peer, street):
    with running(str(STUB_NODE), use_sim_time=True, max_lead=10.0, **street) as node:
        node.wait_for("engine: running")
        drive = Drive(peer)
        clock = SimulatedClock(drive)
        drive.run(lambda: drive.level == "OK", "OK", clock.send)
        clock.step = 0
        drive.leaves_ok("A.3", "clock stopped", "has stopped", clock.send)
        drive.diagnosed("clock", STALE, "has stopped", clock.send)
        clock.step = 5 * 10**7
        drive.run(lambda: drive.level == "OK", "OK again", clock.send)
        clock.now -= 50 * 10**9
        drive.leaves_ok("A.3", "clock set back", "", clock.send)


def test_4_an_image_that_is_old_after_inference(peer, street):
    with running(str(STUB_NODE), **{"ood.stale_after": 30.0}, **street):
        drive = Drive(peer)
        drive.reach_ok()
        slow = fail_safe.with_first_pixel(fault_pixel("slow"))
        drive.leaves_ok(
            "A.4", "inference takes longer than max_age", "s old (max_age 1 s)",
            lambda: drive.message(slow),
        )  # fmt: skip


def test_10_frames_over_the_threshold_with_gaps_between_them(peer, street):
    with running(str(STUB_NODE), **street):
        drive = Drive(peer)
        drive.reach_ok()
        frame = iter(range(10**6))
        resume = [0.0]

        def send() -> Image | None:
            if time.monotonic() < resume[0]:
                return None
            if next(frame) % 2:
                resume[0] = time.monotonic() + 1.05
            pixels = ordinary(0)
            pixels[..., 1] = 255
            return drive.message(pixels)

        drive.leaves_ok("A.10", "a gap after every second frame", "over 0.9", send, "ALERT")


def test_11_a_camera_that_is_unplugged(peer, street):
    with running(str(STUB_NODE), **street, **{"diagnostics.min_input_rate": 1.0}):
        drive = Drive(peer)
        drive.reach_ok()
        drive.leaves_ok("A.11", "camera unplugged", "no image for", lambda: None)
        drive.diagnosed("input rate", ERROR)


def test_11_a_frozen_camera(peer, street):
    with running(str(STUB_NODE), **street, frozen_after=1.0):
        drive = Drive(peer)
        drive.reach_ok()
        same = ordinary(10**6)
        drive.leaves_ok(
            "A.11", "camera frozen", "the camera is frozen", lambda: drive.message(same)
        )
        drive.diagnosed("OOD", STALE, "", lambda: drive.message(same))
        drive.reach_ok()  # a new image thaws it


def test_11_images_of_absurd_size(peer, street):
    with running(str(STUB_NODE), **street):
        drive = Drive(peer)
        drive.reach_ok()
        pixels = np.zeros((1, 1, 3), np.uint8)
        drive.leaves_ok("A.11", "images of 1x1", "1x1 pixels", lambda: drive.message(pixels))
        drive.diagnosed("conversion errors", ERROR, "", lambda: drive.message(pixels))
        drive.reach_ok()


def test_11_a_small_file_with_millions_of_pixels(peer, street):
    """A PNG of 14 kB with 33.5 million pixels is refused before it is decoded."""
    bomb = cv2.imencode(".png", np.zeros((5792, 5792), np.uint8), [cv2.IMWRITE_PNG_BILEVEL, 1])[1]
    assert len(bomb) < 20_000  # bytes
    with running(str(STUB_NODE), compressed=True, **street) as node:
        drive = Drive(peer, "/penumbra/image/compressed", CompressedImage)

        def send(data: bytes | None = None) -> CompressedImage:
            image = drive.message()
            data = data or cv2.imencode(".png", ordinary(int(image.header.frame_id or 0)))[1]
            return CompressedImage(header=image.header, format="png", data=bytes(data))

        drive.run(lambda: drive.level == "OK", "OK", send)
        before = resident(node.process.pid)
        drive.leaves_ok(
            "A.11", "PNG of 33.5 million pixels", "over max_megapixels",
            lambda: send(bomb.tobytes()),
        )  # fmt: skip
        assert resident(node.process.pid) - before < 30 * 2**20  # decoded it is 100 MB
        drive.run(lambda: drive.level == "OK", "OK again", send)

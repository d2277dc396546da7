"""Several cameras, dropped images, CameraInfo, simulated time, parameter changes at run time."""

from __future__ import annotations

import time

import cv2
import numpy as np
import tiny_bundles
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from perception import running
from rcl_interfaces.srv import GetParameters
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, PointCloud2

from penumbra.vehicle.image_fit import fit_to_size
from penumbra.vehicle.node.camera import UNCALIBRATED_FRAMES
from penumbra.vehicle.pipeline import PinholeCamera, Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings
from penumbra_msgs.msg import FrameStats, OodAlert


def floats(message: Image) -> np.ndarray:
    return np.frombuffer(message.data, np.float32).reshape(message.height, message.width)


def test_cameras_share_one_engine_and_parameters_change_at_run_time(peer, tmp_path):
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    settings = {"bundle": bundle.path, "runner": "onnxruntime", "cameras": "front,left"}
    cameras = {"front": tiny_bundles.image(seed=1), "left": tiny_bundles.image(seed=2)}
    pipeline = Pipeline(bundle, PipelineConfig("onnxruntime", settings=RunnerSettings(threads=1)))
    with running(**settings) as node, pipeline:
        node.wait_for("waiting for images on /penumbra/left/image")
        for name, pixels in cameras.items():
            prefix = f"/penumbra/{name}"
            peer.collect(FrameStats, f"{prefix}/stats")
            peer.collect(Image, f"{prefix}/uncertainty")
            publisher = peer.publisher(f"{prefix}/image")
            collected = peer.received[f"{prefix}/uncertainty"]
            while not collected:
                sent = peer.until_processed(pixels, f"{prefix}/image")
                publisher.publish(sent)
                peer.until_processed(pixels, f"{prefix}/image")
            np.testing.assert_array_equal(
                floats(collected[-1]), pipeline.process(pixels).uncertainty
            )
        node.wait_for("engine: running")  # logged by a timer, possibly after the first result
        assert sum("engine: running" in line for line in node.log) == 1

        # Without thresholds no frame is OK.
        peer.alerts("/penumbra/front/ood")
        peer.wait(lambda: peer.received["/penumbra/front/ood"], "a latched alert")
        alert = peer.received["/penumbra/front/ood"][-1]
        assert alert.level in (OodAlert.WARN, OodAlert.STALE) and np.isnan(alert.frame_threshold)
        assert peer.set(ood__frame_threshold=10.0, ood__pixel_threshold=10.0) == ["", ""]
        sent = peer.until_processed(cameras["front"], "/penumbra/front/image")
        peer.wait(lambda: peer.received["/penumbra/front/ood"][-1].level == OodAlert.OK, "OK")

        # Old images, then images over the rate limit, are dropped and counted.
        stats = peer.received["/penumbra/front/stats"]
        front = peer.publisher("/penumbra/front/image")
        assert peer.set(max_age=0.001) == [""]  # older than that when it arrives
        old = peer.image(cameras["front"])
        time.sleep(0.01)
        front.publish(old)
        peer.wait(lambda: stats[-1].dropped_old >= 1, "the old image to be counted")
        node.wait_for("dropped an image that is 0.0.* s old")
        assert peer.set(max_age=0.0, rate_limit=0.001) == ["", ""]
        first = peer.image(cameras["front"])
        front.publish(first)  # the first is accepted
        peer.wait(lambda: stats[-1].header.stamp == first.header.stamp, "the first image's result")
        front.publish(peer.image(cameras["front"]))
        peer.wait(lambda: stats[-1].dropped_rate >= 1, "the second to be counted")
        node.wait_for("1000 s between two frames, more than ood.stale_after .1 s.*no ALERT can")
        assert peer.set(rate_limit=1000.0) == [""]  # effective immediately
        stats.clear()
        peer.until_processed(cameras["front"], "/penumbra/front/image")
        assert peer.set(rate_limit=0.0) == [""]

        # Outputs can be switched at run time; invalid values and times are rejected.
        assert peer.set(outputs__uncertainty=False) == [""]
        # An image in process during the switch may still be published.
        stats.clear()
        peer.until_processed(cameras["front"], "/penumbra/front/image")
        before = len(peer.received["/penumbra/front/uncertainty"])
        stats.clear()
        peer.until_processed(cameras["front"], "/penumbra/front/image")
        assert len(peer.received["/penumbra/front/uncertainty"]) == before
        (reason,) = peer.set(cameras="front")
        assert reason.endswith("deactivate it and clean it up first")
        (reason,) = peer.set(ood__raise_frames=9)
        assert reason.startswith("raise_frames is (9, 5): it must be N, M with")
        (reason,) = peer.set(max_age=-1.0)
        assert "out of range" in reason
        (reason,) = peer.set(label_names=["something", "else"])
        assert reason == "label_names is defined by the bundle"
        (reason,) = peer.set(autostart=False)
        assert "read-only" in reason or "read only" in reason, reason
        request = GetParameters.Request(names=["label_names"])
        answer = peer.call(GetParameters, "/penumbra/get_parameters", request)
        assert list(answer.values[0].string_array_value) == list(tiny_bundles.CLASSES)


def test_depth_without_calibration_warns(peer, tmp_path):
    bundle = tiny_bundles.depth(tmp_path / "depth")
    with running(bundle=bundle.path, runner="onnxruntime", max_age=0.0) as node:
        peer.collect(FrameStats, "/penumbra/stats")
        peer.collect(DiagnosticArray, "/diagnostics")
        for _ in range(UNCALIBRATED_FRAMES):
            peer.received["/penumbra/stats"].clear()
            peer.until_processed(tiny_bundles.image())
        node.wait_for(
            "no CameraInfo with a focal length on /penumbra/image/camera_info: depth assumes"
        )
        about = CameraInfo(width=48, height=36)
        about.k = [28.0, 0.0, 23.5, 0.0, 28.0, 17.5, 0.0, 0.0, 1.0]
        publisher = peer.publisher("/penumbra/image/camera_info", CameraInfo)

        def level() -> bytes | None:
            arrays = peer.received["/diagnostics"][-1:]
            name = "penumbra: camera calibration"
            return next((s.level for a in arrays for s in a.status if s.name == name), None)

        peer.wait(lambda: level() == DiagnosticStatus.WARN, "a warning")

        def known() -> bool:
            publisher.publish(about)
            peer.publisher().publish(peer.image(tiny_bundles.image()))
            return level() == DiagnosticStatus.OK

        peer.wait(known, "a known focal length")


def test_depth_uses_the_calibration_and_stale_does_not_depend_on_simulated_time(peer, tmp_path):
    """A compressed image of another size than the network's input; a clock that then stops."""
    bundle = tiny_bundles.depth(tmp_path / "depth")
    pipeline = Pipeline(bundle, PipelineConfig("onnxruntime", settings=RunnerSettings(threads=1)))
    settings = {
        "compressed": True,
        "use_sim_time": True,
        "ood.stale_after": 0.5,
        "max_age": 0.0,
        "qos.input_reliability": "reliable",
    }
    with running(bundle=bundle.path, runner="onnxruntime", **settings) as node, pipeline:
        node.wait_for("engine: running")
        peer.collect(FrameStats, "/penumbra/stats")
        peer.alerts()
        peer.collect(Image, "/penumbra/prediction")
        peer.collect(PointCloud2, "/penumbra/points")
        peer.collect(CameraInfo, "/penumbra/camera_info")
        pixels = tiny_bundles.image(72, 96)
        message = CompressedImage(
            format="bgr8; png compressed bgr8", data=cv2.imencode(".png", pixels)[1].tobytes()
        )
        message.header.frame_id = "optical"
        # 1.2 image widths, 50 % more than the model's 0.8.
        info = CameraInfo(width=96, height=72, distortion_model="plumb_bob")
        info.d = [0.1, 0.0, 0.0, 0.0, 0.0]
        info.k = [115.2, 0.0, 47.5, 0.0, 115.2, 35.5, 0.0, 0.0, 1.0]
        about = peer.publisher("/penumbra/image/camera_info", CameraInfo)
        images = peer.publisher("/penumbra/image/compressed", CompressedImage)
        ticks = peer.publisher("/clock", Clock)
        simulated = iter(range(100, 10_000))

        def send() -> None:
            tick = next(simulated)
            ticks.publish(Clock(clock=Time(sec=tick // 10, nanosec=tick % 10 * 10**8)))
            message.header.stamp = Time(sec=tick // 10 - 1, nanosec=tick % 10 * 10**8)
            about.publish(info)
            images.publish(message)

        warning = "focal length is 1.200 image widths, 50% more than in training"

        def warned() -> bool:
            # Repeatedly: a publisher discovers its subscriber earlier than the reverse.
            about.publish(info)
            return any(warning in line for line in node.log)

        peer.wait(warned, "the warning about the focal length")
        node.wait_for("is not rectified")
        peer.until_all(send)

        small = fit_to_size(pixels, (36, 48))
        result = pipeline.process(small, PinholeCamera(115.2, 96))
        depth = peer.received["/penumbra/prediction"][-1]
        assert depth.header.frame_id == "optical"
        np.testing.assert_array_equal(floats(depth), result.prediction)
        scaled = peer.received["/penumbra/camera_info"][-1]
        assert (scaled.width, scaled.height, scaled.header.frame_id) == (48, 36, "optical")
        np.testing.assert_allclose(scaled.k, [57.6, 0, 23.5, 0, 57.6, 17.5, 0, 0, 1], rtol=1e-12)
        cloud = peer.received["/penumbra/points"][-1]
        assert [field.name for field in cloud.fields] == ["x", "y", "z", "rgb", "sigma"]
        assert (cloud.width, cloud.height) == (24, 18)
        points = np.frombuffer(cloud.data, np.float32).reshape(18, 24, 5)
        np.testing.assert_array_equal(points[..., 2], result.prediction[::2, ::2])
        np.testing.assert_array_equal(points[..., 4], result.uncertainty[::2, ::2])
        u, v, z = 40, 10, result.prediction[10, 40]
        x, y = z * (u - 23.5) / 57.6, z * (v - 17.5) / 57.6
        np.testing.assert_allclose(points[v // 2, u // 2, :2], [x, y], rtol=1e-5)
        blue_green_red = points[..., 3].copy().view(np.uint8).reshape(18, 24, 4)[..., :3]
        np.testing.assert_array_equal(blue_green_red, small[::2, ::2])

        alerts = peer.received["/penumbra/ood"]
        peer.wait(lambda: alerts[-1].level == OodAlert.STALE, "STALE")
        # Simulated time stands still, but not the steady clock.
        assert "no image for 0." in alerts[-1].reason or "has stopped" in alerts[-1].reason
        assert alerts[-1].header.frame_id == "optical"

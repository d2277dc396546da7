"""The parts of the node that need no DDS: hand-over, hysteresis, sizes, the engine's keeper."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import tiny_bundles
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from penumbra.errors import PenumbraError
from penumbra.share import bundle_folder, config_folder
from penumbra.vehicle.conversions import fill_image
from penumbra.vehicle.image_fit import fit_to_size
from penumbra.vehicle.monitor import Level, Monitor
from penumbra.vehicle.node import alerts, engine_supervisor
from penumbra.vehicle.node.camera import CameraStream
from penumbra.vehicle.node.configuration import camera_names, make_pipeline
from penumbra.vehicle.node.diagnostics import CameraDiagnostics, Steady
from penumbra.vehicle.node.engine_build import EngineBuild
from penumbra.vehicle.node.engine_supervisor import EngineState, EngineStatus, EngineSupervisor
from penumbra.vehicle.node.frame_counts import WINDOW, Rate
from penumbra.vehicle.node.intake import Arrived
from penumbra.vehicle.node.mailbox import Mailbox
from penumbra.vehicle.node.parameters import defaults
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerError, RunnerSettings, engine
from penumbra.vehicle.runners.tensorrt import TensorRTRTXRunner

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


def test_a_mailbox_keeps_the_latest():
    box = Mailbox()
    assert [box.put(n) for n in (1, 2, 3)] == [None, 1, 2]
    assert box.wait() and box.take() == 3 and box.take() is None
    waiting = threading.Thread(target=lambda: seen.append(box.wait()))
    seen = []
    waiting.start()
    box.close()
    waiting.join(60)
    assert seen == [False]
    box.put(4)
    assert box.take() is None


def test_diagnostics_do_not_flicker():
    steady = Steady()
    seen = [ERROR, OK, WARN, ERROR, ERROR, OK, OK, ERROR, OK, OK, WARN, OK, OK, OK]
    told = [OK, OK, OK, WARN, ERROR, ERROR, ERROR, ERROR, ERROR, ERROR, WARN, WARN, WARN, OK]
    assert [steady.settle(level) for level in seen] == told


def test_a_rate_looks_back_some_seconds():
    rate = Rate(since=0.0)
    for n in range(100):
        rate.note(n / 10)
    assert rate.at(9.9) == pytest.approx(10, abs=0.3)
    assert rate.at(9.9 + WINDOW / 2) == pytest.approx(5, abs=0.3)
    assert rate.at(9.9 + 2 * WINDOW) == 0


def test_images_are_scaled_only_where_the_engine_has_a_size():
    image = tiny_bundles.image(36, 48)
    assert fit_to_size(image, (None, None)) is image
    assert fit_to_size(image, (36, 48)) is image
    halved = fit_to_size(image, (18, 24))
    blocks = image.reshape(18, 2, 24, 2, 3).mean((1, 3))  # what scaling by area is
    assert np.abs(halved - blocks).max() <= 0.5
    assert fit_to_size(image, (72, None)).shape == (72, 48, 3)


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"cameras": "front,front"}, "give each another name"),
        ({"cameras": "front,left", "image_topic": "/image"}, "for 2 cameras: put {camera}"),
    ],
)
def test_cameras_that_cannot_be_told_apart_are_refused(changes, complaint):
    with pytest.raises(PenumbraError, match=complaint):
        camera_names({**defaults("segmentation"), **changes})


def test_an_image_size_the_bundle_does_not_take_is_refused(tmp_path):
    values = {**defaults("segmentation"), "image_size": "100x36"}
    with pytest.raises(PenumbraError, match="image_size is 100x36 and street takes 48x36"):
        make_pipeline(values, tiny_bundles.segmentation(tmp_path / "street"))
    any_size = tiny_bundles.segmentation(tmp_path / "any", None, None)
    assert make_pipeline(values, any_size).config.settings.image_size == (36, 100)


def test_a_bundle_may_be_a_path_or_the_name_of_a_model_that_comes_along(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert bundle_folder("no-such-model").name == "no-such-model"
    (tmp_path / "mine").mkdir()
    assert bundle_folder("mine").samefile(tmp_path / "mine")
    for shipped in (config_folder() / "models").glob("*/manifest.yaml"):
        assert bundle_folder(shipped.parent.name) == shipped.parent


def test_a_child_builds_an_engine_or_says_why_not(tmp_path):
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    settings = RunnerSettings(engine_cache_dir=tmp_path / "engines")
    needed = engine.find(bundle, "tensorrt-rtx", settings, capability="8.9")
    told = []
    EngineBuild(needed).run(lambda fraction, phase: told.append(fraction))
    assert needed.built and told[-1] == 1.0
    (bundle.path / "model.onnx").unlink()
    needed.path.unlink()
    with pytest.raises(RunnerError, match="model.onnx is missing from its bundle"):
        EngineBuild(needed).run(lambda fraction, phase: None)


def test_an_engine_that_cannot_be_built_is_not_tried_again(tmp_path, monkeypatch):
    """By `auto` the next runner is taken, and the node itself builds nothing."""
    built, opened = [], []

    class Killed:
        def __init__(self, needed):
            built.append(needed.key.backend)

        def run(self, progress):
            raise RunnerError("the compiler was killed")

    bundle = tiny_bundles.segmentation(tmp_path / "street")
    settings = RunnerSettings(engine_cache_dir=tmp_path / "engines")
    needed = engine.find(bundle, "tensorrt-rtx", settings, capability="8.9")
    monkeypatch.setattr(TensorRTRTXRunner, "obstacle", classmethod(lambda cls, settings: None))
    monkeypatch.setattr(TensorRTRTXRunner, "missing_engine", lambda runner: needed)
    monkeypatch.setattr(TensorRTRTXRunner, "_open", opened.append)
    monkeypatch.setattr(engine_supervisor, "EngineBuild", Killed)
    pipeline = Pipeline(bundle, PipelineConfig("auto", settings=settings))
    keeper = EngineSupervisor(pipeline, lambda: 0.001)
    keeper.start()
    assert keeper.wait_until_ready()
    assert "CPU" in keeper.description
    assert "the compiler was killed" in pipeline.selector.refused["tensorrt-rtx"]
    keeper._failed(RunnerError("broken"))  # and is started again, without another attempt
    assert keeper.wait_until_ready()
    assert keeper.stop(60)
    assert (built, opened) == (["tensorrt-rtx"], [])


@pytest.mark.parametrize("of_depth", [False, True])
def test_what_is_no_number_is_told_without_thresholds_too(tmp_path, of_depth):
    make = tiny_bundles.depth if of_depth else tiny_bundles.segmentation
    bundle = make(tmp_path / "bundle", thresholds=None)
    settings = alerts.monitor_settings(defaults("segmentation"), bundle)
    assert not settings.has_thresholds
    monitor = Monitor(settings)
    for _ in range(5):
        calm = monitor.judge(np.full((9, 9), 0.1), 0.0)
        assert (calm.level, calm.reason[:29]) == (Level.WARN, "the bundle has no thresholds:")
    report = CameraDiagnostics(SimpleNamespace(monitor=monitor, name=""))
    assert report._ood().level == DiagnosticStatus.WARN
    for _ in range(5):
        wrong = monitor.judge(np.full((9, 9), np.nan), 0.0)
    assert wrong.level is Level.ALERT and "non-finite" in wrong.reason
    assert wrong.frame_threshold is None
    message = alerts.alert_message(wrong, Header(), bundle, (9, 9))
    assert np.isnan(message.frame_threshold) and np.isnan(message.causes[0].threshold)
    # Nor do missing thresholds hide that nothing comes any more.
    assert report._ood().level == DiagnosticStatus.ERROR
    monitor.fail("nothing comes")
    assert report._ood().level == DiagnosticStatus.STALE


@pytest.mark.parametrize(
    "rate, gap, lost", [(0.0, 1.0, False), (10.0, 1.0, False), (0.5, 1.0, True), (0.5, 3.0, False)]
)
def test_parameters_by_which_no_alert_can_be_raised(rate, gap, lost):
    values = {**defaults("segmentation"), "rate_limit": rate, "ood.stale_after": gap}
    assert (alerts.never_alerts(values) is not None) is lost


@pytest.mark.parametrize("meanwhile", ["tick", "close"])
def test_the_last_level_told_is_the_last_one_found(tmp_path, meanwhile):
    """Another thread finds STALE between the verdict on a frame and its alert, which is dropped."""
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    told, others = [], []
    keeper = SimpleNamespace(
        status=EngineStatus(EngineState.RUNNING, "runs", 1.0),
        description="",
    )
    outputs = MagicMock()
    outputs.alerts.publish = lambda alert: told.append(Level(alert.level))
    node = MagicMock()
    node.get_clock().now().to_msg.return_value = Time()
    node.get_clock().now().nanoseconds = 0
    values = {**defaults("segmentation"), "max_age": 0.0}
    values |= {"ood.frame_threshold": 9.0, "ood.pixel_threshold": 9.0}
    stream = CameraStream(node, "", bundle, outputs, keeper, lambda: values)
    with Pipeline(
        bundle, PipelineConfig("onnxruntime", settings=RunnerSettings(threads=1))
    ) as pipeline:
        keeper.process = pipeline.process
        judge = stream.monitor.judge

        def interrupted(*arguments):
            judgement = judge(*arguments)
            keeper.status = EngineStatus(
                EngineState.FAILED, "another camera's image broke it", math.nan
            )
            act = stream.tick if meanwhile == "tick" else lambda: stream.close(0.0, "deactivated")
            others.append(threading.Thread(target=act))
            others[0].start()
            others[0].join(0.2)  # as far as it gets
            return judgement

        stream.monitor.judge = interrupted
        message = fill_image(Image(), tiny_bundles.image(), "bgr8")
        stream._process(Arrived(message, 0.0, 0.0))
        others[0].join(60)
    assert told == [Level.STALE]
    assert stream.monitor.level is Level.STALE


def test_a_keeper_gives_up_on_an_engine_that_never_starts(tmp_path):
    pipeline = Pipeline(
        tiny_bundles.segmentation(tmp_path / "street"),
        PipelineConfig("tensorrt", settings=RunnerSettings(engine_cache_dir=tmp_path)),
    )
    keeper = EngineSupervisor(pipeline, lambda: 0.001)
    keeper.start()
    assert not keeper.wait_until_ready()
    assert keeper.status.state is EngineState.GIVEN_UP
    assert "gave up after 3 restarts" in keeper.status.text
    assert keeper.stop(60)

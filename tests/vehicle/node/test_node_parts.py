"""The parts of the node that need no DDS: mailbox, diagnostics, sizes, engine supervisor."""

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
from penumbra.vehicle.monitor import HOLDS, Conditions, Level, Monitor
from penumbra.vehicle.node import alerts, engine_supervisor
from penumbra.vehicle.node.camera import CameraStream
from penumbra.vehicle.node.configuration import camera_names, make_pipeline
from penumbra.vehicle.node.diagnostics import CameraDiagnostics, DebouncedLevel
from penumbra.vehicle.node.engine_build import EngineBuild
from penumbra.vehicle.node.engine_supervisor import (
    EngineLimits,
    EngineState,
    EngineStatus,
    EngineSupervisor,
)
from penumbra.vehicle.node.frame_counts import WINDOW, Rate
from penumbra.vehicle.node.intake import Arrived
from penumbra.vehicle.node.mailbox import Mailbox
from penumbra.vehicle.node.parameters import defaults
from penumbra.vehicle.ordinary import ordinary_of
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerError, RunnerSettings, engine
from penumbra.vehicle.runners.tensorrt import TensorRTRTXRunner

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


def test_a_mailbox_keeps_the_latest():
    box = Mailbox()
    assert [box.put(n) for n in (1, 2, 3)] == [None, 1, 2]
    assert box.wait() and box.take() == 3 and box.take() is None
    waiting = threading.Thread(target=lambda: results.append(box.wait()))
    results = []
    waiting.start()
    box.close()
    waiting.join(60)
    assert results == [False]
    box.put(4)
    assert box.take() is None


def test_diagnostics_do_not_flicker():
    debounced = DebouncedLevel()
    given = [ERROR, OK, WARN, ERROR, ERROR, OK, OK, ERROR, OK, OK, WARN, OK, OK, OK]
    reported = [OK, OK, OK, WARN, ERROR, ERROR, ERROR, ERROR, ERROR, ERROR, WARN, WARN, WARN, OK]
    assert [debounced.update(level) for level in given] == reported


def test_a_rate_is_averaged_over_some_seconds():
    rate = Rate(since=0.0)
    for n in range(100):
        rate.add(n / 10)
    assert rate.at(9.9) == pytest.approx(10, abs=0.3)
    assert rate.at(9.9 + WINDOW / 2) == pytest.approx(5, abs=0.3)
    assert rate.at(9.9 + 2 * WINDOW) == 0


def test_images_are_scaled_only_if_the_engine_has_a_fixed_size():
    image = tiny_bundles.image(36, 48)
    assert fit_to_size(image, (None, None)) is image
    assert fit_to_size(image, (36, 48)) is image
    halved = fit_to_size(image, (18, 24))
    blocks = image.reshape(18, 2, 24, 2, 3).mean((1, 3))  # the definition of scaling by area
    assert np.abs(halved - blocks).max() <= 0.5
    assert fit_to_size(image, (72, None)).shape == (72, 48, 3)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"cameras": "front,front"}, "give each a unique name"),
        ({"cameras": "front,left", "image_topic": "/image"}, "for 2 cameras: use {camera}"),
    ],
)
def test_ambiguous_cameras_are_rejected(changes, message):
    with pytest.raises(PenumbraError, match=message):
        camera_names({**defaults("segmentation"), **changes})


def test_an_image_size_that_does_not_match_the_bundle_is_rejected(tmp_path):
    values = {**defaults("segmentation"), "image_size": "100x36"}
    with pytest.raises(PenumbraError, match="image_size is 100x36, but street expects 48x36"):
        make_pipeline(values, {"": ordinary_of(tiny_bundles.segmentation(tmp_path / "street"))})
    any_size = tiny_bundles.segmentation(tmp_path / "any", None, None)
    assert make_pipeline(values, {"": ordinary_of(any_size)}).config.settings.image_size == (
        36,
        100,
    )


def test_a_bundle_may_be_a_path_or_the_name_of_a_shipped_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert bundle_folder("no-such-model").name == "no-such-model"
    (tmp_path / "mine").mkdir()
    assert bundle_folder("mine").samefile(tmp_path / "mine")
    for shipped in (config_folder() / "models").glob("*/manifest.yaml"):
        assert bundle_folder(shipped.parent.name) == shipped.parent


def test_a_child_builds_an_engine_or_reports_why_not(tmp_path):
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    settings = RunnerSettings(engine_cache_dir=tmp_path / "engines")
    needed = engine.find(bundle, "tensorrt-rtx", settings, capability="8.9")
    fractions = []
    EngineBuild(needed).run(lambda fraction, phase: fractions.append(fraction))
    assert needed.built and fractions[-1] == 1.0
    (bundle.path / "model.onnx").unlink()
    needed.path.unlink()
    with pytest.raises(RunnerError, match="model.onnx is missing from its folder"):
        EngineBuild(needed).run(lambda fraction, phase: None)


def test_an_engine_that_cannot_be_built_is_not_tried_again(tmp_path, monkeypatch):
    """`auto` selects the next runner, and the node itself builds nothing."""
    built, opened = [], []

    class Killed:
        def __init__(self, needed):
            built.append(needed.key.backend)

        def run(self, progress):
            raise RunnerError("the compiler was killed")

        def cancel(self):
            pass

    bundle = tiny_bundles.segmentation(tmp_path / "street")
    settings = RunnerSettings(engine_cache_dir=tmp_path / "engines")
    needed = engine.find(bundle, "tensorrt-rtx", settings, capability="8.9")
    monkeypatch.setattr(TensorRTRTXRunner, "obstacle", classmethod(lambda cls, settings: None))
    monkeypatch.setattr(TensorRTRTXRunner, "missing_engine", lambda runner: needed)
    monkeypatch.setattr(TensorRTRTXRunner, "_open", opened.append)
    monkeypatch.setattr(engine_supervisor, "EngineBuild", Killed)
    made = []

    def make() -> Pipeline:
        made.append(Pipeline(bundle, PipelineConfig("auto", settings=settings)))
        return made[-1]

    supervisor = EngineSupervisor(make, lambda: EngineLimits(restart_pause=0.001))
    supervisor.start()
    assert supervisor.wait_until_ready()
    assert "CPU" in supervisor.description
    assert "the compiler was killed" in made[-1].selector.refused["tensorrt-rtx"]
    supervisor._failed(RunnerError("broken"))  # restarts without another build
    assert supervisor.wait_until_ready()
    assert supervisor.stop(60)
    assert (built, opened) == (["tensorrt-rtx"], [])


@pytest.mark.parametrize("of_depth", [False, True])
def test_non_finite_uncertainty_raises_an_alert_without_thresholds(tmp_path, of_depth):
    make = tiny_bundles.depth if of_depth else tiny_bundles.segmentation
    bundle = make(tmp_path / "bundle", thresholds=None)
    settings = alerts.monitor_settings(defaults("segmentation"), bundle)
    assert not settings.has_thresholds
    monitor = Monitor(settings)
    for _ in range(5):
        calm = monitor.judge(np.full((9, 9), 0.1), 0.0, Conditions.assumed())
        assert (calm.level, calm.reason[:29]) == (Level.WARN, "the bundle has no thresholds:")
    report = CameraDiagnostics(SimpleNamespace(monitor=monitor, name=""))
    assert report._ood().level == DiagnosticStatus.WARN
    for _ in range(5):
        wrong = monitor.judge(np.full((9, 9), np.nan), 0.0, Conditions.assumed())
    assert wrong.level is Level.ALERT and "non-finite" in wrong.reason
    assert wrong.frame_threshold is None
    message = alerts.alert_message(wrong, Header(), bundle, (9, 9))
    assert np.isnan(message.frame_threshold) and np.isnan(message.causes[0].threshold)
    # STALE is reported without thresholds, too.
    assert report._ood().level == DiagnosticStatus.ERROR
    monitor.fail("no images")
    assert report._ood().level == DiagnosticStatus.STALE


@pytest.mark.parametrize(
    "rate, gap, impossible",
    [(0.0, 1.0, False), (10.0, 1.0, False), (0.5, 1.0, True), (0.5, 3.0, False)],
)
def test_parameters_that_prevent_every_alert(rate, gap, impossible):
    values = {**defaults("segmentation"), "rate_limit": rate, "ood.stale_after": gap}
    assert (alerts.never_alerts(values) is not None) is impossible


@pytest.mark.parametrize("meanwhile", ["tick", "close"])
def test_the_last_published_level_is_the_last_verdict(tmp_path, meanwhile):
    """STALE from another thread, between a verdict and its alert, supersedes the alert."""
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    published, others = [], []
    supervisor = SimpleNamespace(
        status=EngineStatus(EngineState.RUNNING, "runs", 1.0),
        description="",
    )
    publisher = MagicMock()
    publisher.publish = lambda alert, now: published.append(Level(alert.level))
    clock = SimpleNamespace(fact=lambda now, limit: HOLDS)
    node = MagicMock()
    node.get_clock().now().to_msg.return_value = Time()
    node.get_clock().now().nanoseconds = 0
    values = {**defaults("segmentation"), "max_age": 0.0}
    values |= {"ood.frame_threshold": 9.0, "ood.pixel_threshold": 9.0}
    stream = CameraStream(
        node,
        "",
        ordinary_of(bundle),
        MagicMock(),
        publisher,
        supervisor,
        clock,
        lambda: values,
        lambda: HOLDS,
    )
    with Pipeline(
        bundle, PipelineConfig("onnxruntime", settings=RunnerSettings(threads=1))
    ) as pipeline:
        supervisor.process = pipeline.process
        judge = stream.monitor.judge

        def interrupted(*arguments):
            verdict = judge(*arguments)
            supervisor.status = EngineStatus(
                EngineState.FAILED, "another camera's image broke it", math.nan
            )
            act = stream.tick if meanwhile == "tick" else lambda: stream.close(0.0, "deactivated")
            others.append(threading.Thread(target=act))
            others[0].start()
            others[0].join(0.2)  # until it blocks
            return verdict

        stream.monitor.judge = interrupted
        message = fill_image(Image(), tiny_bundles.image(), "bgr8")
        stream._process(Arrived(message, 0.0, 0.0))
        others[0].join(60)
    assert published == [Level.STALE]
    assert stream.monitor.level is Level.STALE


def test_an_engine_that_never_starts_is_given_up(tmp_path):
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    config = PipelineConfig("tensorrt", settings=RunnerSettings(engine_cache_dir=tmp_path))
    supervisor = EngineSupervisor(
        lambda: Pipeline(bundle, config), lambda: EngineLimits(restart_pause=0.001)
    )
    supervisor.start()
    assert not supervisor.wait_until_ready()
    assert supervisor.status.state is EngineState.GIVEN_UP
    assert "gave up after 3 restarts" in supervisor.status.text
    assert supervisor.stop(60)

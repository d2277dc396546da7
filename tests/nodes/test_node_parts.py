"""The parts of the node that need no DDS: hand-over, hysteresis, sizes, the engine's keeper."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tiny_bundles
from diagnostic_msgs.msg import DiagnosticStatus

from penumbra.errors import PenumbraError
from penumbra.nodes.camera import fitted
from penumbra.nodes.configuration import camera_names, make_pipeline
from penumbra.nodes.counting import WINDOW, Rate
from penumbra.nodes.diagnostics import Steady
from penumbra.nodes.engine_build import EngineBuild
from penumbra.nodes.engine_keeper import EngineKeeper, State
from penumbra.nodes.mailbox import Mailbox
from penumbra.nodes.parameters import defaults
from penumbra.pipeline import Config, Pipeline
from penumbra.runners import RunnerError, Settings, engine
from penumbra.share import bundle_folder, config_folder

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
    assert fitted(image, (None, None)) is image
    assert fitted(image, (36, 48)) is image
    halved = fitted(image, (18, 24))
    blocks = image.reshape(18, 2, 24, 2, 3).mean((1, 3))  # what scaling by area is
    assert np.abs(halved - blocks).max() <= 0.5
    assert fitted(image, (72, None)).shape == (72, 48, 3)


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
    settings = Settings(engine_cache_dir=tmp_path / "engines")
    needed = engine.find(bundle, "tensorrt-rtx", settings, capability="8.9")
    told = []
    EngineBuild(needed).run(lambda fraction, phase: told.append(fraction))
    assert needed.built and told[-1] == 1.0
    (bundle.path / "model.onnx").unlink()
    needed.path.unlink()
    with pytest.raises(RunnerError, match="model.onnx is missing from its bundle"):
        EngineBuild(needed).run(lambda fraction, phase: None)


def test_a_keeper_gives_up_on_an_engine_that_never_starts(tmp_path):
    pipeline = Pipeline(
        tiny_bundles.segmentation(tmp_path / "street"),
        Config("tensorrt", settings=Settings(engine_cache_dir=tmp_path)),
    )
    keeper = EngineKeeper(pipeline, lambda: 0.001)
    keeper.start()
    assert not keeper.wait_until_ready()
    assert keeper.status.state is State.GIVEN_UP
    assert "gave up after 3 restarts" in keeper.status.text
    assert keeper.stop(60)

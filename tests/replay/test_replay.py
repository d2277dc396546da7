"""Bags replayed over real DDS to a node in another process, in time and in lockstep."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from rosgraph_msgs.msg import Clock
from small_drives import TENTH, image_bytes, picture, read, small_drive, write_images

from penumbra.bags import (
    CAMERA_INFO_TOPIC,
    IMAGE_TOPIC,
    BagWriter,
    array_of,
    open_bag,
    write_drive,
)
from penumbra.bags.messages import IMAGE, START_NS, header_stamp, jazzy
from penumbra.errors import PenumbraError
from penumbra.replay.bag_replay import LockstepSettings, PlaybackSettings, RecordingSettings, replay
from penumbra.replay.domain import private_domain
from penumbra.replay.session import Session

FRAMES = 6
LONG = 120.0  # seconds; nothing here takes so long unless it is broken


@pytest.fixture(scope="module", autouse=True)
def node():
    """The answering node, alone in a ROS domain with the tests of this module."""
    with private_domain():
        process = subprocess.Popen([sys.executable, Path(__file__).with_name("answering_node.py")])
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 0


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    path = tmp_path_factory.mktemp("drive") / "drive"
    write_drive(small_drive(FRAMES), path)
    return path


@pytest.fixture
def bag(drive):
    warnings: list[str] = []
    with open_bag(drive, warnings.append) as bag:
        yield bag
    assert warnings == []


def to(name: str, **others) -> PlaybackSettings:
    return PlaybackSettings(remap={IMAGE_TOPIC: f"/{name}/image"}, **others)


def steps(name: str, *more: str, patience=LONG, ready=LONG) -> LockstepSettings:
    return LockstepSettings((f"/{name}/prediction", *more), patience=patience, ready=ready)


def test_two_replays_in_lockstep_give_the_same_recording(bag, tmp_path):
    seen = []
    for name in ("first", "second"):
        recording = RecordingSettings(tmp_path / name, under=("/answering",))
        answers = steps("answering", "/answering/ood")
        summary = replay(
            bag, to("answering"), answers, recording, on_answer=lambda *pair: seen.append(pair)
        )
        assert summary.finished
        assert (summary.messages, summary.answered) == (2 * FRAMES, FRAMES)
        assert (summary.resent, summary.recorded) == (0, 3 * FRAMES)
    first, second = read(tmp_path / "first"), read(tmp_path / "second")
    assert sorted(first) == sorted(second)

    with open_bag(tmp_path / "first") as recorded:
        predictions = [
            message for topic, _, message in recorded if topic == "/answering/prediction"
        ]
        alerts = [message for topic, _, message in recorded if topic == "/answering/ood"]
        assert recorded.topics["/answering/ood"].type == "penumbra_msgs/msg/OodAlert"
    for number, message in enumerate(predictions):
        assert np.array_equal(array_of(message), 255 - picture(number))
    assert [alert.frame_score for alert in alerts] == [0.25] * FRAMES

    stamps = [START_NS + number * TENTH for number in range(FRAMES)]
    assert [frame.stamp_ns for frame, _ in seen] == stamps * 2
    for frame, answers in seen:
        assert sorted(answers) == ["/answering/ood", "/answering/prediction"]
        assert {header_stamp(data) for data in answers.values()} == {frame.stamp_ns}


def test_what_is_only_recorded_is_complete_too(bag, tmp_path):
    """/answering/late is no answer, and would be overtaken if the next frame were not held back."""
    recording = RecordingSettings(tmp_path / "out", under=(), topics=("/answering/late",))
    replay(bag, to("answering"), steps("answering"), recording)
    stamps = [message.stamp_ns for message in read(tmp_path / "out")]
    assert stamps == [START_NS + number * TENTH for number in range(FRAMES)]


def test_a_frame_without_an_answer_is_sent_once_more(tmp_path):
    write_images(tmp_path / "bag", [START_NS])
    with open_bag(tmp_path / "bag") as bag:
        # The first copy is ignored, so this patience is spent; the answer to the second needs less.
        summary = replay(bag, to("forgetful"), steps("forgetful", patience=3.0))
    assert summary.finished
    assert (summary.answered, summary.resent, summary.messages) == (1, 1, 2)


def test_a_node_that_never_answers_is_an_error_and_no_recording(bag, tmp_path):
    recording = RecordingSettings(tmp_path / "out", under=("/silent",))
    with pytest.raises(PenumbraError, match="no answer on /silent/prediction to frame 1 .*twice"):
        replay(bag, to("silent"), steps("silent", patience=0.2), recording)
    assert list(tmp_path.iterdir()) == []


def test_no_subscriber(bag):
    with pytest.raises(PenumbraError, match="no subscriber .* on /nobody/image .*start the node"):
        replay(bag, to("nobody"), steps("answering", ready=0.5))


def test_the_node_expects_another_type(bag):
    with pytest.raises(PenumbraError, match="/mistaken/image expects sensor_msgs/msg/Compressed"):
        replay(bag, to("mistaken"), steps("answering"))


def test_nobody_answers_there(bag, monkeypatch):
    monkeypatch.setattr("penumbra.replay.lockstep.MEETING", 0.5)
    with pytest.raises(PenumbraError, match="nobody publishes /nobody/prediction"):
        replay(bag, to("answering"), steps("nobody"))


def test_the_frames_are_not_among_the_topics(bag):
    with pytest.raises(PenumbraError, match="needs /camera/image_raw among"):
        replay(bag, to("answering", topics=(CAMERA_INFO_TOPIC,)), steps("answering"))


def test_in_time_with_a_clock(bag, tmp_path):
    """Messages at the pace of the bag by a steady clock, /clock between them, never backwards."""
    ticks: list[int] = []
    heard = threading.Event()
    done = threading.Event()

    def listen() -> None:
        with Session() as session:

            def take(clock: Clock) -> None:
                ticks.append(clock.clock.sec * 10**9 + clock.clock.nanosec)

            session.node.create_subscription(Clock, "/clock", take, 100)
            heard.set()
            session.wait(done.is_set, LONG)

    listener = threading.Thread(target=listen)
    listener.start()
    assert heard.wait(LONG)
    recording = RecordingSettings(tmp_path / "out", under=(), topics=("/answering/prediction",))
    summary = replay(bag, to("answering", rate=0.5, clock=True), None, recording, wait=LONG)
    done.set()
    listener.join(LONG)
    assert summary.finished
    assert summary.messages == 2 * FRAMES
    # Half speed: (FRAMES - 1) tenths of a second take twice as long, and never less.
    assert summary.seconds >= 2 * (FRAMES - 1) * 0.1
    last = START_NS + (FRAMES - 1) * TENTH
    assert ticks == sorted(ticks)
    assert all(START_NS <= tick <= last for tick in ticks)
    assert ticks
    found = read(tmp_path / "out")
    # Keep-latest on both sides: on a busy machine some frames may be overtaken, but not changed.
    sent = [inverted(number) for number in range(FRAMES)]
    assert found and all(message.data in sent for message in found)


def inverted(number: int) -> bytes:
    message = jazzy().deserialize_cdr(image_bytes(START_NS + number * TENTH, number), IMAGE)
    message.data = 255 - message.data
    return bytes(jazzy().serialize_cdr(message, IMAGE))


def test_a_loop_goes_on_until_stopped_and_leaves_a_whole_recording(bag, tmp_path):
    stop = threading.Event()
    rounds = 0

    def progress(messages, total):
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            stop.set()
        return messages

    recording = RecordingSettings(tmp_path / "out", under=("/answering",))
    playing = to("answering", rate=20.0, loop=True)
    summary = replay(bag, playing, None, recording, wait=LONG, stop=stop, progress=progress)
    assert not summary.finished
    assert 2 * 2 * FRAMES <= summary.messages < 3 * 2 * FRAMES
    warnings: list[str] = []
    assert len(read(tmp_path / "out", warnings)) == summary.recorded > 0
    # The stamps in the headers begin again with every round, and are recorded as they are. By how
    # much is open: the node keeps the latest frame only, and may miss the last or the first.
    assert all(re.search("runs backwards by .* s in /answering", warning) for warning in warnings)


def test_time_that_runs_backwards_is_reported_and_everything_is_played(tmp_path):
    times = [START_NS + i * TENTH for i in range(3)]
    write_images(tmp_path / "bag", times, [times[1], times[0], times[2]])
    warnings: list[str] = []
    with open_bag(tmp_path / "bag", warnings.append) as bag:
        summary = replay(bag, to("answering"), steps("answering"))
    assert summary.answered == 3
    assert len(warnings) == 1 and "time runs backwards by 0.100 s" in warnings[0]


def test_what_is_left_of_a_cut_off_bag_is_replayed(drive, tmp_path):
    data = (drive / "drive.mcap").read_bytes()
    cut = tmp_path / "cut.mcap"
    cut.write_bytes(data[: data.rindex(image_bytes(START_NS + 4 * TENTH, 4)) + 100])
    warnings: list[str] = []
    with open_bag(cut, warnings.append) as bag:
        summary = replay(bag, to("answering"), steps("answering"))
    assert summary.answered == 4
    assert len(warnings) == 1 and "9 messages recovered" in warnings[0]


def test_types_that_are_not_installed(tmp_path):
    header = jazzy().fielddefs["std_msgs/msg/Header"]
    store = type(jazzy())()
    store.register({**jazzy().fielddefs, "zoo/msg/Elephant": header})
    with BagWriter(tmp_path / "bag", store=store) as bag:
        image = jazzy().deserialize_cdr(image_bytes(START_NS), IMAGE)
        bag.write("/zoo", "zoo/msg/Elephant", START_NS, image.header)
        bag.write(IMAGE_TOPIC, IMAGE, START_NS, image)
    warnings: list[str] = []
    with open_bag(tmp_path / "bag", warnings.append) as bag:
        assert replay(bag, to("answering")).messages == 1
        (warning,) = warnings
        assert "/zoo holds zoo/msg/Elephant, which is not installed" in warning
        with pytest.raises(PenumbraError, match="source the workspace"):
            replay(bag, PlaybackSettings(topics=("/zoo",)))


def test_the_command_line_from_lockstep_to_recording(drive, tmp_path):
    """The verb in a process of its own, as a user calls it."""
    command = [sys.executable, "-m", "penumbra.cli.main", "replay", drive, "--json"]
    command += ["--remap", f"{IMAGE_TOPIC}:=/answering/image", "--lockstep"]
    command += ["--answer", "/answering/prediction", "--patience", str(LONG)]
    command += ["--record", tmp_path / "out", "--record-under", "/answering"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["answered"] == FRAMES
    again = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert again.returncode == 2
    assert again.stderr.startswith("penumbra replay: ") and "exists already" in again.stderr

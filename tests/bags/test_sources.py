"""Data sets, pictures, videos and rendered streets as drives: their times, cameras and truth."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from small_drives import HEIGHT, WIDTH, picture, write_png

from penumbra.bags import (
    CAMERA_INFO_TOPIC,
    COMPRESSED_TOPIC,
    DEPTH_TOPIC,
    LABELS_TOPIC,
    FrameSelection,
    array_of,
    images_drive,
    open_bag,
    video_drive,
    write_drive,
)
from penumbra.bags.messages import START_NS
from penumbra.errors import PenumbraError
from penumbra.offline.datasets.camvid_classes import VOID
from penumbra.offline.datasets.camvid_drive import camvid_drive
from penumbra.offline.datasets.kitti_drive import kitti_drive
from penumbra.offline.scenes import Camera
from penumbra.offline.scenes.street_drive import street_drive

SECOND = 10**9
# KITTI's calibration of camera 2, with a rotation and an original size that can be told apart.
RAW_CALIBRATION = """calib_time: 09-Jan-2012 13:57:47
S_02: 9.6e+01 6.4e+01
K_02: 80 0 48 0 81 32 0 0 1
D_02: -0.3 0.2 0.001 0.0005 -0.07
S_rect_02: 4.8e+01 3.2e+01
R_rect_02: 0 1 0 -1 0 0 0 0 1
P_rect_02: 40 0 24 45 0 41 16 0.2 0 0 1 0.003
"""


def frames_of(drive):
    return list(drive.frames)


def seconds(frames):
    return [(frame.stamp_ns - START_NS) / SECOND for frame in frames]


@pytest.fixture
def camvid(tmp_path):
    """Two sequences in one split, as CamVid's test split has them."""
    for number, name in enumerate(["0001TP_008550", "0001TP_008580", "0001TP_008610",
                                   "Seq05VD_f00000", "Seq05VD_f00030"]):  # fmt: skip
        write_png(tmp_path / "test" / f"{name}.png", picture(number))
        write_png(
            tmp_path / "testannot" / f"{name}.png", np.full((HEIGHT, WIDTH), number, np.uint8)
        )
    return tmp_path


def test_camvid_counts_video_frames_at_30_hz_and_keeps_sequences_apart(camvid):
    drive = camvid_drive(camvid)
    frames = frames_of(drive)
    assert seconds(frames) == [285, 286, 287, 297, 298]  # the second sequence 10 s after the first
    assert [frame.labels[0, 0] for frame in frames] == [0, 1, 2, 3, 4]
    assert np.array_equal(frames[3].image, picture(3))
    assert drive.notes["sequences"] == "0001TP, Seq05VD"
    assert drive.total == 5


def test_camvid_a_stretch_of_one_sequence(camvid):
    assert seconds(frames_of(camvid_drive(camvid, sequence="Seq05VD"))) == [0, 1]
    selection = FrameSelection(skip=1, every=2, frames=1)
    assert seconds(frames_of(camvid_drive(camvid, selection=selection))) == [286]


def test_camvid_without_labels_and_with_a_broken_one(camvid):
    (camvid / "testannot" / "0001TP_008550.png").write_bytes(b"")
    with pytest.raises(PenumbraError, match="0001TP_008550.png is not a complete"):
        frames_of(camvid_drive(camvid))
    (camvid / "testannot").rename(camvid / "elsewhere")
    assert [frame.labels for frame in frames_of(camvid_drive(camvid))] == [None] * 5


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda p: camvid_drive(p, sequence="0016E5"), "it has 0001TP, Seq05VD"),
        (lambda p: camvid_drive(p, split="val"), "no folder .*val"),
        (lambda p: camvid_drive(p, selection=FrameSelection(skip=5)), "leaves nothing of 5 frames"),
        (lambda p: FrameSelection(every=0), "--every is 0"),
        (lambda p: images_drive(p / "none"), "no folder"),
        (lambda p: images_drive(p), "no image"),
        (lambda p: video_drive(p / "none.mp4"), "no file"),
        (lambda p: kitti_drive(p), "no drive in"),
        (lambda p: kitti_drive(p / "none"), "no folder"),
        (lambda p: street_drive(seconds=0), "--seconds is 0"),
        (lambda p: street_drive(anomaly="unicorn"), "--anomaly unicorn: choose one of ball, sofa"),
        (lambda p: images_drive(p / "test").at_rate(-1), "--rate-hz is -1"),
    ],
)
def test_mistakes_are_reported(camvid, call, message):
    with pytest.raises(PenumbraError, match=message):
        call(camvid)


@pytest.fixture
def raw_kitti(tmp_path):
    day = tmp_path / "2011_09_26"
    drive = day / "2011_09_26_drive_0001_sync"
    for number in range(3):
        write_png(drive / "image_02" / "data" / f"{number:010d}.png", picture(number))
    lines = [f"2011-09-26 13:02:25.{number}00000001" for number in range(3)]
    (drive / "image_02" / "timestamps.txt").write_text("\n".join(lines) + "\n")
    (day / "calib_cam_to_cam.txt").write_text(RAW_CALIBRATION)
    depth = np.zeros((HEIGHT, WIDTH), np.uint16)
    depth[3, 4] = 10 * 256
    write_png(drive / "proj_depth" / "groundtruth" / "image_02" / "0000000001.png", depth)
    return tmp_path


def test_kitti_raw(raw_kitti):
    frames = frames_of(kitti_drive(raw_kitti))
    # 2011-09-26 13:02:25 UTC, from `date -u +%s`.
    assert [frame.stamp_ns for frame in frames] == [
        1317042145 * SECOND + number * 10**8 + 1 for number in range(3)
    ]
    camera = frames[0].camera
    assert np.array_equal(camera.k, [[40, 0, 24], [0, 41, 16], [0, 0, 1]])
    assert np.array_equal(camera.p, [[40, 0, 24, 0], [0, 41, 16, 0], [0, 0, 1, 0]])
    assert camera.d == (0,) * 5 and camera.r is None
    assert frames[0].depth is None
    assert frames[1].depth[3, 4] == 10
    assert np.isnan(frames[1].depth).sum() == HEIGHT * WIDTH - 1


@pytest.mark.parametrize("inner", [".", "2011_09_26", "2011_09_26/2011_09_26_drive_0001_sync"])
def test_kitti_measured_depth_is_no_second_drive(raw_kitti, inner):
    drive = kitti_drive(raw_kitti / inner)
    assert drive.notes["source"] == "KITTI 2011_09_26_drive_0001_sync image_02"
    assert [frame.depth is not None for frame in frames_of(drive)] == [False, True, False]


def test_kitti_pictures_of_other_sizes_get_the_camera_that_fits(raw_kitti):
    folder = raw_kitti / "2011_09_26/2011_09_26_drive_0001_sync/image_02/data"
    write_png(folder / "0000000000.png", np.zeros((64, 96, 3), np.uint8))  # as the camera saw it
    write_png(folder / "0000000002.png", np.zeros((16, 24, 3), np.uint8))  # somebody's half size
    original, _, half = (frame.camera for frame in frames_of(kitti_drive(raw_kitti)))
    assert np.array_equal(original.k, [[80, 0, 48], [0, 81, 32], [0, 0, 1]])
    assert original.d == (-0.3, 0.2, 0.001, 0.0005, -0.07)
    assert np.array_equal(original.r, [[0, 1, 0], [-1, 0, 0], [0, 0, 1]])
    assert np.array_equal(half.k, [[20, 0, 12], [0, 20.5, 8], [0, 0, 1]])


def test_kitti_several_drives_ask_for_a_choice(raw_kitti):
    day = raw_kitti / "2011_09_26"
    write_png(day / "other" / "image_02" / "data" / "0.png", picture(0))
    (day / "other" / "image_02" / "timestamps.txt").write_text("2011-09-26 13:02:25.5\n")
    with pytest.raises(PenumbraError, match="--sequence from 2011_09_26_drive_0001_sync, other"):
        kitti_drive(raw_kitti)
    with pytest.raises(PenumbraError, match="no drive 'third'"):
        kitti_drive(raw_kitti, "third")
    with pytest.raises(PenumbraError, match="no image_03"):
        kitti_drive(raw_kitti, "other", "image_03")
    frames = frames_of(kitti_drive(raw_kitti, "other"))
    assert [frame.stamp_ns % SECOND for frame in frames] == [5 * 10**8]


def test_kitti_odometry_and_stamps_that_do_not_fit(tmp_path):
    drive = tmp_path / "sequences" / "07"
    for number in (2, 4):
        write_png(drive / "image_2" / f"{number:06d}.png", picture(number))
    (drive / "calib.txt").write_text("P0: " + "1 " * 12 + "\nP2: 40 0 24 9 0 41 16 9 0 0 1 9\n")
    (drive / "times.txt").write_text("".join(f"{n * 0.1:.6e}\n" for n in range(5)))
    frames = frames_of(kitti_drive(tmp_path))
    assert seconds(frames) == [0.2, 0.4]  # by number: only a part of the images is here
    assert np.array_equal(frames[0].camera.k, [[40, 0, 24], [0, 41, 16], [0, 0, 1]])
    (drive / "times.txt").write_text("0\n0.1\n0.2\n")
    with pytest.raises(PenumbraError, match="3 lines for 2 images"):
        kitti_drive(tmp_path)
    (drive / "times.txt").write_text("0\nsoon\n")
    with pytest.raises(PenumbraError, match="'soon' is not a time stamp"):
        kitti_drive(tmp_path)
    (drive / "times.txt").unlink()
    with pytest.raises(PenumbraError, match="no time stamps"):
        kitti_drive(tmp_path)


def test_images_come_by_number_and_files_stay_as_they_are(tmp_path):
    for number in (1, 9, 10):
        write_png(tmp_path / f"shot{number}.png", picture(number))
    frames = frames_of(images_drive(tmp_path))
    assert [np.array_equal(f.image, picture(n)) for f, n in zip(frames, (1, 9, 10), strict=True)]
    assert np.array_equal(frames[2].image, picture(10))
    assert seconds(frames) == [0, 0.1, 0.2]
    write_drive(images_drive(tmp_path), tmp_path / "bag", compressed=True)
    with open_bag(tmp_path / "bag") as bag:
        data = [message.data.tobytes() for topic, _, message in bag if topic == COMPRESSED_TOPIC]
    assert data == [(tmp_path / f"shot{number}.png").read_bytes() for number in (1, 9, 10)]


@pytest.fixture
def video(tmp_path):
    file = tmp_path / "drive.avi"
    film = cv2.VideoWriter(str(file), cv2.VideoWriter_fourcc(*"MJPG"), 25, (WIDTH, HEIGHT))
    for grey in range(0, 250, 25):
        film.write(np.full((HEIGHT, WIDTH, 3), grey, np.uint8))
    film.release()
    return file


def test_video(video):
    frames = frames_of(video_drive(video))
    assert seconds(frames) == [number * 0.04 for number in range(10)]
    # MJPG keeps an even grey to a level or two.
    assert [round(frame.image.mean() / 25) for frame in frames] == list(range(10))
    drive = video_drive(video, FrameSelection(skip=1, every=3, frames=3))
    part = frames_of(drive)
    assert [round(frame.image.mean() / 25) for frame in part] == [1, 4, 7]
    assert seconds(part) == [0.04, 0.16, 0.28]
    assert drive.total == 3


def test_a_file_that_is_no_video(tmp_path, capfd):
    (tmp_path / "film.mp4").write_text("no film")
    with pytest.raises(PenumbraError, match="is not a video"):
        video_drive(tmp_path / "film.mp4")


def test_street_is_seeded_and_its_anomaly_enters_on_time():
    def drive(seed):
        camera = Camera(64, 48)
        return street_drive(seed, 2.0, 1.0, camera=camera, anomaly="duck", anomaly_at=0.1)

    before, after = frames_of(drive(3))
    assert seconds([before, after]) == [0, 1]
    assert np.array_equal(next(iter(drive(3).frames)).image, before.image)
    assert not np.array_equal(next(iter(drive(4).frames)).image, before.image)
    assert not before.anomaly.any()
    assert after.anomaly.any()
    assert (after.labels[after.anomaly] == VOID).all()
    assert np.array_equal(before.camera.k[:, 2], [31.5, 23.5, 1])


def test_real_camvid(data_dir, tmp_path):
    drive = camvid_drive(data_dir / "camvid", sequence="0001TP", selection=FrameSelection(frames=2))
    write_drive(drive, tmp_path / "bag", compressed=True)
    with open_bag(tmp_path / "bag") as bag:
        found = [(topic, stamp - START_NS, message) for topic, stamp, message in bag]
    assert [stamp / SECOND for _, stamp, _ in found] == [285, 285, 286, 286]
    pictures = [message for topic, _, message in found if topic == COMPRESSED_TOPIC]
    file = data_dir / "camvid" / "test" / "0001TP_008550.jpg"
    assert pictures[0].data.tobytes() == file.read_bytes()
    labels = [array_of(message) for topic, _, message in found if topic == LABELS_TOPIC]
    assert labels[0].shape == (360, 480) and labels[0].max() <= VOID


def test_real_kitti(data_dir, tmp_path):
    write_drive(
        kitti_drive(data_dir / "kitti" / "raw", selection=FrameSelection(frames=2)),
        tmp_path / "bag",
    )
    with open_bag(tmp_path / "bag") as bag:
        found = {(topic, stamp): message for topic, stamp, message in bag}
    stamps = sorted({stamp for _, stamp in found})
    assert stamps == [1317042145 * SECOND, 1317042145 * SECOND + 103_700_000]
    camera = found[CAMERA_INFO_TOPIC, stamps[0]]
    assert (camera.width, camera.height, camera.k[0]) == (1242, 375, 721.5377)
    depth = array_of(found[DEPTH_TOPIC, stamps[0]])
    measured = np.isfinite(depth)
    assert 0.01 < measured.mean() < 0.2 and 0 < depth[measured].min() < depth[measured].max() < 200

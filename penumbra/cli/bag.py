"""Write a rosbag2 from a data set, images, a video, a rendered street or another bag.

Topics: images on /camera/image_raw (with --compressed on /camera/image_raw/compressed), the camera
calibration, if known, on /camera/camera_info, ground truth on /ground_truth/labels (mono8, class
numbers), /ground_truth/depth (32FC1, metres, NaN where not measured) and /ground_truth/anomaly
(mono8). `ros2 bag play`, Foxglove, PlotJuggler and `penumbra replay` open it. A bag is never
overwritten, and is written completely or not at all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penumbra.options import width_and_height

if TYPE_CHECKING:
    from penumbra.bags import Drive, FrameSelection

EXAMPLE = "penumbra bag street --anomaly elephant --seconds 8 --out street-with-elephant"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A sub-command for each source."""
    kinds = parser.add_subparsers(title="sources", metavar="SOURCE", dest="kind", required=True)

    def add(
        name: str, make: Callable[[argparse.Namespace], Drive], help: str
    ) -> argparse.ArgumentParser:
        kind = kinds.add_parser(name, help=help, description=help)
        kind.set_defaults(make=make)
        return kind

    camvid = add("camvid", _camvid, "CamVid's layout: images and labels of a split")
    camvid.add_argument("source", type=Path, metavar="DIR", help="folder with train, val, test")
    camvid.add_argument("--split", choices=("train", "val", "test"), default="test")
    camvid.add_argument("--sequence", help="only one, e.g. 0001TP (default: one after the other)")

    kitti = add(
        "kitti", _kitti, "KITTI's raw or odometry layout: images, camera calibration, LiDAR depth"
    )
    kitti.add_argument("source", type=Path, metavar="DIR", help="a drive, or a folder above it")
    kitti.add_argument("--sequence", help="which drive, where there are several")
    kitti.add_argument("--camera", help="its folder, e.g. image_03 (default: the left colour one)")

    images = add("images", _images, "a folder of JPEG or PNG images")
    images.add_argument("source", type=Path, metavar="DIR")
    video = add("video", _video, "a video file that OpenCV can read")
    video.add_argument("source", type=Path, metavar="FILE")
    for kind in (camvid, kitti, images, video):
        kind.add_argument("--skip", type=int, default=0, metavar="N", help="skip the first N")
        kind.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th frame")
        kind.add_argument("--frames", type=int, metavar="N", help="at most N frames (default: all)")
        kind.add_argument("--rate-hz", type=float, metavar="R", help="frames per second "
                          "(default: the source's own times; images: 10)")  # fmt: skip

    street = add("street", _street, "a rendered drive, with exact labels and depth")
    street.add_argument("--seed", type=int, default=0, help="another street (default 0)")
    street.add_argument("--seconds", type=float, default=10.0, help="duration (default 10)")
    street.add_argument("--rate-hz", type=float, default=10.0, help="frames per second (10)")
    street.add_argument("--size", default="480x360", help="WIDTHxHEIGHT (default 480x360)")
    street.add_argument("--speed", type=float, default=7.0, help="of the vehicle, m/s (default 7)")
    street.add_argument("--anomaly", metavar="WHAT", help="an object of no trained class "
                        "that enters the road, e.g. elephant, sofa, duck")  # fmt: skip
    street.add_argument("--anomaly-at", type=float, default=5.0, metavar="S",
                        help="when it starts, seconds from the first frame (5)")  # fmt: skip

    convert = kinds.add_parser("convert", help="another bag: ROS 1, other storage, a truncated one")
    convert.add_argument("source", type=Path, metavar="BAG")
    convert.add_argument("--topics", nargs="+", metavar="TOPIC", help="only these (default: all)")

    for kind in kinds.choices.values():
        kind.add_argument("--out", type=Path, required=True, help="folder of the bag to write")
        kind.add_argument("--storage", choices=("mcap", "sqlite3"), default="mcap")
        if kind is not convert:
            kind.add_argument("--compressed", action="store_true", help="CompressedImage: files "
                              "unchanged, other images as JPEG of quality 95")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write the bag and print its size."""
    from tqdm import tqdm

    from penumbra.bags import convert_bag, write_drive

    out, storage = arguments.out, arguments.storage
    if arguments.kind == "convert":
        count = convert_bag(
            arguments.source,
            out,
            storage,
            arguments.topics,
            lambda work, total: tqdm(work, total=total, unit="message", disable=None),
        )
        print(f"{count} messages in {out}")
        return 0
    drive = arguments.make(arguments)
    bar = tqdm(drive.frames, total=drive.total, unit="frame", disable=None)
    drive = type(drive)(bar, drive.total, drive.notes)
    if arguments.kind != "street":
        drive = drive.at_rate(arguments.rate_hz)
    count = write_drive(drive, out, storage, arguments.compressed)
    print(f"{count} frames in {out}")
    return 0


def _selection(arguments: argparse.Namespace) -> FrameSelection:
    from penumbra.bags import FrameSelection

    return FrameSelection(arguments.skip, arguments.every, arguments.frames)


def _camvid(arguments: argparse.Namespace) -> Drive:
    from penumbra.offline.datasets.camvid_drive import camvid_drive

    return camvid_drive(
        arguments.source, arguments.split, arguments.sequence, _selection(arguments)
    )


def _kitti(arguments: argparse.Namespace) -> Drive:
    from penumbra.offline.datasets.kitti_drive import kitti_drive

    return kitti_drive(
        arguments.source, arguments.sequence, arguments.camera, _selection(arguments)
    )


def _images(arguments: argparse.Namespace) -> Drive:
    from penumbra.bags import images_drive

    return images_drive(arguments.source, _selection(arguments))


def _video(arguments: argparse.Namespace) -> Drive:
    from penumbra.bags import video_drive

    return video_drive(arguments.source, _selection(arguments))


def _street(arguments: argparse.Namespace) -> Drive:
    from penumbra.offline.scenes import Camera
    from penumbra.offline.scenes.street_drive import street_drive

    width, height = width_and_height(arguments.size)
    return street_drive(
        arguments.seed,
        arguments.seconds,
        arguments.rate_hz,
        camera=Camera(width, height),
        speed=arguments.speed,
        anomaly=arguments.anomaly,
        anomaly_at=arguments.anomaly_at,
    )

"""Drives in bags: written from data sets and rendered streets, read in any format, replayed.

    write_drive(camvid_drive(folder, sequence="0001TP"), out)    # a rosbag2, whole or not at all
    with open_bag(path) as bag:
        for topic, stamp_ns, message in bag: ...

Only `penumbra.bags.replay` needs ROS, and is imported by itself.
"""

from penumbra.bags.camvid import camvid_drive
from penumbra.bags.conversion import convert_bag
from penumbra.bags.finding import find_bags
from penumbra.bags.frames import (
    ANOMALY_TOPIC,
    CAMERA_INFO_TOPIC,
    COMPRESSED_TOPIC,
    DEPTH_TOPIC,
    IMAGE_TOPIC,
    LABELS_TOPIC,
    Drive,
    Frame,
    Stretch,
    write_drive,
)
from penumbra.bags.kitti import kitti_drive
from penumbra.bags.messages import array_of
from penumbra.bags.pictures import images_drive, video_drive
from penumbra.bags.reader import Bag, Recorded, Topic, open_bag
from penumbra.bags.street import street_drive
from penumbra.bags.writer import STORAGES, BagWriter

__all__ = [
    "ANOMALY_TOPIC",
    "CAMERA_INFO_TOPIC",
    "COMPRESSED_TOPIC",
    "DEPTH_TOPIC",
    "IMAGE_TOPIC",
    "LABELS_TOPIC",
    "STORAGES",
    "Bag",
    "BagWriter",
    "Drive",
    "Frame",
    "Recorded",
    "Stretch",
    "Topic",
    "array_of",
    "camvid_drive",
    "convert_bag",
    "find_bags",
    "images_drive",
    "kitti_drive",
    "open_bag",
    "street_drive",
    "video_drive",
    "write_drive",
]

"""Bags: written atomically, read in any format.

write_drive(images_drive(folder), out)    # a rosbag2
with open_bag(path) as bag:
    for topic, stamp_ns, message in bag: ...
"""

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
    DriveFrame,
    FrameSelection,
    write_drive,
)
from penumbra.bags.messages import array_of
from penumbra.bags.reader import Bag, RawMessage, Topic, open_bag
from penumbra.bags.sources import images_drive, video_drive
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
    "DriveFrame",
    "FrameSelection",
    "RawMessage",
    "Topic",
    "array_of",
    "convert_bag",
    "find_bags",
    "images_drive",
    "open_bag",
    "video_drive",
    "write_drive",
]

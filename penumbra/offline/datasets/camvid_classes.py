"""CamVid's classes, numbered as in the SegNet split; also those of rendered streets."""

from __future__ import annotations

CLASSES = (
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
)
"""A label is an index into this list, or VOID for pixels without a class."""

SKY, BUILDING, POLE, ROAD, PAVEMENT, TREE, SIGN, FENCE, CAR, PEDESTRIAN, BICYCLIST = range(11)
VOID = 11

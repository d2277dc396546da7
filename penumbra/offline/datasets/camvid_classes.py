"""CamVid's classes, numbered as in the SegNet split. The renderer labels its streets with them."""

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
"""CamVid's eleven classes; a label is its place in this list, and VOID is what has no class."""

SKY, BUILDING, POLE, ROAD, PAVEMENT, TREE, SIGN, FENCE, CAR, PEDESTRIAN, BICYCLIST = range(11)
VOID = 11

"""Small data sets and bundles for the tests of the experiments."""

import cv2
import numpy as np
import pytest
import tiny_bundles
import torch
from exported_networks import street
from torch import nn

from penumbra.bundle import write_bundle
from penumbra.offline.datasets.camvid_classes import CLASSES
from penumbra.offline.export.classes import classes_with_colours
from penumbra.offline.models import save_model
from penumbra.offline.models.monodepth import KITTI_RIG, Monodepth
from penumbra.offline.models.segnet import SegNet


@pytest.fixture(scope="session")
def write_set():
    """Writes a data set in Gal's layout, on which the whole protocol takes a second."""
    return _write_set


def _write_set(folder, name="toy", rows=60, splits=3, unused=False):
    place = folder / name / "data"
    place.mkdir(parents=True)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 3)) * [1, 10, 0] + [0, 5, 7]  # the last one is constant
    y = 100 + 20 * np.sin(x[:, 0]) + generator.normal(size=rows)
    columns = [x, y[:, None], *([np.full((rows, 1), 1e6)] if unused else [])]
    np.savetxt(place / "data.txt", np.hstack(columns))
    np.savetxt(place / "index_features.txt", np.arange(3), "%d")
    np.savetxt(place / "index_target.txt", [3], "%d")
    for file, value in (("n_splits", splits), ("n_hidden", 8), ("n_epochs", 40)):
        np.savetxt(place / f"{file}.txt", [value], "%d")
    np.savetxt(place / "dropout_rates.txt", [0.01, 0.1])
    np.savetxt(place / "tau_values.txt", [0.05, 0.5])
    for i in range(splits):
        order = generator.permutation(rows)
        np.savetxt(place / f"index_train_{i}.txt", order[:50], "%.18e")
        np.savetxt(place / f"index_test_{i}.txt", order[50:], "%.18e")
    return place


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory):
    """Writes a bundle of a small random network, with weights and manifest but without a graph.

    `small_bundle("class")`, `"encdec"`, with fewer classes, or `"monodepth"`; returns its folder.
    """
    return lambda kind, classes=CLASSES: _small_bundle(tmp_path_factory, kind, classes)


def _small_bundle(tmp_path_factory, kind, classes):
    torch.manual_seed(0)
    if kind == "monodepth":
        model = Monodepth(width=0.125, size=(128, 128), rate=0.3)
        nn.init.normal_(model.heads["disparity1"].weight, std=0.3)  # else nothing varies
        architecture, like = "monodepth", tiny_bundles.depth
        scale = {"classes": [], "depth": KITTI_RIG}
    else:
        model = SegNet(classes, width=0.125, dropout=kind, rate=0.2)
        architecture, like = "segnet", tiny_bundles.segmentation
        scale = {"classes": classes_with_colours(classes)}
    folder = tmp_path_factory.mktemp(f"{kind}{len(classes)}") / kind
    arguments = {name: model.config[name] for name in ("dropout", "rate", "width")}
    entry = {"entry_point": architecture, "reference": None, "arguments": arguments}
    rules = {"relu": "moment", "softmax": "moment", "variance": "diagonal"}
    bundle = like(folder, None, None, model=entry, rules=rules, **scale)
    manifest = {k: v for k, v in bundle.manifest.items() if k not in ("schema", "files")}
    weights = save_model(model, tmp_path_factory.mktemp("weights"))
    write_bundle(folder, manifest, {"model.onnx": b"", "weights.safetensors": weights})
    return str(folder)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """A folder with camvid/ (four test frames, 64x48) and kitti/raw/ (three, 128x64)."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for number in range(4):
        label = np.repeat(np.repeat(random.permutation(12).reshape(3, 4), 16, 0), 16, 1)
        _write_png(folder / f"camvid/test/{number}.png", street(48, 64, number))
        _write_png(folder / f"camvid/testannot/{number}.png", label.astype(np.uint8))
    for number in range(3):
        depth = np.where(random.random((64, 128)) < 0.3, random.uniform(3, 70, (64, 128)), 0)
        _write_png(folder / f"kitti/raw/left/{number}.png", street(64, 128, number))
        _write_png(folder / f"kitti/raw/depth/{number}.png", (depth * 256).astype(np.uint16))
    return folder


def _write_png(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), array)

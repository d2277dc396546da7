"""NVIDIA's parser and compiler on every kind of graph, without a GPU."""

from __future__ import annotations

import pytest
from exported_networks import run, street

from penumbra.bundle import load_bundle
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.share import config_folder
from penumbra.vehicle.runners.base import RunnerError
from penumbra.vehicle.runners.compiler import TENSORRT_RTX, build, load_backend, make_logger

CAPABILITY = "8.9"
SHIPPED = sorted(file.parent.name for file in (config_folder() / "models").glob("*/manifest.yaml"))


@pytest.fixture(scope="module")
def trt():
    try:
        return load_backend(TENSORRT_RTX)
    except RunnerError as error:
        pytest.skip(str(error))


KINDS = [
    ("class", {"height": 67, "width": 101}),
    ("class", {}),
    ("class", {"height": 67, "width": 101, "precision": "mixed"}),
    ("class", {"height": 67, "width": 101, "softmax": "moment"}),
    ("class", {"height": 67, "width": 101, "softmax": "moment", "precision": "mixed"}),
    ("encdec", {"height": 67, "width": 101}),
    ("encdec", {"height": 67, "width": 101, "relu": "jacobian"}),
    ("encdec", {"height": 67, "width": 101, "precision": "mixed"}),
    ("encdec", {"height": 67, "width": 101, "precision": "fp16"}),
    ("monodepth", {"height": 67, "width": 101}),
    ("monodepth", {"height": 67, "width": 101, "precision": "mixed"}),
]


def assert_builds(trt, bundle, size):
    """The parsed network matches the manifest, and the compiler builds an engine."""
    logger = make_logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(bundle.model_file.read_bytes()), parser.get_error(0).desc()
    assert network.num_inputs == 1
    image = network.get_input(0)
    rows, columns = bundle.input.height or -1, bundle.input.width or -1
    assert (image.name, image.dtype) == ("image", trt.DataType.UINT8)
    assert tuple(image.shape) == (rows, columns, 3)
    image.shape = (*size, 3)
    assert network.num_outputs == len(bundle.outputs)
    for index, output in enumerate(bundle.outputs):
        found = network.get_output(index)
        assert found.name == output.name
        assert trt.nptype(found.dtype).__name__ == output.dtype
        expected = size if len(output.shape) == 2 else output.shape
        assert tuple(found.shape) == expected
    engine = build(bundle, TENSORRT_RTX, size, CAPABILITY)
    assert engine.nbytes > 100_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, options",
    KINDS,
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values())) or "dynamic",
)
def test_parses_and_builds(trt, exported, kind, options):
    assert_builds(trt, exported(kind, **options), (67, 101))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_shipped(trt, name, precision, tmp_path):
    """At the size of its data set, as shipped and exported again with its mean in FP16."""
    bundle = load_bundle(config_folder() / "models" / name)
    size = (375, 1242) if bundle.task == "depth" else (360, 480)
    if precision != bundle.precision:
        variant = bundle.variant
        rules = {"relu": variant["relu"], "softmax": variant.get("softmax", "jacobian")}
        options = ExportOptions(*size, precision=precision, **rules)
        bundle = export_bundle(bundle.path, tmp_path / "again", options)
    assert_builds(trt, bundle, size)


@pytest.mark.slow
def test_names_of_both_runtimes_agree(exported):
    bundle = exported("encdec", height=67, width=101)
    assert list(run(bundle, street(67, 101))) == [output.name for output in bundle.outputs]

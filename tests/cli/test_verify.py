"""`penumbra verify` as a user calls it: real node, figures, page, film, and the exit code."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import cv2
import numpy as np
import pytest
from exported_networks import network

from penumbra.bags import write_drive
from penumbra.bundle import load_bundle, write_bundle
from penumbra.cli.main import main
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.offline.models import save_model
from penumbra.offline.scenes import Camera
from penumbra.offline.scenes.street_drive import street_drive


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a bag of two frames and two bundles: one promises little, one too much."""
    folder = tmp_path_factory.mktemp("verify")
    camera = Camera(width=128, height=96)
    write_drive(street_drive(1, 0.4, 5.0, camera=camera), folder / "drive")
    save_model(network("class"), folder / "checkpoint")
    exported = export_bundle(folder / "checkpoint", folder / "exported", ExportOptions())
    manifest = {k: v for k, v in exported.manifest.items() if k not in ("schema", "files")}
    files = {name: exported.path / name for name in exported.manifest["files"]}
    for name, error in (("modest", 10.0), ("boastful", 1e-6)):
        promise = manifest["tolerances"] | {"monte_carlo": {"std_relative_error": error}}
        write_bundle(folder / name, manifest | {"name": name, "tolerances": promise}, files)
    return folder


@pytest.fixture(scope="module")
def depth_place(tmp_path_factory):
    """A bag with measured depth, and the bundle of a depth network."""
    folder = tmp_path_factory.mktemp("verify-depth")
    write_drive(street_drive(2, 0.2, 5.0, camera=Camera(width=128, height=64)), folder / "drive")
    save_model(network("monodepth"), folder / "checkpoint")
    export_bundle(folder / "checkpoint", folder / "bundle", ExportOptions())
    return folder


@pytest.fixture(autouse=True)
def _own_references(place, monkeypatch):
    monkeypatch.setenv("PENUMBRA_CACHE", str(place / "cache"))


class Page(HTMLParser):
    """Everything that a page would load, and its text."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.words, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.slow
@pytest.mark.usefixtures("ros_domain")
def test_a_page_a_film_and_every_figure(place, tmp_path, capsys):
    words = ["verify", str(place / "drive"), "--bundle", str(place / "modest"), "--samples", "40"]
    words += ["--report", str(tmp_path / "report"), "--video", str(tmp_path / "film.avi")]
    assert main([*words, "--json", str(tmp_path / "figures.json")]) == 0
    printed = capsys.readouterr().out
    facts = json.loads((tmp_path / "figures.json").read_text())
    assert facts == json.loads((tmp_path / "report" / "figures.json").read_text())
    for check in facts["checks"]:
        assert f"{check['verdict']:<10} {check['name']} {check['figure']:.4f}" in printed
    assert [frame["time_s"] for frame in facts["per_frame"]] == pytest.approx([0, 0.2])
    assert len(facts["calibration"]["propagated"]["quantiles"]) == 10
    for method in ("propagated", "monte_carlo"):
        assert 0 < facts["truth"][method]["expected_calibration_error"] < 1
    assert facts["coverage"] == {}
    assert "expected calibration error of the probabilities" in printed
    assert set(facts["speed"]["monte_carlo_s"]) == {"40", "50"}
    assert facts["versions"]["model"].startswith("modest@")

    text = (tmp_path / "report" / "index.html").read_text()
    page = Page(text)
    assert page.open == []
    assert len(page.loads) == 6 + 2  # curves and panels
    assert all(load.startswith("data:image/") for load in page.loads)
    said = " ".join(page.words)
    for what in ("modest on drive", "every tolerance is held", facts["bundle"]["sha256"], "torch"):
        assert what in said
    assert str(place) not in text  # no folder of this machine

    film = cv2.VideoCapture(str(tmp_path / "film.avi"))
    assert film.get(cv2.CAP_PROP_FRAME_COUNT) == 2
    done, picture = film.read()
    assert done and picture.shape[:2] == (2 * (96 + 24), 3 * 128)
    assert picture.std() > 20


@pytest.mark.slow
@pytest.mark.usefixtures("ros_domain")
def test_depth_has_its_coverage_printed_kept_and_on_the_page(depth_place, tmp_path, capsys):
    words = ["verify", str(depth_place / "drive"), "--bundle", str(depth_place / "bundle")]
    words += ["--samples", "8", "--report", str(tmp_path / "report")]
    main(words)  # whether its tolerances are held is not the question
    printed = capsys.readouterr().out
    facts = json.loads((tmp_path / "report" / "figures.json").read_text())
    page = Page((tmp_path / "report" / "index.html").read_text())
    assert page.open == []
    rows = list(zip(*facts["coverage"].values(), strict=True))
    assert [ours["nominal"] for ours, _ in rows] == [0.5, 0.6827, 0.9, 0.95]
    for ours, theirs in rows:
        shares = [ours["nominal"], ours["observed"], theirs["observed"]]
        place = page.words.index(f"measured disparity within ±{ours['sigmas']:.3f} σ")
        assert page.words[place + 1 : place + 4] == [f"{share:.1%}" for share in shares]
        line = next(line for line in printed.splitlines() if f"±{ours['sigmas']:.3f} σ" in line)
        assert line.split()[2:] == [f"{share:.1%}" for share in shares]
    assert "epistemic" in printed and "epistemic" in " ".join(page.words)


@pytest.mark.slow
@pytest.mark.usefixtures("ros_domain")
def test_a_promise_that_is_not_kept_is_an_exit_code(place, capsys):
    words = ["verify", str(place / "drive"), "--bundle", str(place / "boastful")]
    words += ["--samples", "40", "--frames", "1"]
    assert main([*words, "--json", "-"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert not facts["passed"]
    check = next(check for check in facts["checks"] if check["name"] == "std_relative_error")
    # Either it is further off than the noise explains, or the noise hides what was promised.
    assert check["verdict"] in ("missed", "undecided")
    assert check["limit"] == pytest.approx(1e-6 + check["noise"])
    assert check["tolerance"] < np.inf


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "--samples", "20"], "no bag nowhere"),
        (["drive", "--samples", "21"], "--samples is 21: give an even number"),
        (["drive", "--samples", "20", "--video", "film.gif"], "ends in .mp4 or .avi"),
        (["drive", "--samples", "20", "--frames", "0"], "--frames is 0"),
        (["drive", "--samples", "20", "--topic", "/nothing"], "no topic /nothing"),
    ],
)
def test_mistakes_are_reported_before_the_node_starts(words, message, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    assert main(["verify", *words, "--bundle", "modest"]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


def test_a_bundle_promises_what_its_variant_can(place):
    promised = load_bundle(place / "exported").manifest["tolerances"]["monte_carlo"]
    assert promised["std_relative_error"] == 0.3  # the diagonal rule; see penumbra.offline.export
    assert set(promised) == {"label_agreement", "std_relative_error", "spearman"}

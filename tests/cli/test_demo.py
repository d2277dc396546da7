"""`penumbra demo`: the shipped model in a real node, in another process, over real DDS."""

import json

import cv2
import numpy as np
import pytest

from penumbra.bags import open_bag
from penumbra.cli.main import main
from penumbra.lab.demo import ANOMALY_AT, RATE_HZ, SECONDS
from penumbra.offline.scenes import Camera, render, street


def topics_of(recording):
    with open_bag(recording) as bag:
        return {name: topic.count for name, topic in bag.topics.items()}


@pytest.mark.slow
def test_the_object_is_reported_when_it_comes_and_not_before(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["failure"] is None
    assert facts["frames"] == SECONDS * RATE_HZ
    assert facts["alerts"][0]["at_s"] >= facts["visible_from_s"] >= ANOMALY_AT
    assert 0 < facts["latency_p50_ms"] <= facts["latency_p99_ms"]
    picture = cv2.imread(str(tmp_path / "panel.png"))
    assert picture.shape[0] > 720  # two rows of pictures and the course of the score
    assert picture.std() > 20
    counts = topics_of(tmp_path / "answers")
    for name in ("prediction", "uncertainty", "confidence", "overlay", "ood", "stats"):
        assert counts[f"/penumbra/{name}"] >= facts["frames"]


@pytest.mark.slow
def test_own_pictures_twice_into_one_place(tmp_path, capsys):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for seed in range(3):
        view = render(street(seed), Camera(width=160, height=120))
        assert cv2.imwrite(str(pictures / f"{seed}.png"), view.image)
    for _ in range(2):
        words = ["demo", str(pictures), "--out", str(tmp_path / "out"), "--frames", "2"]
        assert main(words) == 0
        assert "2, each answered" in capsys.readouterr().out
    assert np.array_equal(cv2.imread(str(tmp_path / "out" / "panel.png")).shape[2:], [3])


@pytest.mark.parametrize(
    ("words", "message"),
    [(["nowhere.mp4"], "no nowhere.mp4"), (["--bundle", "nonesuch"], "no bundle at nonesuch")],
)
def test_what_is_not_there_is_named_at_once(words, message, tmp_path, capsys):
    assert main(["demo", *words, "--out", str(tmp_path / "out")]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "drive").exists()


def test_other_peoples_files_stay(tmp_path, capsys):
    (tmp_path / "drive").mkdir()
    (tmp_path / "drive" / "letter.txt").write_text("Dear")
    assert main(["demo", "--out", str(tmp_path)]) != 0
    assert "choose another --out" in capsys.readouterr().err
    assert (tmp_path / "drive" / "letter.txt").read_text() == "Dear"

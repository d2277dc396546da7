"""`penumbra bag` and the mistakes in `penumbra replay` that need no ROS to be found."""

from __future__ import annotations

import pytest
from small_drives import TENTH, picture, read, write_images, write_png

from penumbra.bags import open_bag
from penumbra.bags.messages import START_NS
from penumbra.cli.main import main


@pytest.fixture
def pictures(tmp_path):
    for number in range(4):
        write_png(tmp_path / "pictures" / f"{number}.png", picture(number))
    return tmp_path / "pictures"


def test_images_and_convert(pictures, tmp_path, capsys):
    words = ["bag", "images", pictures, "--out", tmp_path / "bag", "--every", "2", "--rate-hz", "5"]
    assert main(list(map(str, words))) == 0
    assert capsys.readouterr().out == f"2 frames in {tmp_path / 'bag'}\n"
    messages = read(tmp_path / "bag")
    assert [m.stamp_ns - START_NS for m in messages] == [0, 2 * TENTH]
    words = ["bag", "convert", tmp_path / "bag", "--out", tmp_path / "new", "--storage", "sqlite3"]
    assert main(list(map(str, words))) == 0
    assert read(tmp_path / "new") == messages
    assert (tmp_path / "new" / "new.db3").is_file()


def test_street(tmp_path):
    words = "bag street --seconds 0.1 --size 64x48 --seed 2 --storage sqlite3 --compressed --out"
    assert main([*words.split(), str(tmp_path / "bag")]) == 0
    with open_bag(tmp_path / "bag") as bag:
        assert bag.image_topic().type == "sensor_msgs/msg/CompressedImage"
        assert len(bag.topics) == 5


@pytest.mark.parametrize(
    "words, message",
    [
        ("bag images PICTURES --out PICTURES", "exists already"),
        ("bag images PICTURES --out OUT --every 0", "--every is 0"),
        ("bag images PICTURES --out OUT --rate-hz 0", "--rate-hz is 0"),
        ("bag street --size big --out OUT", "--size 'big'"),
        ("bag convert PICTURES --out OUT", "is not a bag"),
        ("replay PICTURES", "is not a bag"),
        ("replay BAG --remap a=b", "write it as /from:=/to"),
        ("replay BAG --remap /none:=/b", "no topic /none"),
        ("replay BAG --topics /none", "no topic /none"),
        ("replay BAG --rate 0", "--rate is 0"),
        ("replay BAG --lockstep --loop", "leave out --loop"),
        ("replay BAG --record PICTURES", "exists already"),
        ("replay BAG --lockstep --frames /none", "no topic /none"),
    ],
)
def test_mistakes_are_one_line(pictures, tmp_path, capsys, words, message):
    write_images(tmp_path / "bag", [START_NS])
    places = {"PICTURES": pictures, "OUT": tmp_path / "out", "BAG": tmp_path / "bag"}
    assert main([str(places.get(word, word)) for word in words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()
    assert len(read(tmp_path / "bag")) == 1

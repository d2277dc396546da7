"""Two folders change places in one step; where that is impossible, a bundle takes two."""

from __future__ import annotations

import pytest
import tiny_bundles

from penumbra import files
from penumbra.bundle import load_bundle, rewrite_bundle
from penumbra.files import exchange


def test_two_folders_change_places(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    assert exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "file").read_text() == "other"
    assert (tmp_path / "other" / "file").read_text() == "one"


def test_one_that_is_missing_is_an_error(tmp_path):
    (tmp_path / "one").mkdir()
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "one", tmp_path / "none")
    assert (tmp_path / "one").is_dir()


@pytest.mark.parametrize("possible", [True, False])
def test_a_bundle_is_replaced_either_way(tmp_path, monkeypatch, possible):
    if not possible:
        monkeypatch.setattr(files, "exchange", lambda *_: False)
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    rewrite_bundle(bundle, name="avenue")
    assert load_bundle(tmp_path / "street").name == "avenue"
    assert [path.name for path in tmp_path.iterdir()] == ["street"]

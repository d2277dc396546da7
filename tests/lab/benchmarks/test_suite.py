"""All measurements: in order, each once, with a table at the end, and resumed after a break."""

import json

import pytest

from penumbra.cli.main import main
from penumbra.errors import PenumbraError
from penumbra.lab.benchmarks import suite
from penumbra.lab.benchmarks.goals import GOALS
from penumbra.lab.benchmarks.reports import BenchmarkOptions, BenchmarkReport

SCALING = {
    name: {"slope": 1.0, "points": [{"amount": n, "median_ms": n} for n in (1, 2)]}
    for name in ("pixels", "multiply-adds")
}
MEASURED = {
    "propagation": {"late": 1.0},
    "node": {"node": 1.01, "node, overhead": 3.0},
    "scaling": {"pixels": 1.0, "multiply-adds": 0.9},
    "cameras": {"cameras": 1.0},
    "memory": {"encdec/memory": 1.9},
    "fleet": {"fleet": 1.8},
}


@pytest.fixture
def asked(monkeypatch):
    """The options of each measurement, in order; the measurements are replaced by constants."""
    seen: list[tuple[str, BenchmarkOptions]] = []

    def stand_in(what):
        def report(part: BenchmarkOptions) -> BenchmarkReport:
            seen.append((what, part))
            if what == "runner":
                form = {"segnet-camvid-class": "class/diagonal"}.get(part.bundle, "encdec/truthful")
                return BenchmarkReport({"comparisons": []}, {form: 1.2})
            return BenchmarkReport(
                {"scaling": SCALING} if what == "scaling" else {}, MEASURED[what]
            )

        return report

    for what in suite.REPORTS:
        monkeypatch.setitem(suite.REPORTS, what, stand_in(what))
    return seen


def test_all_measurements_with_one_file_one_table_one_plot(asked, tmp_path, capsys):
    file, plot = tmp_path / "all.json", tmp_path / "all.png"
    words = ["all", "--threads", "1", "--json", str(file), "--plot", str(plot)]
    assert main(["benchmark", *words]) == 0
    shipped = [part.bundle for what, part in asked if what == "runner"]
    assert shipped[:2] == ["segnet-camvid-class", "segnet-camvid-encdec"]
    order = [what for what, _ in asked]
    runners = ["runner"] * len(shipped)
    assert order == ["propagation", *runners, "node", "scaling", "cameras", "memory", "fleet"]
    facts = json.loads(file.read_text())
    assert facts["finished"]
    assert facts["machine"]["threads"] == 1
    assert {"processor", "cores", "load", "versions", "threads"} <= set(facts["machine"])
    assert facts["measured"]["class/diagonal"] == 1.2
    printed = capsys.readouterr().out
    table = printed[printed.index("| what |") :]
    assert len(table.strip().splitlines()) == 2 + len(GOALS)
    assert (
        "SegNet class, diagonal: propagated / deterministic, same runner | ≤ 1.05 | 1.200" in table
    )
    assert "| not measured: no bundle in this form | – |" in table
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_bundle_that_is_not_shipped_is_left_out_with_a_reason(asked, monkeypatch, capsys):
    monkeypatch.setitem(suite.SHIPPED, "monodepth", "nonesuch")
    assert main(["benchmark", "all"]) == 0
    assert "nonesuch" not in [part.bundle for _, part in asked]
    expected = "| ≤ 1.05 | not measured: there is no config/models/nonesuch | – |"
    assert expected in capsys.readouterr().out


def test_an_interrupted_run_resumes_and_a_finished_one_starts_again(asked, monkeypatch, tmp_path):
    words = ["benchmark", "all", "--json", str(tmp_path / "all.json")]
    with monkeypatch.context() as broken:

        def interrupt(_):
            raise KeyboardInterrupt

        broken.setitem(suite.REPORTS, "cameras", interrupt)
        assert main(words) == 130
    done = len(asked)
    assert main(words) == 0
    assert [what for what, _ in asked[done:]] == ["cameras", "memory", "fleet"]
    done = len(asked)
    assert main(words) == 0
    assert len(asked) - done == done
    # Other settings are another run.
    facts = json.loads((tmp_path / "all.json").read_text()) | {"finished": False}
    (tmp_path / "all.json").write_text(json.dumps(facts))
    done = len(asked)
    assert main([*words, "--repetitions", "3"]) == 0
    assert asked[done][0] == "propagation"


def test_a_failed_part_is_reported_and_repeated(asked, monkeypatch, tmp_path, capsys):
    words = ["benchmark", "all", "--json", str(tmp_path / "all.json")]
    with monkeypatch.context() as broken:

        def fail(_):
            raise PenumbraError("no engine")

        broken.setitem(suite.REPORTS, "scaling", fail)
        assert main(words) == 1
    printed = capsys.readouterr().out
    assert "failed: no engine" in printed
    assert f"{GOALS['pixels'].what} | ≤ 1.05 | not yet measured | – |" in printed
    assert f"{GOALS['cameras'].what} | ≥ 0.95 | 1.000 | yes |" in printed
    done = len(asked)
    assert main(words) == 0
    assert [what for what, _ in asked[done:]] == ["scaling"]
    assert f"{GOALS['pixels'].what} | ≤ 1.05 | 1.000 | yes |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        ("all --repetitions 0", "--repetitions is 0"),
        ("node --size 480", "--size '480': write it as WIDTHxHEIGHT"),
        ("scaling --bundle nonesuch", "no bundle at nonesuch"),
        ("memory --bundle nonesuch", "no bundle at nonesuch"),
        ("cameras --bundle nonesuch", "no bundle at nonesuch"),
        ("fleet --bundle nonesuch", "no bundle at nonesuch"),
    ],
)
def test_mistakes_are_reported(words, message, capsys):
    assert main(["benchmark", *words.split()]) == 2
    assert message in capsys.readouterr().err

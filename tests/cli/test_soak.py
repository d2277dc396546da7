"""`penumbra soak` in its short form: the real node, over real DDS, for a quarter of a minute.

What depends on how busy the machine is (latency, frames lost) is not judged here.
"""

import json
import os
import signal
import subprocess
import sys

import pytest
import tiny_bundles
from small_drives import small_drive

from penumbra.bags import write_drive
from penumbra.cli.main import main


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.setenv("PENUMBRA_CACHE", str(tmp_path / "cache"))
    bundle = tiny_bundles.segmentation(tmp_path / "street", None, None)
    write_drive(small_drive(5), tmp_path / "drive")
    settings = f"--bundle {bundle.path} --bag {tmp_path / 'drive'} --runner onnxruntime --threads 1"
    return f"soak {settings} --json {tmp_path / 'soak.json'}".split()


@pytest.mark.slow
def test_a_node_that_leaks_nothing_is_found_to(words, tmp_path, capsys):
    picture = tmp_path / "soak.png"
    code = main([*words, "--minutes", "0.2", "--plot", str(picture)])
    printed = capsys.readouterr().out
    facts = json.loads((tmp_path / "soak.json").read_text())
    findings = {finding["what"]: finding for finding in facts["findings"]}
    for what in ("memory", "handles", "threads"):
        assert findings[what]["passed"], printed
        assert f"holds   {what}" in printed
    assert code == (0 if all(f["passed"] for f in facts["findings"]) else 1)
    record = facts["record"]
    assert 0 < record["rate_hz"] <= 10
    assert len(record["sent"]) == len(record["latency_ms"]) >= 20
    assert findings["frames lost"]["value"] == record["latency_ms"].count(None)
    assert record["runner"].startswith("onnxruntime")
    assert not record["interrupted"] and not record["node_ended"]
    assert record["usage"][0]["threads"] > 1
    assert picture.read_bytes().startswith(b"\x89PNG")


# Imported by every Python that starts with it on its path: the node's, but no longer ours.
LEAKING = """
import threading, time
kept = []
def leak():
    while True:
        time.sleep(0.2)
        kept.append((b"x" * (1 << 20), open("/dev/null"), threading.Timer(3600, print)))
        kept[-1][-1].daemon = True
        kept[-1][-1].start()
threading.Thread(target=leak, daemon=True).start()
"""


@pytest.mark.slow
def test_a_node_that_leaks_is_found(words, tmp_path, monkeypatch, capsys):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(LEAKING)
    rest = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path / "path"), rest])))
    assert main([*words, "--minutes", "0.2"]) == 1
    printed = capsys.readouterr().out
    for what in ("memory", "handles", "threads"):
        assert f"FAILED  {what}" in printed, printed


@pytest.mark.slow
def test_ctrl_c_gives_the_verdict_on_what_was_seen(words, tmp_path):
    """As in a terminal, where the node gets the signal as well."""
    command = [sys.executable, "-m", "penumbra.cli.main", *words, "--minutes", "60"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes, start_new_session=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Hz for 60 minutes" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 1, "".join(lines) + rest  # too short to be judged
    assert "interrupted after" in rest
    assert "cannot be judged" in rest
    assert "node ended" not in rest
    assert json.loads((tmp_path / "soak.json").read_text())["record"]["interrupted"]


@pytest.mark.parametrize(
    "wrong, message",
    [
        ("--minutes 0", "--minutes is 0"),
        ("--minutes 1 --rate-hz -1", "--rate-hz is -1"),
        ("--minutes 1 --bundle nonesuch", "no bundle at nonesuch"),
        ("--minutes 1 --bag nonesuch", "no bag nonesuch"),
    ],
)
def test_mistakes_are_reported(wrong, message, capsys):
    assert main(["soak", *wrong.split()]) == 2
    assert message in capsys.readouterr().err

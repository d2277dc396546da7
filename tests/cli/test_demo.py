"""`penumbra demo`: a real node in another process, over real DDS."""

import json
import subprocess
import sys

DEMO = [sys.executable, "-m", "penumbra.cli.main", "demo"]


def test_demo_sends_images_there_and_back():
    done = subprocess.run([*DEMO, "--frames", "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "received 3 images of 480x360 and sent each back unchanged" in done.stdout


def test_demo_for_machines():
    done = subprocess.run([*DEMO, "--frames", "2", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["frames"] == 2
    assert 0 < result["median_ms"] <= result["slowest_ms"]

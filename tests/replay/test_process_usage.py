"""A process seen from outside: what it really takes is what is seen."""

import subprocess
import sys

from penumbra.replay.process_usage import process_usage

# Holds 40 MiB, seven files and three threads more after the first line that it gets.
GROWING = """
import sys, threading
print("ready", flush=True)
sys.stdin.readline()
memory = bytearray(b"x" * (40 << 20))
files = [open(sys.argv[1], "w") for _ in range(7)]
end = threading.Event()
threads = [threading.Thread(target=end.wait) for _ in range(3)]
for thread in threads:
    thread.start()
print("grown", flush=True)
sys.stdin.readline()
end.set()
"""


def test_what_a_process_takes_is_seen(tmp_path):
    command = [sys.executable, "-c", GROWING, str(tmp_path / "file")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        seen = []
        for expected in ("ready", "grown"):
            assert process.stdout.readline().strip() == expected
            seen.append(process_usage(process.pid, float(len(seen))))
            process.stdin.write("\n")
            process.stdin.flush()
        process.wait()
        gone = process_usage(process.pid, 2.0)
    before, after = seen
    assert (before.seconds, after.seconds) == (0.0, 1.0)
    assert after.handles - before.handles == 7
    assert after.threads - before.threads == 3
    # Interpreter and stacks take some more than the array; the copy that made it may linger.
    assert 40 <= after.memory_mib - before.memory_mib < 100
    assert gone is None

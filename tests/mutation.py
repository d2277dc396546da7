"""Random mutation of bytes, for the fuzz targets in tests/fuzzing; seeded, so it repeats.

    python tests/mutation.py manifest 200000

runs a target on that many inputs and prints how long the slowest took.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
from collections.abc import Iterator

LONGEST = 1 << 16
NOTABLE = [0, 1, 0x7F, 0x80, 0xFF, *b"\n :-[]{}&*!|>'\"%@`#,?<.\\~\t0e"]


def mutated(seeds: list[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` inputs: one to eight random changes to a seed each."""
    chance = random.Random(seed)
    for _ in range(count):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 8)):
            _change(chance, data, seeds)
        yield bytes(data[:LONGEST])


def _change(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    start = chance.randint(0, len(data))
    end = min(len(data), start + chance.choice([1, 1, 1, 2, 4, 16, 64]))
    kind = chance.randrange(7)
    if kind == 0 and start < len(data):
        data[start] ^= 1 << chance.randrange(8)
    elif kind == 1 and start < len(data):
        data[start] = chance.choice(NOTABLE)
    elif kind == 2:
        data[start:start] = bytes([chance.choice(NOTABLE)]) * chance.choice([1, 2, 70, 5000])
    elif kind == 3:
        del data[start:end]
    elif kind == 4:
        data[start:start] = data[start:end] * chance.choice([1, 2, 100])
    elif kind == 5:
        other = chance.choice(seeds)
        begin = chance.randint(0, len(other))
        data[start:end] = other[begin : begin + chance.choice([4, 32, 256])]
    else:
        del data[start:]


def run(name: str, count: int, seed: int = 0) -> tuple[float, bytes]:
    """Run a target; the seconds of its slowest input, and that input."""
    target = importlib.import_module(f"fuzzing.{name}")
    slowest = 0.0, b""
    for data in mutated(target.seeds(), count, seed):
        start = time.process_time()
        target.run_one(data)
        slowest = max(slowest, (time.process_time() - start, data))
    return slowest


if __name__ == "__main__":
    seconds, data = run(sys.argv[1], int(sys.argv[2]), int((sys.argv[3:] or ["0"])[0]))
    print(f"{sys.argv[1]}: {sys.argv[2]} inputs, slowest {seconds:.3f} s ({len(data)} bytes)")

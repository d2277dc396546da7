"""Random mutation of bytes, for the fuzz targets in tests/fuzzing; seeded, so it repeats.

    python -m fuzzing manifest --runs 200000 --by mutation      # in tests/; or scripts/fuzz

runs a target on that many inputs.
"""

from __future__ import annotations

import faulthandler
import importlib
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

LONGEST = 1 << 16
HANG = 5.0
"""Seconds of computing after which an input counts as endless: the process says where it is, and
ends. Where it only waits, it has twelve times as long, since others may need the processor."""
CORPUS = Path(__file__).parent / "fuzzing" / "corpus"
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


def target(name: str) -> ModuleType:
    """The module of a target: `run_one(data)` and `seeds()`."""
    return importlib.import_module(f"fuzzing.{name}")


def corpus(name: str) -> list[bytes]:
    """The seeds of a target, and the inputs kept in tests/fuzzing/corpus."""
    kept = sorted((CORPUS / name).glob("*"))
    return [*target(name).seeds(), *(file.read_bytes() for file in kept)]


def run(name: str, count: int, seed: int = 0, seconds: float | None = None) -> tuple[float, bytes]:
    """Run a target; the seconds of its slowest input, and that input.

    `seconds` ends it after that time. A defect is printed with its input, and raised.
    """
    run_one = target(name).run_one
    slowest = 0.0, b""
    end = None if seconds is None else time.monotonic() + seconds
    faulthandler.register(signal.SIGPROF, file=sys.__stderr__, chain=True)
    for number, data in enumerate(mutated(corpus(name), count, seed)):
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, HANG)
        faulthandler.dump_traceback_later(12 * HANG, exit=True, file=sys.__stderr__)
        try:
            run_one(data)
        except BaseException as error:
            print(f"{name}: input {number} of seed {seed}, {data[:2000]!r}: {error!r}")
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, (time.process_time() - start, data))
        if end is not None and time.monotonic() > end:
            break
    return slowest

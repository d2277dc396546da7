"""Create the environment .venv, or update it: Python packages, ROS 2, messages, penumbra.

Run by `scripts/setup`; needs only the standard library. Each part has a fingerprint of its inputs.
Those of the finished parts are kept in a stamp inside `.venv`, so that a second run has nothing to
do. An incomplete environment (after a kill, a deleted file, a moved clone) is detected and created
anew.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict

from parts import PARTS, check_surroundings
from places import LOCK, LOG, STAMP, VENV, VENV_PYTHON
from plan import PROFILES, fingerprints, make_plan
from process import SetupError, clean_environment, run, say

# Run each time: it takes 0.5 s, and files deleted by hand are noticed.
CHECK = (
    "import numpy, rclpy, yaml, penumbra; from penumbra_msgs.msg import OodAlert;"
    " OodAlert.__import_type_support__()"
)


def main() -> int:
    """Exit code 0, or 2 with one line that says what is wrong and how to fix it."""
    parser = argparse.ArgumentParser(prog="scripts/setup", description=__doc__.partition("\n")[0])
    help_profile = "run: the vehicle half, small, no torch; dev: everything (default)"
    parser.add_argument("profile", nargs="?", choices=PROFILES, default="dev", help=help_profile)
    parser.add_argument("--explain", action="store_true", help="print what would be done, as JSON")
    arguments = parser.parse_args()
    try:
        if arguments.explain:
            plan = make_plan(arguments.profile, os.environ, read_stamp())
            print(json.dumps(asdict(plan), indent=2))
            return 0
        with only_one():
            bring_up_to_date(arguments.profile)
    except SetupError as error:
        say(f"scripts/setup: {error}")
        return 2
    except KeyboardInterrupt:
        say("\nscripts/setup: interrupted; run it again to go on")
        return 130
    return 0


def bring_up_to_date(profile: str) -> None:
    """Make every part whose fingerprint differs from the stamp's."""
    stamp = read_stamp()
    plan = make_plan(profile, os.environ, stamp)
    wanted = fingerprints(plan)
    done = {part: mark for part, mark in stamp.get("parts", {}).items() if part in wanted}
    if not stamp and VENV.exists():
        damaged = True
    else:
        damaged = "working_on" in stamp or (done.keys() == wanted.keys() and not works())
    if done == wanted and not damaged:
        return
    LOG.write_text(f"scripts/setup {profile}: {json.dumps(asdict(plan), indent=2)}\n")
    check_surroundings(plan)
    if damaged:
        say("scripts/setup: .venv is incomplete or damaged; creating it anew")
        done = {}
    say(f"Setting up .venv ({plan.profile}): {plan.python}, ROS {plan.ros}")
    facts = {"python": plan.python, "sourced": plan.sourced, "profile": stamp.get("profile")}
    for part, make in PARTS.items():
        if done.get(part) == wanted[part]:
            continue
        if part == "venv":
            done, facts["profile"] = {}, None
        else:
            write_stamp(facts, done, working_on=part)
        try:
            make(plan)
        except SetupError:  # not killed, so the parts that were finished before are intact
            if part != "venv":
                write_stamp(facts, done)
            raise
        if part == "packages":
            facts["profile"] = plan.profile
        done[part] = wanted[part]
        write_stamp(facts, done)
    run("checking that it works", [VENV_PYTHON, "-c", CHECK])


def works() -> bool:
    """Whether the environment passes the check."""
    check = [VENV_PYTHON, "-c", CHECK]
    try:
        done = subprocess.run(check, env=clean_environment(), cwd="/", capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def read_stamp() -> dict:
    """What the last run finished; {} where there is no environment, or an unknown one."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and isinstance(stamp.get("parts"), dict) else {}


def write_stamp(facts: dict, done: dict[str, str], **more: str) -> None:
    """Record what is finished; an interrupted part leaves `working_on` behind."""
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps({**facts, "parts": done, **more}, indent=2))
    temporary.replace(STAMP)


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold the lock of this clone; a second set-up waits, and then has nothing to do."""
    with LOCK.open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("scripts/setup: another set-up of this clone is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())

"""Parse the command line, run the verb, and report a user's mistake in one line."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import penumbra
from penumbra.errors import PenumbraError

USER_MISTAKE = 2
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(USER_MISTAKE, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of `penumbra`, with every verb module of this package as a sub-command."""
    parser = Parser(prog="penumbra", description=penumbra.__doc__)
    parser.add_argument("--version", action="version", version=f"penumbra {penumbra.__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    folder = str(Path(__file__).parent)
    for name in sorted(module.name for module in pkgutil.iter_modules([folder])):
        if name == "main":
            continue
        module = importlib.import_module(f"penumbra.cli.{name}")
        summary, _, details = (module.__doc__ or "").partition("\n")
        verb = verbs.add_parser(
            name.replace("_", "-"),
            help=summary,
            description=f"{summary}\n{details}".strip(),
            epilog=f"example:\n  {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; 0 on success, 2 with one line on stderr for a user's mistake."""
    parsed = build_parser().parse_args(arguments)
    try:
        return parsed.run(parsed) or 0
    except PenumbraError as error:
        print(f"penumbra {parsed.verb}: {error}", file=sys.stderr)
        return USER_MISTAKE
    except BrokenPipeError:  # `penumbra … | head`: the reader has ended, which is not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())

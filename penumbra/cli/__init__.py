"""The `penumbra` command line: one small module per verb.

A verb module `penumbra/cli/<verb>.py` has

- a docstring whose first line is the verb's summary in `penumbra --help`,
- `EXAMPLE`, a working command line,
- `add_arguments(parser)`, and
- `run(arguments) -> int | None`, the exit code (None is 0).

Its top level imports nothing heavy: `penumbra --help` imports every verb and stays under 0.3 s.
Work of more than two seconds shows a tqdm bar; `--json` prints machine-readable results; a user's
mistake is a PenumbraError, reported in one line with exit code 2.
"""

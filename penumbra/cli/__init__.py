"""The `penumbra` command line: one small module per verb.

A verb module `penumbra/cli/<verb>.py` has

- a docstring whose first line is the verb's summary in `penumbra --help`,
- `EXAMPLE`, a command line that works as it stands,
- `add_arguments(parser)`, and
- `run(arguments) -> int | None`, the exit code (None is 0).

It imports nothing heavy at its top: `penumbra --help` reads every verb and stays under 0.3 s. Work
of more than two seconds shows a tqdm bar; a result that a machine may read comes with `--json`; a
user's mistake is a PenumbraError, which becomes one line and exit code 2.
"""

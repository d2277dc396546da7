"""Do the paper's experiments again, and put its figures beside ours.

Each experiment writes result.json (every figure), figure.png (in the paper's form) and table.md
(the paper's figures beside ours) into a folder of its own below --out; `all` binds them into
REPORT.md. What is there already, made with the same seed, is not measured again: an interrupted run
goes on where it was. Some also write panel.png, pictures of the data set and what networks say of
them; --no-panels leaves these out, so that the report can be passed on where the data may not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from penumbra.lab.experiments import names

EXAMPLE = "penumbra reproduce synthetic --out reproduction"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", choices=[*names(), "all"], metavar="EXPERIMENT",
                        help=", ".join(names()) + " or all")  # fmt: skip
    parser.add_argument("--data", type=Path, metavar="DIR", help="has uci/, camvid/, kitti/")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go")
    parser.add_argument("--seed", type=int, default=0, help="of all draws (default 0)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--again", action="store_true", help="measure what is there already, too")
    parser.add_argument("--no-panels", action="store_true", help="no pictures of the data sets")


def run(arguments: argparse.Namespace) -> int:
    """Print every table, and where the pictures are."""
    import torch

    from penumbra.lab.experiments.reporting import reproduce, title, write_report

    torch.set_num_threads(arguments.threads)
    chosen = names() if "all" in arguments.what else list(dict.fromkeys(arguments.what))
    out = arguments.out
    panels = not arguments.no_panels
    records = reproduce(
        chosen, arguments.data, out, seed=arguments.seed, again=arguments.again, panels=panels
    )
    for record in records:
        folder = out / record["experiment"]
        print(f"{title(record['experiment'])}\n\n{(folder / 'table.md').read_text()}")
        print(f"figure  {folder / 'figure.png'}\nresult  {folder / 'result.json'}\n")
    if "all" in arguments.what:
        print(f"report  {write_report(out, records, panels)}")
    return 0

"""Run the paper's experiments, and compare the results with those that it reports.

Each experiment writes result.json (all figures), figure.png (in the paper's form) and table.md (the
paper's figures beside ours) into a folder of its own below --out; `all` collects them in REPORT.md.
Results of an earlier run with the same seed and networks are reused, so an interrupted run can be
resumed. Some experiments also write panel.png with images of the data set; --no-panels leaves these
out, so that the report can be published where the data may not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from penumbra.lab.experiments import names

EXAMPLE = "penumbra reproduce synthetic --out reproduction"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which experiments, on what data, and where the results go."""
    parser.add_argument("what", nargs="+", choices=[*names(), "all"], metavar="EXPERIMENT",
                        help=", ".join(names()) + " or all")  # fmt: skip
    parser.add_argument("--data", type=Path, metavar="DIR", help="holds uci/, camvid/, kitti/")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--again", action="store_true", help="measure again, ignore old results")
    parser.add_argument("--no-panels", action="store_true", help="no images of the data sets")


def run(arguments: argparse.Namespace) -> int:
    """Print every table and the paths of the figures."""
    import torch

    from penumbra.lab.experiments.reporting.report import write_report
    from penumbra.lab.experiments.reporting.reproduction import (
        FIGURE,
        RESULT,
        TABLE,
        experiment_title,
        reproduce,
    )

    torch.set_num_threads(arguments.threads)
    chosen = names() if "all" in arguments.what else list(dict.fromkeys(arguments.what))
    out = arguments.out
    panels = not arguments.no_panels
    records = reproduce(
        chosen, arguments.data, out, seed=arguments.seed, again=arguments.again, panels=panels
    )
    for record in records:
        folder = out / record.experiment
        print(f"{experiment_title(record.experiment)}\n\n{(folder / TABLE).read_text()}")
        print(f"figure  {folder / FIGURE}\nresult  {folder / RESULT}\n")
    if "all" in arguments.what:
        print(f"report  {write_report(out, records, panels)}")
    return 0

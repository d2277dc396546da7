"""The paper's experiments, one file each; folders hold what several of them share.

An experiment `penumbra/lab/experiments/<name>.py` defines

- a docstring whose first line is its title in the report,
- `NEEDS`, the folder below `--data` that it reads, or None,
- `measure(setting) -> dict`, all figures, serialisable as JSON (it caches long computations in
  `setting.folder`, so that an interrupted run can be resumed),
- `draw(result) -> Figure`, the paper's figure from them, and
- `table(result) -> str`, Markdown: the paper's figures beside ours, and what differs;

and, where it evaluates trained networks on images,

- `BUNDLES`, the bundles that it needs, by their role, and
- `panel(setting, result) -> Figure`, images side by side. They show the data set, which may not be
  redistributed: the panel is a separate file, and a report can do without it.

`penumbra reproduce` finds an experiment by its file name; there is nothing to register. Figures
depend on the data and the seed alone; timings are under the key "runtime".
"""

from __future__ import annotations

import pkgutil


def names() -> list[str]:
    """All experiments by their names on the command line; imports none of them."""
    found = pkgutil.iter_modules(__path__)
    return sorted(module.name.replace("_", "-") for module in found if not module.ispkg)

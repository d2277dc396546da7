"""The paper's experiments, one file each; a folder is what several of them share.

An experiment `penumbra/experiments/<name>.py` has

- a docstring whose first line is its title in the report,
- `NEEDS`, the folder below `--data` that it reads, or None,
- `measure(setting) -> dict`, all figures, as JSON can hold them (what takes minutes is kept in
  `setting.folder`, so that an interrupted run goes on),
- `draw(result) -> Figure`, the paper's figure from them, and
- `table(result) -> str`, Markdown: the paper's figures beside ours, and what differs;

and, where it looks at pictures with trained networks,

- `BUNDLES`, the bundles that it needs, by what they are to it, and
- `panel(setting, result) -> Figure`, pictures beside each other. It is made of the data set's
  pixels, which may not be passed on: it has a file of its own, and a report can do without.

`penumbra reproduce` finds it by its file name; nothing else has to be registered. Figures depend on
the data and the seed alone; what was timed stands under the key "runtime".
"""

from __future__ import annotations

import pkgutil


def names() -> list[str]:
    """All experiments, as they are called on the command line; imports none of them."""
    found = pkgutil.iter_modules(__path__)
    return sorted(module.name.replace("_", "-") for module in found if not module.ispkg)

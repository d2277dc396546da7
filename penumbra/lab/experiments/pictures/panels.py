"""Pictures in rows and columns, with what their colours mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from penumbra.bundle import ClassSpec

_TITLE = 0.22  # inches above a picture


def grid(
    cells: Sequence[Sequence[tuple[str, np.ndarray]]],
    scale: tuple[str, float, float, str],
    classes: Sequence[ClassSpec] = (),
    wide: float = 2.1,
) -> Figure:
    """Rows of (title, picture), each so many inches wide; RGB as it is, a map by `scale`.

    `scale` is the one scale of all maps: what they show, lowest, highest, the colour map's name.
    """
    what, low, high, colours = scale
    columns = max(len(row) for row in cells)
    _, picture = cells[0][0]
    tall = wide * picture.shape[0] / picture.shape[1] + _TITLE
    size = (wide * columns, tall * len(cells) + (1.0 if classes else 0.7))
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.01, h_pad=0.01, wspace=0.01, hspace=0.01)
    axes = figure.subplots(len(cells), columns, squeeze=False)
    shown: Any = None
    for line, row in zip(axes, cells, strict=True):
        for axis in line:
            axis.set_axis_off()
        for axis, (title, picture) in zip(line, row, strict=False):
            axis.set_title(title, fontsize=8, pad=3)
            if picture.ndim == 3:
                axis.imshow(picture)
            else:
                shown = axis.imshow(picture, cmap=colours, vmin=low, vmax=high)
    if shown is not None:
        bar = figure.colorbar(shown, ax=axes, location="bottom", fraction=0.03, aspect=60, pad=0.01)
        bar.set_label(what)
    if classes:
        patches = [Patch(color=np.array(c.colour) / 255, label=c.name) for c in classes]
        figure.legend(handles=patches, loc="outside lower center", ncols=len(classes), fontsize=8)
    return figure

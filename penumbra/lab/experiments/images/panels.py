"""A grid of images with a colour bar and a legend of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from penumbra.bundle import ClassSpec

_TITLE = 0.22  # inches above an image


def grid(
    cells: Sequence[Sequence[tuple[str, np.ndarray]]],
    scale: tuple[str, float, float, str],
    classes: Sequence[ClassSpec] = (),
    wide: float = 2.1,
) -> Figure:
    """Rows of (title, image), each `wide` inches; RGB images as they are, maps by `scale`.

    `scale` is common to all maps: what they show, minimum, maximum, name of the colour map.
    """
    what, low, high, colours = scale
    columns = max(len(row) for row in cells)
    _, image = cells[0][0]
    tall = wide * image.shape[0] / image.shape[1] + _TITLE
    size = (wide * columns, tall * len(cells) + (1.0 if classes else 0.7))
    layout = ConstrainedLayoutEngine(w_pad=0.01, h_pad=0.01, wspace=0.01, hspace=0.01)
    figure = Figure(figsize=size, layout=layout)
    axes = figure.subplots(len(cells), columns, squeeze=False)
    shown: Any = None
    for line, row in zip(axes, cells, strict=True):
        for axis in line:
            axis.set_axis_off()
        for axis, (title, image) in zip(line, row, strict=False):
            axis.set_title(title, fontsize=8, pad=3)
            if image.ndim == 3:
                axis.imshow(image)
            else:
                shown = axis.imshow(image, cmap=colours, vmin=low, vmax=high)
    if shown is not None:
        bar = figure.colorbar(shown, ax=axes, location="bottom", fraction=0.03, aspect=60, pad=0.01)
        bar.set_label(what)
    if classes:
        patches = [Patch(color=_unit(spec.colour), label=spec.name) for spec in classes]
        figure.legend(handles=patches, loc="outside lower center", ncols=len(classes), fontsize=8)
    return figure


def _unit(colour: Sequence[int]) -> tuple[float, float, float]:
    """Red, green and blue from 0 to 1."""
    red, green, blue = (channel / 255 for channel in colour)
    return red, green, blue

"""One style for all figures, with colours that the colour-blind can distinguish."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

# Okabe and Ito (2008).
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
GREY, BLACK = "#888888", "#000000"

_STYLE: dict[RcKeyType, Any] = {
    "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.6,
}  # fmt: skip


def axes_grid(
    rows: int, columns: int, size: tuple[float, float], **kwargs: Any
) -> tuple[Figure, Any]:
    """A figure and its array of rows x columns axes, `size` inches each."""
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def png(draw: Callable[[], Figure]) -> bytes:
    """The figure that `draw` returns, in this style, as PNG; equal figures give equal bytes."""
    content = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        draw().savefig(content, format="png", dpi=150, metadata={"Software": None})
    return content.getvalue()

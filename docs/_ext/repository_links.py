"""Links from a page to files of the repository outside of docs/, as downloads.

On GitHub `[card](../config/models/x/README.md)` opens the file. Sphinx knows pages of docs/ only.
"""

from __future__ import annotations

import re
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)\)")


def _as_downloads(app: Any, name: str, source: list[str]) -> None:
    source[0] = LINK.sub(r"{download}`\1 <\2>`", source[0])


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _as_downloads)
    return {"parallel_read_safe": True}

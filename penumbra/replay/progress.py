"""How work reports its progress: an iterable, wrapped as tqdm does it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Progress(Protocol):
    """Wraps an iterable of `total` items (None: unknown) and yields the same items."""

    def __call__(self, work: Iterable[Item], total: int | None, /) -> Iterable[Item]:
        """The items of `work`, counted as they are taken."""
        ...


def no_progress(work: Iterable[Item], total: int | None, /) -> Iterable[Item]:
    """Show nothing."""
    return work

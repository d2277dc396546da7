"""Hand over the latest of what comes, from whoever may not wait to whoever is slow."""

from __future__ import annotations

from threading import Condition
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Room for one: a newer item takes the place of one that nobody has taken."""

    def __init__(self) -> None:
        self._item: Item | None = None
        self._closed = False
        self._change = Condition()

    def put(self, item: Item) -> Item | None:
        """Leave `item`; what it replaces, if anything, comes back. Never waits."""
        with self._change:
            replaced, self._item = self._item, item
            self._change.notify_all()
            return replaced

    def wait(self) -> bool:
        """Wait until something is there to be taken; False once the mailbox is closed."""
        with self._change:
            self._change.wait_for(lambda: self._closed or self._item is not None)
            return not self._closed

    def take(self) -> Item | None:
        """What is there now; nothing after closing."""
        with self._change:
            item, self._item = self._item, None
            return None if self._closed else item

    def close(self) -> None:
        """Let go of what is there, and of whoever waits."""
        with self._change:
            self._closed, self._item = True, None
            self._change.notify_all()

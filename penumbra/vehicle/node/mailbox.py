"""Passes the latest item from a callback that must not block to a slower thread."""

from __future__ import annotations

from threading import Condition
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Holds one item; a newer one replaces a pending one."""

    def __init__(self) -> None:
        self._item: Item | None = None
        self._closed = False
        self._change = Condition()

    def put(self, item: Item) -> Item | None:
        """Store `item` and return the one it replaces, if any. Never blocks."""
        with self._change:
            replaced, self._item = self._item, item
            self._change.notify_all()
            return replaced

    def wait(self) -> bool:
        """Wait for an item; False once the mailbox is closed."""
        with self._change:
            self._change.wait_for(lambda: self._closed or self._item is not None)
            return not self._closed

    def take(self) -> Item | None:
        """Remove and return the pending item; None if there is none, or after `close`."""
        with self._change:
            item, self._item = self._item, None
            return None if self._closed else item

    def close(self) -> None:
        """Discard the pending item and wake up waiting threads."""
        with self._change:
            self._closed, self._item = True, None
            self._change.notify_all()

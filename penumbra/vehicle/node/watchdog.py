"""Runs calls that may never return, with a time limit."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class CallTimeout(Exception):
    """The call did not return in time; its thread is abandoned, because none can be killed."""


class _Call(Generic[Result]):
    def __init__(self, function: Callable[[], Result]) -> None:
        self.function, self.done = function, Event()
        self.result: Result | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as error:  # raised in the calling thread
            self.error = error
        self.done.set()


class Watchdog:
    """Runs each call in a thread of a pool; the thread of a call that hangs is not used again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._idle: list[SimpleQueue[_Call[Any] | None]] = []

    def call(self, function: Callable[[], Result], timeout: float) -> Result:
        """The result of `function`; CallTimeout if it takes longer than `timeout` seconds."""
        call = _Call(function)
        with self._lock:
            worker = self._idle.pop() if self._idle else self._new_worker()
        worker.put(call)
        if not call.done.wait(timeout):
            raise CallTimeout
        with self._lock:
            self._idle.append(worker)
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value] # set, as there was no error

    def close(self) -> None:
        """End the idle threads."""
        with self._lock:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.put(None)

    def _new_worker(self) -> SimpleQueue[_Call[Any] | None]:
        calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()

        def work() -> None:
            while (call := calls.get()) is not None:
                call.run()
                del call  # or its result lives until the next call

        Thread(target=work, name=self._name, daemon=True).start()
        return calls

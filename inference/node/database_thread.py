"""Database calls on a thread of their own: a server that hangs must not stop the loop that looks after engines."""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError, connection

T = TypeVar("T")


class DatabaseThread:
    """Call it with the work. Raises what the work raises, and OperationalError when there is no answer within `limit_s`.

    A call that came too late may still take effect afterwards; until it has come back, further ones fail at once. The
    thread is a daemon: an agent that is told to stop does not wait for a frozen server.
    """

    def __init__(self, limit_s: float = 5.0) -> None:
        self._limit_s = limit_s
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._late: _Call | None = None
        self._thread: threading.Thread | None = None

    def __call__(self, work: Callable[[], T]) -> T:
        if self._late is not None and not self._late.is_done.is_set():
            raise OperationalError("an earlier call has not come back yet")
        self._late = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="database", daemon=True)
            self._thread.start()
        call = _Call(work)
        self._calls.put(call)
        if not call.is_done.wait(self._limit_s):
            self._late = call
            raise OperationalError(f"no answer within {self._limit_s:g} s")
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    def _run(self) -> None:
        while True:
            self._calls.get().run()


class _Call:
    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.is_done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 it is raised again, with its traceback, in the thread that called
            self.error = error
            if isinstance(error, OperationalError | InterfaceError):
                connection.close()
        self.is_done.set()

"""Slow work of the agent, each piece in a thread of its own. The loop that starts it asks later whether it is done.

A job touches no database (but for waiting on gateways) and no state of the agent: it takes values and returns one.
"""

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Job(Generic[T]):
    def __init__(self) -> None:
        self.progress = ""
        self.measured = (0, 0)
        """Bytes that are done, and of all; (0, 0): not told."""
        self._cancelled = threading.Event()
        self._done = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self, work: "Callable[[Job[T]], T]") -> None:
        try:
            self._value = work(self)
        except BaseException as error:  # noqa: BLE001 it is raised again, with its traceback, where result() is called
            self._error = error
        self._done.set()

    def say(self, progress: str) -> None:
        self.progress = progress

    def measure(self, done: int, total: int) -> None:
        self.measured = (done, total)

    def cancel(self) -> None:
        """Ask it to end early; whatever it returns then is nobody's concern."""
        self._cancelled.set()

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def pause(self, duration_s: float) -> None:
        """Sleep, but not past a cancel."""
        self._cancelled.wait(duration_s)

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def result(self) -> T:
        """What it returned; raises what it raised."""
        assert self.is_done, "ask is_done first"
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # T may be None itself


class Jobs(Protocol):
    finished: threading.Event
    """Set whenever one has ended; whoever waits for that clears it."""

    def start(self, name: str, work: Callable[[Job[T]], T]) -> Job[T]: ...


class ThreadJobs:
    """A daemon thread a job: an agent that is told to stop does not wait for a slow answer."""

    def __init__(self) -> None:
        self.finished = threading.Event()

    def start(self, name: str, work: Callable[[Job[T]], T]) -> Job[T]:
        job: Job[T] = Job()

        def run() -> None:
            job.run(work)
            self.finished.set()

        threading.Thread(target=run, name=name, daemon=True).start()
        return job

"""A server that did not answer is left alone for a while, so that not every request waits for it."""

import threading
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

LEFT_ALONE_S = 5.0


class Circuit:
    """`asks()` before each call, then `answered()` or `failed()`. One caller at a time finds out whether it is back."""

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._lock = threading.Lock()
        self._asked_again_s: float | None = None  # None: it answers

    def asks(self) -> bool:
        with self._lock:
            if self._asked_again_s is None:
                return True
            if self._clock() < self._asked_again_s:
                return False
            self._asked_again_s = self._clock() + LEFT_ALONE_S
            return True

    def answered(self) -> None:
        with self._lock:
            was_away, self._asked_again_s = self._asked_again_s is not None, None
        if was_away:
            log.info("server_is_back", server=self._name)

    def failed(self, error: Exception) -> None:
        """Logged once, until it answers again."""
        with self._lock:
            was_away, self._asked_again_s = self._asked_again_s is not None, self._clock() + LEFT_ALONE_S
        if not was_away:
            log.warning("server_away", server=self._name, reason=type(error).__name__)

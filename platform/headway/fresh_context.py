"""A TLS context made of files, made anew when they are others: certificates are renewed and revoked while processes run."""

import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from headway.errors import ConfigurationError

log = structlog.get_logger(__name__)
LOOK_EVERY_S = 1.0
Stamp = tuple[tuple[int, int, int] | None, ...]


class FreshContext:
    """Each change gives a context of its own, so that no session of the one before is resumed by it."""

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        files: Iterable[Path],
        *,
        look_every_s: float = LOOK_EVERY_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make` raises ConfigurationError for files that cannot be used."""
        self._make, self._files = make, tuple(files)
        self._look_every_s, self._now_s = look_every_s, now_s
        self._context: ssl.SSLContext | None = None
        self._stamp: Stamp = ()
        self._looked_s = 0.0

    def get(self) -> ssl.SSLContext:
        """Of the files as they are; while those cannot be used (half of them copied), of those before.

        Raises ConfigurationError where there never were any.
        """
        now_s = self._now_s()
        if self._context is not None and now_s - self._looked_s < self._look_every_s:
            return self._context
        self._looked_s = now_s
        stamp = tuple(_stamp(path) for path in self._files)
        if self._context is not None and stamp == self._stamp:
            return self._context
        try:
            made = self._make()
        except ConfigurationError as error:
            if self._context is None:
                raise
            if stamp != self._stamp:
                log.warning("certificates_not_reloaded", reason=error.message)
        else:
            if self._context is not None:
                log.info("certificates_reloaded", files=[path.name for path in self._files])
            self._context = made
        self._stamp = stamp
        return self._context


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size

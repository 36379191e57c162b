"""The tokenisers of the versions that are served: fetched by digest, kept in files, loaded by a thread of their own.

A gateway learns a digest from the change feed. Its bytes come from HOME/tokenisers/<digest> if they were seen before (also
with the database away), else from the database; they are used only if their SHA-256 is the digest.
"""

import threading
import time
from asyncio import wait, wrap_future
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import structlog
from django.db import DatabaseError, InterfaceError, connection

from inference.gateway.segments import write_durably
from inference.services.tokenisers import tokeniser_content
from inference.tokenising.bundle import NotABundle, decode_bundle, digest_of
from inference.tokenising.counter import PromptCounter, Uncountable

log = structlog.get_logger(__name__)
RETRY_S = 2.0
FIRST_WAIT_S = 2.0


def from_database(digest: str) -> bytes | None:
    """Blocks; raises LookupError while the database is away. The connection is closed again: it is seldom needed."""
    try:
        return tokeniser_content(digest)
    except (DatabaseError, InterfaceError) as error:
        raise LookupError(f"the database is away ({type(error).__name__})") from None
    finally:
        connection.close()


class TokeniserStore:
    """`want` may be called from any thread and is quick; `counter` on an event loop; the rest is the loading thread's."""

    def __init__(self, folder: Path, fetch: Callable[[str], bytes | None]) -> None:
        """`fetch` gives a tokeniser's bytes by its digest, None if there is none; it may block and may raise LookupError."""
        self._folder, self._fetch = folder, fetch
        self._loading: dict[str, Future[PromptCounter]] = {}
        self._failed: set[str] = set()
        self._wanted: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._has_changed = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="tokenisers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._is_stopping = True
        self._has_changed.set()
        self._thread.join(timeout_s)

    def want(self, digests: frozenset[str]) -> None:
        """From here on these are kept loaded, and no others."""
        if digests != self._wanted:
            with self._lock:
                for digest in digests - self._loading.keys():
                    self._loading[digest] = Future()
                self._wanted = digests
            self._has_changed.set()

    async def counter(self, digest: str) -> PromptCounter | None:
        """None while it is not loaded: it is waited for at first, not after an attempt to load it has failed."""
        loading = self._loading.get(digest)
        if loading is None:
            return None
        if not loading.done():
            if digest in self._failed:
                return None
            await wait({wrap_future(loading)}, timeout=FIRST_WAIT_S)
        return loading.result() if loading.done() and not loading.cancelled() else None

    # The thread

    def _run(self) -> None:
        while not self._is_stopping:
            self._has_changed.wait(RETRY_S if self._missing() else None)
            self._has_changed.clear()
            for digest in self._missing():
                if not self._is_stopping:
                    self._load(digest)
            self._let_go()

    def _missing(self) -> list[str]:
        with self._lock:
            return [digest for digest in self._wanted if not self._loading[digest].done()]

    def _let_go(self) -> None:
        with self._lock:
            for digest in self._loading.keys() - self._wanted:
                self._loading.pop(digest).cancel()
                self._failed.discard(digest)

    def _load(self, digest: str) -> None:
        started_s = time.monotonic()
        try:
            counter = PromptCounter(decode_bundle(self._content(digest)))
        except (OSError, NotABundle, Uncountable, LookupError) as error:
            reason = f"{type(error).__name__}: {error}"
        except Exception:  # the thread's boundary: without it no tokeniser would ever be loaded again
            log.exception("tokeniser_not_loaded", digest=digest)
            self._failed.add(digest)
            return
        else:
            self._failed.discard(digest)
            self._loading[digest].set_result(counter)
            log.info("tokeniser_loaded", digest=digest, load_ms=round((time.monotonic() - started_s) * 1000))
            return
        if digest not in self._failed:
            log.warning("tokeniser_not_loaded", digest=digest, reason=reason)
        self._failed.add(digest)

    def _content(self, digest: str) -> bytes:
        """Raises OSError, LookupError."""
        path = self._folder / digest
        try:
            content = path.read_bytes()
            if digest_of(content) == digest:
                return content
            log.warning("tokeniser_damaged", file=str(path))
        except FileNotFoundError:
            pass
        fetched = self._fetch(digest)
        if fetched is None or digest_of(fetched) != digest:
            raise LookupError("the database does not have it")
        try:
            write_durably(path, fetched)
        except OSError as error:
            log.warning("tokeniser_not_kept", file=str(path), reason=error.strerror)
        return fetched

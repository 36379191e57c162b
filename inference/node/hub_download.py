"""Files of one state of a hub's repository, into a folder that outlives cut connections, errors and the agent itself.

What has come of a file lies in `.parts/`; the next attempt asks for the rest of it (Range). A file gets its name only
once its length and the digest that the hub states for it are right, so whatever has its name is whole.

The networks before the hub give no more than 50 GB in one answer, so a larger file is asked for in pieces (Range with an
end). A hub that gives it in no piece either is left to its own library, which takes its Xet protocol: that one rebuilds a
file from chunks into a temporary file of its own and removes it when it is cut, so such a file begins anew.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import httpx2  # what huggingface_hub speaks
from huggingface_hub import constants, hf_hub_download, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # exported lazily
    build_hf_headers,
    hf_raise_for_status,
    http_stream_backoff,
)

from inference.errors import BadWeights
from inference.node.child import Cancelled, ChildFailed
from inference.node.weight_files import CHUNK_BYTES, sha256_of

PARTS = ".parts"
FILES_AT_ONCE = 4
RETRIES = 5
RETRY_S = 1.0
PARTIAL_CONTENT = 206
PIECE_BYTES = 10 * 10**9
GIVES_NO_PIECES = frozenset({400, 413, 416, 501})


@dataclass(frozen=True)
class HubFile:
    """`sha256` of large files, `git_oid` of others; empty where the hub does not say."""

    name: str
    size_bytes: int
    sha256: str = ""
    git_oid: str = ""


@dataclass(frozen=True)
class HubState:
    """`commit`: of the repository, so that all files are of one state."""

    repository: str
    commit: str
    endpoint: str | None
    files: tuple[HubFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def download(state: HubState, folder: Path, *, arrived: Callable[[int], None], is_cancelled: Callable[[], bool]) -> None:
    """`arrived` is told how many bytes have come, those of earlier attempts included; from several threads.

    Raises BadWeights, ChildFailed (try again: what has come stays), Cancelled, and what huggingface_hub raises.
    """
    _Download(state, folder, arrived, is_cancelled).run()


def bytes_there(state: HubState, folder: Path) -> int:
    """Of earlier attempts."""
    found = 0
    for file in state.files:
        for path in (folder / file.name, folder / PARTS / file.name):
            with contextlib.suppress(OSError):
                found += min(path.stat().st_size, file.size_bytes)
    return found


class _Download:
    def __init__(self, state: HubState, folder: Path, arrived: Callable[[int], None], is_cancelled: Callable[[], bool]) -> None:
        self._state, self._folder, self._tell, self._is_cancelled = state, folder, arrived, is_cancelled
        self._has_failed = threading.Event()
        self._lock = threading.Lock()
        self._come_bytes = bytes_there(state, folder)
        self._headers = build_hf_headers()

    def run(self) -> None:
        for file in self._state.files:
            _check_name(file.name)
        self._tell(self._come_bytes)
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="hub") as threads:
            # `map` raises what the first of them raised, once all have ended.
            for _ in threads.map(self._guarded, self._state.files):
                pass

    def _guarded(self, file: HubFile) -> None:
        """The others end when one has failed."""
        if self._has_failed.is_set():
            return
        try:
            self._fetch(file)
        except _EndedByAnother:
            pass
        except BaseException:
            self._has_failed.set()
            raise

    def _fetch(self, file: HubFile) -> None:
        target, part = self._folder / file.name, self._folder / PARTS / file.name
        if target.is_file():
            return
        for path in (target, part):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fetch_part(file, part)
        self._verify(file, part)
        part.replace(target)

    def _fetch_part(self, file: HubFile, part: Path) -> None:
        so_far_bytes = part.stat().st_size if part.exists() else 0
        if so_far_bytes > file.size_bytes:
            self._forget(part)
            so_far_bytes = 0
        if so_far_bytes == file.size_bytes and so_far_bytes:
            return
        try:
            self._append_rest(file, part)
        except HfHubHTTPError as error:
            if not _is_large(file) or error.response.status_code not in GIVES_NO_PIECES:
                raise
            self._forget(part)
            self._fetch_by_xet(file, part)

    def _append_rest(self, file: HubFile, part: Path) -> None:
        with part.open("ab") as content:
            try:
                self._fetch_rest(file, content)
            finally:
                content.flush()
                os.fsync(content.fileno())

    def _fetch_rest(self, file: HubFile, content: IO[bytes]) -> None:
        """Goes on after each cut, as long as something comes between two of them."""
        failures = 0
        while True:
            before_bytes = content.tell()
            try:
                self._stream(file, content)
                if content.tell() >= file.size_bytes or content.tell() <= before_bytes:
                    return
                failures = 0
            except (httpx2.ConnectError, httpx2.TimeoutException, httpx2.RemoteProtocolError, httpx2.ReadError):
                failures = failures + 1 if content.tell() == before_bytes else 1
                if failures > RETRIES:
                    raise
                self._pause(RETRY_S)

    def _stream(self, file: HubFile, content: IO[bytes]) -> None:
        url = hf_hub_url(self._state.repository, file.name, revision=self._state.commit, endpoint=self._state.endpoint)
        from_bytes = content.tell()
        until_bytes = min(file.size_bytes, from_bytes + PIECE_BYTES) if _is_large(file) else file.size_bytes
        headers = {**self._headers, "Accept-Encoding": "identity"}  # lengths and ranges are those of the file
        if from_bytes or until_bytes < file.size_bytes:
            headers["Range"] = f"bytes={from_bytes}-{until_bytes - 1}"
        timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with http_stream_backoff(
            "GET", url, headers=headers, timeout=timeout_s, retry_on_exceptions=(), retry_on_status_codes=(408, 429)
        ) as response:
            hf_raise_for_status(response)
            if response.status_code != PARTIAL_CONTENT:  # it sends all of it
                until_bytes = file.size_bytes
                self._count(-from_bytes)
                content.truncate(0)
                content.seek(0)
            coming_bytes = int(response.headers.get("Content-Length", until_bytes - content.tell()))
            if content.tell() + coming_bytes != until_bytes:
                offered = f"{content.tell() + coming_bytes:,} bytes of {file.name}, not {until_bytes:,}"
                raise ChildFailed(f"the hub offers {offered}")
            for chunk in response.iter_raw():
                content.write(chunk)
                self._count(len(chunk))
                if content.tell() > file.size_bytes:
                    return

    def _pause(self, duration_s: float) -> None:
        """Not past the end of it all."""
        self._count(0)
        self._has_failed.wait(duration_s)

    def _fetch_by_xet(self, file: HubFile, part: Path) -> None:
        """Nothing of it is kept when it is cut."""
        made = hf_hub_download(
            self._state.repository,
            file.name,
            revision=self._state.commit,
            endpoint=self._state.endpoint,
            local_dir=part.parent / ".xet",
        )
        Path(made).replace(part)
        self._count(part.stat().st_size)

    def _verify(self, file: HubFile, part: Path) -> None:
        size_bytes = part.stat().st_size
        if size_bytes < file.size_bytes:
            raise ChildFailed(f"the hub sent {size_bytes:,} of {file.size_bytes:,} bytes of {file.name}")
        wrong = f"{size_bytes:,} bytes, not {file.size_bytes:,}" if size_bytes > file.size_bytes else _wrong_digest(file, part)
        if wrong:
            self._forget(part)
            raise ChildFailed(f"{file.name} came damaged from the hub ({wrong}); it is fetched anew")

    def _forget(self, part: Path) -> None:
        self._count(-part.stat().st_size)
        part.unlink()

    def _count(self, num_bytes: int) -> None:
        if self._has_failed.is_set():
            raise _EndedByAnother
        if self._is_cancelled():
            raise Cancelled
        with self._lock:
            self._come_bytes += num_bytes
            come_bytes = max(0, min(self._come_bytes, self._state.size_bytes))
        self._tell(come_bytes)


def _is_large(file: HubFile) -> bool:
    """More than is given in one answer."""
    return file.size_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE


class _EndedByAnother(Exception):
    """Another file's download has failed."""


def _check_name(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or path.parts[0] == PARTS or "\0" in name:
        raise BadWeights(f"the hub lists a file {name!r}, which is no name inside a repository")


def _wrong_digest(file: HubFile, part: Path) -> str:
    """Empty: it is right, or the hub states none."""
    if file.sha256 and (found := sha256_of(part)) != file.sha256:
        return f"SHA-256 {found[:12]}..., not {file.sha256[:12]}..."
    if file.git_oid and not file.sha256 and (found := git_oid_of(part)) != file.git_oid:
        return f"git id {found[:12]}..., not {file.git_oid[:12]}..."
    return ""


def git_oid_of(path: Path) -> str:
    """As git names a file's content: what the hub states of files that are not in its large file storage."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def hub_files(siblings: Iterable[Any]) -> tuple[HubFile, ...]:
    """Of the library's list of a repository's files."""
    return tuple(
        HubFile(
            name=sibling.rfilename,
            size_bytes=int(sibling.size or 0),
            sha256=sibling.lfs.sha256 if sibling.lfs else "",
            git_oid=sibling.blob_id or "",
        )
        for sibling in siblings
    )

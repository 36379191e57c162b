"""Weights on disk: digests, manifests, and folders that are either whole or not there.

A staged folder is built under a name that begins with `.partial-`, gets a manifest, is flushed to disk and only then
renamed. Whoever finds a folder without a manifest, or with files that differ from it, does not take it for whole.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MANIFEST = "headway-manifest.json"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Staged:
    """Weights ready to be loaded. `digest` is the SHA-256 (hex) of their source."""

    path: Path
    digest: str
    source: str = field(default="", compare=False)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_below(folder: Path) -> list[Path]:
    """Regular files (and links to some), sorted by relative name; what begins with a dot is left out."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def signature_of(folder: Path) -> list[list[Any]]:
    """[relative name, size, mtime_ns] of each file: changes when a file is written the usual ways."""
    rows = []
    for path in files_below(folder):
        stat = path.stat()
        rows.append([str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns])
    return rows


def folder_digest(folder: Path, cache: Path) -> str:
    """SHA-256 over names and contents of a folder's files. Read again only when its signature has changed."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    remembered = cache / (hashlib.sha256(os.fsencode(folder)).hexdigest()[:24] + ".json")
    signature = signature_of(folder)
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError, KeyError):
        known = json.loads(remembered.read_text())
        if known["signature"] == signature:
            return str(known["digest"])
    digest = hashlib.sha256()
    for path in files_below(folder):
        digest.update(f"{path.relative_to(folder)}\0{sha256_of(path)}\n".encode())
    write_json(remembered, {"folder": str(folder), "signature": signature, "digest": digest.hexdigest()})
    return digest.hexdigest()


def write_json(path: Path, value: object) -> None:
    """The whole file or the old one, also after a power cut."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    partial = Path(name)
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def find_whole(folder: Path) -> Staged | None:
    """The folder, if its manifest is there and its files are those the manifest names.

    Sizes and times are compared; a file whose time moved is read again. Damage that keeps both is found by golden.py.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        for entry in manifest["files"]:
            path = folder / entry["name"]
            stat = path.stat()
            is_same = stat.st_size == entry["size_bytes"]
            if is_same and stat.st_mtime_ns != entry["mtime_ns"]:
                is_same = sha256_of(path) == entry["sha256"]
            if not is_same:
                return None
        return Staged(path=folder, digest=manifest["source_sha256"], source=manifest["source"])
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, KeyError):
        return None


def write_manifest(folder: Path, *, source: str, source_sha256: str) -> None:
    files = []
    for path in files_below(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        stat = path.stat()
        row = {"name": str(path.relative_to(folder)), "size_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        files.append({**row, "sha256": sha256_of(path)})
    write_json(folder / MANIFEST, {"source": source, "source_sha256": source_sha256, "files": files})


@contextlib.contextmanager
def being_built(target: Path, *, is_good: Callable[[], bool] | None = None) -> Iterator[Path]:
    """Yields an empty folder beside `target`; it takes the target's place when the block ends without an error.

    One builder a target at a time (flock): the others wait, and should look with `find_whole` first. What a killed
    builder left behind is removed. `is_good`: whether what stands at `target` by then may stay (default: if it is whole).
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in target.parent.glob(f".partial-{target.name}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".partial-{target.name}-"))
        try:
            yield partial
            if not (is_good() if is_good else find_whole(target) is not None):
                _put_in_place(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)
    fd = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def bytes_below(folder: Path, suffix: str = "") -> int:
    """Of files whose names end so. Others may make and remove files and folders in it meanwhile."""
    found = 0
    for parent, _, names in os.walk(folder):  # it passes over folders that have gone
        for path in (Path(parent, name) for name in names if name.endswith(suffix)):
            with contextlib.suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    found += path.stat().st_size
    return found

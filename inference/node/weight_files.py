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
    known = _read_json(remembered)
    if known.get("signature") == signature and isinstance(known.get("digest"), str):
        return str(known["digest"])
    files = {str(path.relative_to(folder)): sha256_of(path) for path in files_below(folder)}
    digest = hashlib.sha256("".join(f"{name}\0{sha256}\n" for name, sha256 in files.items()).encode()).hexdigest()
    write_json(_listing(cache, digest), files)
    write_json(remembered, {"folder": str(folder), "signature": signature, "digest": digest})
    return digest


def changed_files(cache: Path, *, before: str, now: str) -> list[str]:
    """Which files differ between two digests of a folder; none where nobody has read the folder as it was."""
    then, there = _read_json(_listing(cache, before)), _read_json(_listing(cache, now))
    return sorted(name for name in then.keys() | there.keys() if then.get(name) != there.get(name)) if then and there else []


def _listing(cache: Path, digest: str) -> Path:
    """Names and SHA-256 of the files that make a digest."""
    return cache / f"{digest[:24]}.files.json"


def _read_json(path: Path) -> dict[str, Any]:
    """Empty where it is not there, or nothing that we wrote."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else {}
    return {}


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
    """The folder, if its manifest is there and its files are those the manifest names, and no others."""
    found = examine(folder)
    return found if isinstance(found, Staged) else None


@dataclass(frozen=True)
class NotWhole:
    """`why` names the file; empty: nothing is there."""

    why: str = ""


def examine(folder: Path) -> Staged | NotWhole:
    """Sizes and times are compared; a file whose time moved is read again. Damage that keeps both is found by golden.py."""
    if not folder.exists():
        return NotWhole()
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        found = Staged(path=folder, digest=manifest["source_sha256"], source=manifest["source"])
        entries = {str(entry["name"]): entry for entry in manifest["files"]}
        for name, entry in entries.items():
            why = _why_not(folder / name, entry)
            if why:
                return NotWhole(f"{folder.name}/{name} {why}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # whatever somebody has written there
        return NotWhole(f"{folder.name}/{MANIFEST} is missing or cannot be read")
    # An engine loads every file of weights that it finds.
    others = {str(path.relative_to(folder)) for path in files_below(folder)} - entries.keys() - {MANIFEST}
    return NotWhole(f"{folder.name}/{min(others)} was not staged") if others else found


def _why_not(path: Path, entry: dict[str, Any]) -> str:
    """Why the file is not the one of that entry; empty if it is."""
    try:
        stat = path.stat()
        if stat.st_size != entry["size_bytes"]:
            return f"has {stat.st_size:,} bytes, not {entry['size_bytes']:,}"
        if stat.st_mtime_ns != entry["mtime_ns"] and sha256_of(path) != entry["sha256"]:
            return "has other bytes than those that were staged"
    except FileNotFoundError:
        return "is gone"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""


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

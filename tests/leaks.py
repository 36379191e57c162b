"""No key material lies about: whole API keys in what processes and tests leave behind (logs, databases, journals).

A key is known by its checksum, so nothing is taken for one by its looks. Where a key belongs, it may be: the demo's key
file, which is its owner's alone.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tenants.services.key_format import parse_key

MAX_BYTES = 256 * 1024 * 1024
_KEY = re.compile(rb"hw_live_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}")
KEY_FILES = frozenset({"demo_key"})


def leaks(folder: Path) -> list[str]:
    """Each file below `folder` that has a key, with how many and where the first one stands."""
    found = []
    for path in _files(folder):
        at = [match.start() for match in _KEY.finditer(path.read_bytes()) if parse_key(match[0].decode()) is not None]
        if at:
            found.append(f"{path.relative_to(folder)}: {len(at)}, the first at byte {at[0]}")
    return found


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file() or path.name in KEY_FILES:
            continue
        if path.stat().st_size <= MAX_BYTES and path.suffix not in {".safetensors", ".gguf"}:
            yield path

"""An engine's log file: why it died, and how it is kept from growing for ever."""

import os
import re
import shutil
from pathlib import Path

TAIL_BYTES = 64 * 1024
MAX_LINE_CHARS = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^\((?:APIServer|EngineCore|Worker)[^)]*\)\s*(?:(?:ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\]\s*)?")
_CAUSE = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*|.*: error: .*)$")
# They follow the cause and say nothing of it.
_GENERIC = ("Engine core initialization failed", "EngineDeadError", "KeyboardInterrupt", "See stack trace", "See root cause")


def size_of(log: Path) -> int:
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0


def last_words(log: Path, *, since_bytes: int) -> str:
    """The line that best says why the engine ended, from what it wrote after `since_bytes`; empty if none does."""
    size = size_of(log)
    start = since_bytes if since_bytes <= size else 0  # it was rotated meanwhile
    try:
        with log.open("rb") as file:
            file.seek(max(start, size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    lines = [_PREFIX.sub("", _COLOUR.sub("", line)).strip() for line in text.splitlines()]
    causes = [line for line in lines if _CAUSE.match(line) and not any(words in line for words in _GENERIC)]
    return causes[-1][:MAX_LINE_CHARS] if causes else ""


def last_lines(log: Path, *, number: int = 200) -> str:
    """Of the file as it lies there, without colours; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, size_of(log) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(_COLOUR.sub("", line) for line in text.splitlines()[-number:])


def rotate(log: Path, *, max_bytes: int, keep: int = 2) -> None:
    """Copy a log that has grown too big and empty it: the engine holds the file open (in append mode) and goes on.

    What it writes between the copy and the emptying, a moment, is lost.
    """
    if size_of(log) < max_bytes:
        return
    for number in range(keep, 1, -1):
        older = log.with_name(f"{log.name}.{number - 1}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number}"))
    shutil.copyfile(log, log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)

"""Runs a helper program (pip, a converter) for the node agent: its end can be asked for, its output becomes the reason."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

POLL_S = 0.2
TAIL_CHARS = 300


class ChildFailed(Exception):
    """Read its message: the program's last words."""


class Cancelled(Exception):
    """Nobody wants the result any more."""


def run_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    is_cancelled: Callable[[], bool],
    watch: Callable[[str], None] = lambda _output: None,
) -> None:
    """`watch` is called a few times a second with the output so far. Raises ChildFailed, Cancelled."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environment), start_new_session=True
        )
        try:
            while process.poll() is None:
                if is_cancelled():
                    raise Cancelled
                watch(_read(output.fileno()))
                time.sleep(POLL_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            text = _read(output.fileno()).strip()
            last = text.splitlines()[-1][-TAIL_CHARS:] if text else "it said nothing"
            raise ChildFailed(f"exit status {process.returncode}: {last}")


def _read(fd: int) -> str:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0).decode(errors="replace")

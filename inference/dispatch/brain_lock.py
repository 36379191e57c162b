"""At most one brain decides on a machine, for one HEADWAY_HOME: a flock, which the kernel gives back however its holder ends.

The file remembers the highest epoch led from here, for takeovers with the database away.
"""

import contextlib
import fcntl
import os
from pathlib import Path


class BrainLock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        return self._fd is not None

    def take(self) -> bool:
        """False: someone else has it. Again: true. Raises OSError when the disk does not work."""
        if self._fd is not None:
            return True
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def epoch(self) -> int:
        """0: nobody led from here."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._path.read_text() or 0)
        return 0

    def remember(self, epoch: int) -> None:
        """Raises OSError."""
        assert self._fd is not None
        os.pwrite(self._fd, b"%020d" % epoch, 0)

    def give_back(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

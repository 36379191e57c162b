"""The one folder of all state: HEADWAY_HOME. Everything a process writes lies below it.

headway.sqlite3   the embedded database
secret_key        Django's, made on first use
redis/            our own Redis-protocol server's: configuration with its password (redis_password), append-only file
journal/          usage records on their way to the ledger
snapshots/        what the data plane needs to start with the database away
weights/          staged model weights, and in .downloads/ what has come of others
engine-args/      what engines' parsers have said of arguments
tokenisers/       what prompts are counted with, by digest
node/             what the node agent knows of its engines (pid, start time, epoch; last desired state)
logs/             one file a process, rotated
tls/              our certificate authority, and certificates of gateways and nodes, with their keys (0600)
exports/          large files that were asked for, for a week
run/              sockets and locks
"""

import hashlib
import os
import secrets
import tempfile
from pathlib import Path

# A Unix socket's path may be 107 bytes long; below run/ the longest name is about 40.
MAX_RUN_PATH_BYTES = 64


class Home:
    """Paths below HEADWAY_HOME; a folder is made (mode 0700) when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    @property
    def installation_id(self) -> str:
        """Twelve hex digits that tell this installation from others on the machine (from the folder's path)."""
        return hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]

    def folder(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    @property
    def journal(self) -> Path:
        return self.folder("journal")

    @property
    def snapshots(self) -> Path:
        return self.folder("snapshots")

    @property
    def weights(self) -> Path:
        return self.folder("weights")

    @property
    def tokenisers(self) -> Path:
        return self.folder("tokenisers")

    @property
    def node(self) -> Path:
        return self.folder("node")

    @property
    def logs(self) -> Path:
        return self.folder("logs")

    @property
    def run(self) -> Path:
        """Sockets and locks: run/, or a short folder of our own under the system's temporary one if that is too long."""
        if len(os.fsencode(self.root / "run")) <= MAX_RUN_PATH_BYTES:
            return self.folder("run")
        path = Path(tempfile.gettempdir()) / f"headway-{os.getuid()}-{self.installation_id}"
        path.mkdir(mode=0o700, exist_ok=True)
        if path.stat().st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        return path

    @property
    def tls(self) -> Path:
        return self.folder("tls")

    def secret_key(self) -> str:
        """Django's SECRET_KEY."""
        return self._kept_secret("secret_key")

    def redis_password(self) -> str:
        """Of our own Redis-protocol server."""
        return self._kept_secret("redis_password")

    def _kept_secret(self, name: str) -> str:
        """Made once (mode 0600), then read; two processes that start together agree on one."""
        path = self.folder(".") / name
        if not path.exists():
            fd, partial = tempfile.mkstemp(dir=self.root)  # mode 0600
            with os.fdopen(fd, "w") as file:
                file.write(secrets.token_urlsafe(48))
            try:
                os.link(partial, path)
            except FileExistsError:
                pass
            finally:
                Path(partial).unlink()
        return path.read_text()

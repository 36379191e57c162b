"""Databases with all tables in them: copies of one that `manage.py migrate` has made, since that takes ten seconds."""

import functools
import hashlib
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

ROOT = Path(__file__).resolve().parents[2]
LOCK = 0x68656164
"""Of PostgreSQL's advisory locks: one of several processes makes the template, the others wait for it."""


def migrated_database(server_url: str) -> str:
    """A new database's address."""
    template = migrated_template(server_url)
    name = f"hw_{secrets.token_hex(6)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
    return _url_of(server_url, name)


def drop_database(url: str) -> None:
    with psycopg.connect(_url_of(url, "postgres"), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path[1:]} WITH (FORCE)".encode())


def migrated_template(server_url: str) -> str:
    """The name of a database that `manage.py migrate` has made, and that nobody else uses."""
    name = f"hw_template_{_migrations_digest()}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
            return name
        unfinished = f"{name}_unfinished"
        connection.execute(f"DROP DATABASE IF EXISTS {unfinished}".encode())
        connection.execute(f"CREATE DATABASE {unfinished}".encode())
        with tempfile.TemporaryDirectory() as home:
            _migrate(Path(home), DATABASE_URL=_url_of(server_url, unfinished))
        connection.execute(f"ALTER DATABASE {unfinished} RENAME TO {name}".encode())
    return name


def migrated_sqlite(home: Path) -> None:
    """What `manage.py migrate` makes in a HEADWAY_HOME with nothing set: `headway.sqlite3`."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "headway.sqlite3").write_bytes(_sqlite_template())


@functools.cache
def _sqlite_template() -> bytes:
    with tempfile.TemporaryDirectory() as home:
        _migrate(Path(home))
        return (Path(home) / "headway.sqlite3").read_bytes()


def _migrate(home: Path, **settings: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "DJANGO_", "DATABASE_"))}
    command = [sys.executable, str(ROOT / "manage.py"), "migrate", "-v0"]
    environment = {**kept, "HEADWAY_HOME": str(home), **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _migrations_digest() -> str:
    """A server that outlives a checkout's change gets another template."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("*/migrations/*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _url_of(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))

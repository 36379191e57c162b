"""The environment, read in one place by typed readers that fail loudly.

Every reader takes the setting's name and default. A secret may come from a file named by `NAME_FILE`.
`SETTINGS` remembers each setting that was read, so that a test can hold docs/operations.md to it.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headway.errors import ConfigurationError


@dataclass(frozen=True)
class Setting:
    name: str
    default: str


SETTINGS: dict[str, Setting] = {}


def _raw(name: str, default: object) -> str | None:
    SETTINGS[name] = Setting(name=name, default=str(default))
    value = os.environ.get(name)
    return value if value else None


def text(name: str, default: str) -> str:
    return _raw(name, default) or default


def secret(name: str, default: str) -> str:
    """`NAME`, or the content of the file that `NAME_FILE` names."""
    path = os.environ.get(f"{name}_FILE")
    if path:
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise ConfigurationError(f"{name}_FILE: cannot read {path}: {error.strerror}") from error
    return _raw(name, default) or default


def whole(name: str, default: int, *, at_least: int = 0, at_most: int = 2**53) -> int:
    value = _raw(name, default)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        raise ConfigurationError(f"{name} must be a whole number, not {value!r}") from None
    if not at_least <= number <= at_most:
        raise ConfigurationError(f"{name} must lie between {at_least} and {at_most}, not {number}")
    return number


def seconds(name: str, default: float, *, at_least: float = 0.0) -> float:
    value = _raw(name, default)
    if value is None:
        return default
    try:
        number = float(value)
    except ValueError:
        raise ConfigurationError(f"{name} must be a number of seconds, not {value!r}") from None
    if not at_least <= number < float("inf"):
        raise ConfigurationError(f"{name} must be at least {at_least} seconds, not {value}")
    return number


def truth(name: str, default: bool) -> bool:
    value = _raw(name, "1" if default else "0")
    if value is None:
        return default
    if value.lower() in {"1", "true", "yes", "on"}:
        return True
    if value.lower() in {"0", "false", "no", "off"}:
        return False
    raise ConfigurationError(f"{name} must be 1 or 0, not {value!r}")


def names(name: str, default: list[str]) -> list[str]:
    value = _raw(name, ",".join(default))
    return default if value is None else [part.strip() for part in value.split(",") if part.strip()]


def folder(name: str, default: Path) -> Path:
    value = _raw(name, default.name)
    return Path(value).expanduser().absolute() if value else default


def database(name: str, default_file: Path) -> dict[str, object]:
    """Django's DATABASES entry for `postgresql://user:password@host:port/name`, or SQLite at `default_file`.

    `sqlite:///path` is taken too. Raises ConfigurationError for anything else.
    """
    _raw(name, "SQLite in HEADWAY_HOME")
    value = secret(name, "")
    url = urlsplit(value)
    if not value or url.scheme == "sqlite":
        return _sqlite(Path(url.path) if url.path else default_file)
    if url.scheme not in {"postgres", "postgresql"} or not url.path.strip("/"):
        raise ConfigurationError(f"{name} must be postgresql://user:password@host:port/name or sqlite:///path")
    query = dict(part.split("=", 1) for part in url.query.split("&") if "=" in part)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(url.path[1:]),
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": unquote(query.get("host", url.hostname or "")),
        "PORT": str(url.port or ""),
        # A server behind a network that swallows packets is noticed within seconds, not after TCP's quarter of an hour.
        "OPTIONS": {
            "connect_timeout": 5,
            "keepalives_idle": 5,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 15_000,
        },
    }


def _sqlite(path: Path) -> dict[str, object]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=20000;",
        },
        "TEST": {"NAME": str(path.with_name("test.sqlite3"))},
    }

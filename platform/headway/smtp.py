"""Where mails go: `smtp://user:password@host:587` (STARTTLS; `?tls=none` for a relay without) or `smtps://...:465`."""

from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from headway.errors import ConfigurationError

_PORTS = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True)
class SmtpServer:
    host: str
    port: int
    username: str
    password: str = field(repr=False)
    starts_tls: bool
    is_tls: bool


def smtp_server(url: str, *, name: str) -> SmtpServer | None:
    """None for an empty text. Raises ConfigurationError naming the setting."""
    if not url:
        return None
    parts = urlsplit(url)
    tls = parse_qs(parts.query).get("tls", ["starttls"])[0]
    try:
        port = _PORTS[parts.scheme] if parts.port is None else parts.port
    except (KeyError, ValueError):
        port = 0
    if not port or not parts.hostname or tls not in {"starttls", "none"}:
        raise ConfigurationError(
            f"{name} must be smtp://user:password@host:port (?tls=none) or smtps://user:password@host:port"
        )
    return SmtpServer(
        host=parts.hostname,
        port=port,
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        starts_tls=parts.scheme == "smtp" and tls == "starttls",
        is_tls=parts.scheme == "smtps",
    )

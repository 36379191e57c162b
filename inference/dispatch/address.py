"""Where a dispatcher is: `unix:/path` on its own machine, `tls://host:port` or `tcp://host:port` for others."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headway.certificates import DISPATCHER_NAME
from headway.errors import ConfigurationError

Tls = Callable[[], ssl.SSLContext]
"""Raises ConfigurationError."""


@dataclass(frozen=True, slots=True)
class Address:
    path: Path | None = None
    host: str = ""
    port: int = 0
    is_tls: bool = False
    tls: Tls | None = field(default=None, compare=False, repr=False)
    """Of who listens there: what is shown; else whom to believe."""

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        scheme = "tls" if self.is_tls else "tcp"
        return f"{scheme}://[{self.host}]:{self.port}" if ":" in self.host else f"{scheme}://{self.host}:{self.port}"

    def context(self) -> ssl.SSLContext | None:
        """None: it is not encrypted. Raises ConfigurationError."""
        if not self.is_tls:
            return None
        if self.tls is None:
            raise ConfigurationError(f"this process has no certificates for {self}")
        return self.tls()

    async def connect(self, make: Callable[[], asyncio.Protocol]) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.path is not None:
            await loop.create_unix_connection(make, str(self.path))
            return
        try:
            context = self.context()
        except ConfigurationError as error:
            raise OSError(error.message) from error
        # Whichever machine it is on: it shows a certificate for this name.
        name = DISPATCHER_NAME if context is not None else None
        await loop.create_connection(make, self.host, self.port, ssl=context, server_hostname=name)


def parse_address(text: str, *, tls: Tls | None = None) -> Address:
    """Also `host:port`, which is not encrypted. Raises ConfigurationError."""
    if text.startswith("unix:/"):
        return Address(path=Path(text.removeprefix("unix:")))
    is_tls = text.startswith("tls://")
    host, colon, port = text.removeprefix("tls://" if is_tls else "tcp://").rpartition(":")
    if not colon or not host or not port.isdigit() or not int(port) < 65536:
        raise ConfigurationError(f"a dispatcher's address is unix:/path, tls://host:port or host:port, not {text!r}")
    return Address(host=host.strip("[]"), port=int(port), is_tls=is_tls, tls=tls if is_tls else None)

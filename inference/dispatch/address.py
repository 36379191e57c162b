"""Where a dispatcher is: `unix:/path` on its own machine, `tcp://host:port` for others."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Address:
    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    async def connect(self, make: Callable[[], asyncio.Protocol]) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.path is not None:
            await loop.create_unix_connection(make, str(self.path))
        else:
            await loop.create_connection(make, self.host, self.port)


def parse_address(text: str) -> Address:
    """Also `host:port`. Raises ConfigurationError."""
    if text.startswith("unix:/"):
        return Address(path=Path(text.removeprefix("unix:")))
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    if not colon or not host or not port.isdigit() or not int(port) < 65536:
        raise ConfigurationError(f"a dispatcher's address is unix:/path or host:port, not {text!r}")
    return Address(host=host.strip("[]"), port=int(port))

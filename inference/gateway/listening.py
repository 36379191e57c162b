"""The socket that is listened on: bound before anything starts, inherited by worker processes."""

import resource
import socket

from headway.errors import ConfigurationError
from inference.gateway.edge import EdgeTunables

SPARE_FILES = 128


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigurationError in one line."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        why = "the port is taken" if error.errno in (98, 48) else error.strerror
        raise ConfigurationError(f"cannot listen on {host}:{port}: {why}") from error
    bound.setblocking(False)
    return bound


def bind_several(host: str, port: int, count: int) -> list[socket.socket]:
    """One socket a worker, all at the same address: the kernel spreads connections over them evenly, which it does not where
    processes share one. Held by the parent, so that what waits in one outlives its worker. Raises ConfigurationError.
    """
    probe = bind(host, port)  # fails if someone else has the port, which sockets that may share it would not
    address = probe.getsockname()
    probe.close()
    several = []
    for _ in range(count):
        bound = socket.socket(probe.family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
        bound.setblocking(False)
        several.append(bound)
    return several


def shown_address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def set_connection_options(listening: socket.socket, edge: EdgeTunables) -> None:
    """What accepted connections inherit: a send buffer of a stated size, and peers that are gone without a word are noticed."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, edge.client_buffer_bytes // 2)  # Linux doubles it
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": int(edge.client_stall_s * 2000)}
    for name, value in options.items():
        if listening.family != socket.AF_UNIX and hasattr(socket, name):  # macOS has not all of them
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def connections_allowed() -> int:
    """How many streams the open files of this process are enough for, with some left for the journal and the database."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (soft - SPARE_FILES) // 2)


def raise_file_limit() -> None:
    """A stream takes two descriptors, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

"""A gateway on a real socket in front of one scripted replica (tests/fakes)."""

import asyncio
from collections.abc import Callable

import uvloop

from tests.fakes.fixtures import gateway, replica

__all__ = ["gateway", "replica"]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that serves: its transports differ from asyncio's."""
    return {"uvloop": uvloop.new_event_loop}

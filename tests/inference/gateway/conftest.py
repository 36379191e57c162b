"""A gateway on a real socket in front of one scripted replica (tests/fakes)."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from tests.fakes.gateway import GatewayUnderTest, model_changes, running_gateway
from tests.fakes.replica import ScriptedReplica


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that serves: its transports differ from asyncio's."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def replica() -> AsyncIterator[ScriptedReplica]:
    async with ScriptedReplica() as replica:
        yield replica


@pytest.fixture
async def gateway(replica: ScriptedReplica) -> AsyncIterator[GatewayUnderTest]:
    """Serves the model `m` from `replica`."""
    async with running_gateway(model_changes("m", [replica.url])) as gateway:
        yield gateway

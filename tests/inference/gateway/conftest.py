"""A gateway on a real socket in front of one scripted replica (tests/fakes)."""

from collections.abc import AsyncIterator

import pytest

from tests.fakes.gateway import GatewayUnderTest, model_changes, running_gateway
from tests.fakes.replica import ScriptedReplica


@pytest.fixture
async def replica() -> AsyncIterator[ScriptedReplica]:
    async with ScriptedReplica() as replica:
        yield replica


@pytest.fixture
async def gateway(replica: ScriptedReplica) -> AsyncIterator[GatewayUnderTest]:
    """Serves the model `m` from `replica`."""
    async with running_gateway(model_changes("m", [replica.url])) as gateway:
        yield gateway

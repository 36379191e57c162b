"""A scripted replica, and a gateway on a real socket that serves the model `m` from it. Import both where they are used."""

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
    async with running_gateway(model_changes("m", [replica.url])) as gateway:
        yield gateway

"""A gateway's requests go to replicas of its own zone first, through the feed, the ask and the router."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.fakes.gateway import GatewayUnderTest, basic, running_gateway
from tests.fakes.replica import ScriptedReplica, refused
from tests.inference.gateway.control_rows import model_row, replica_row


@contextlib.asynccontextmanager
async def zones(*of_replicas: str, gateway_in: str) -> AsyncIterator[tuple[GatewayUnderTest, dict[str, ScriptedReplica]]]:
    """One replica for each zone that is named: `r0`, `r1`, ..."""
    async with contextlib.AsyncExitStack() as stack:
        replicas = {f"r{n}": await stack.enter_async_context(ScriptedReplica()) for n in range(len(of_replicas))}
        rows = [
            replica_row(101 + n, f"r{n}", url=replicas[f"r{n}"].url, zone=zone, upstream_model="upstream-name", max_in_flight=8)
            for n, zone in enumerate(of_replicas)
        ]
        gateway = await stack.enter_async_context(running_gateway([model_row(100, max_in_flight=8), *rows]))
        gateway.parts.zone = gateway_in
        yield gateway, replicas


async def served(gateway: GatewayUnderTest, count: int) -> Counter[str]:
    for number in range(count):
        answer = await gateway.post(body=basic(messages=[{"role": "user", "content": str(number)}]))
        assert answer.status_code == 200
    return Counter(record.replica for record in gateway.journal.closed)


@pytest.mark.parametrize(("zone", "its"), [("east", {"r0", "r2"}), ("west", {"r1"})])
async def test_requests_stay_in_the_zone_of_their_gateway(zone: str, its: set[str]) -> None:
    async with zones("east", "west", "east", gateway_in=zone) as (gateway, _):
        assert (await served(gateway, 20)).keys() == its


@pytest.mark.parametrize("zone", ["", "north"])
async def test_a_gateway_without_a_zone_or_without_a_replica_in_it_uses_all(zone: str) -> None:
    async with zones("east", "west", gateway_in=zone) as (gateway, _):
        assert (await served(gateway, 20)).keys() == {"r0", "r1"}


async def test_a_zone_whose_replicas_fail_is_helped_by_another() -> None:
    async with zones("east", "west", gateway_in="east") as (gateway, replicas):
        replicas["r0"]._default = lambda _seen: refused(500, "failed")
        assert (await served(gateway, 10)).keys() == {"r1"}


async def test_a_replica_that_drains_leaves_its_zone_to_others() -> None:
    async with zones("east", "west", gateway_in="east") as (gateway, replicas):
        assert (await served(gateway, 3)).keys() == {"r0"}
        gateway.state.apply([replica_row(200, "r0", url=replicas["r0"].url, zone="east", state="draining")])
        assert "r1" in await served(gateway, 3)

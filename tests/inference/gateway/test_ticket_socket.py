"""The playground's way in: a challenge, a ticket for it, one request. Over a real socket."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from inference.gateway.parts import GatewayTunables
from inference.gateway.state import Change
from tenants.services.tickets import PLAYGROUND_KEY_ID, Ticket, new_nonce, write_ticket
from tests.fakes.gateway import ACME, GLOBEX, GatewayUnderTest, model_changes, running_gateway, until
from tests.fakes.replica import ScriptedReplica, chat_events, streamed
from tests.inference.gateway.test_websocket import ASK, answer, closed_with, receive, send, text_of

SECRET = "the installation's secret"
ORIGIN = "http://site.example"


@pytest.fixture
async def gateway(replica: ScriptedReplica) -> AsyncIterator[GatewayUnderTest]:
    member = Change(id=50, kind="member", key=f"{ACME}/7", payload={"role": "developer"})
    async with running_gateway([member, *model_changes("m", [replica.url])], tunables=GatewayTunables(drain_s=0.2)) as found:
        found.parts.ticket_secret = SECRET
        yield found


def page(gateway: GatewayUnderTest, origin: str | None = ORIGIN) -> Any:
    headers = {} if origin is None else {"origin": origin}
    return connect(f"ws://127.0.0.1:{gateway.port}/v1/generate", additional_headers=headers, compression=None, proxy=None)


async def nonce_of(socket: ClientConnection) -> str:
    await send(socket, {"type": "challenge"})
    said = await receive(socket)
    assert said["type"] == "challenge"
    return str(said["nonce"])


def ticket(nonce: str, *, secret: str = SECRET, **changes: Any) -> str:
    fields: dict[str, Any] = {"tenant_id": ACME, "member_id": 7, "nonce": nonce, "origin": ORIGIN}
    return write_ticket(Ticket(**{**fields, "expires_s": time.time() + 60, **changes}), secret=secret)


async def test_a_ticket_lets_one_request_in_and_the_record_names_the_member(gateway: GatewayUnderTest) -> None:
    async with page(gateway) as socket:
        await send(socket, {"ticket": ticket(await nonce_of(socket)), "request": ASK})
        accepted = await receive(socket)
        assert text_of(await answer(socket)) == "Hello!"
    record = await gateway.only_record()
    assert (record.tenant_id, record.member_id, record.key_id, record.end_state) == (ACME, 7, PLAYGROUND_KEY_ID, "done")
    assert accepted == {"type": "accepted", "request_id": record.request_id}


async def test_a_ticket_is_good_once_on_its_connection_and_on_no_other(gateway: GatewayUnderTest) -> None:
    async with page(gateway) as first, page(gateway) as second:
        text = ticket(await nonce_of(first))
        await nonce_of(second)
        await send(second, {"ticket": text, "request": ASK})
        assert (await receive(second))["error"]["code"] == "invalid_ticket"
        assert await closed_with(second) == 4401
        await send(first, {"ticket": text, "request": ASK})
        assert (await receive(first))["type"] == "accepted"
        await answer(first)
        await send(first, {"ticket": text, "request": ASK})
        assert (await receive(first))["error"]["code"] == "invalid_ticket"
        assert await closed_with(first) == 4401
    assert len(gateway.journal.closed) == 1


async def test_a_ticket_opens_nothing_for_the_next_request(gateway: GatewayUnderTest) -> None:
    async with page(gateway) as socket:
        await send(socket, {"ticket": ticket(await nonce_of(socket)), "request": ASK})
        await receive(socket)
        await answer(socket)
        await send(socket, {"request": ASK})
        assert "error" in await receive(socket)
        assert await closed_with(socket) == 4401


@pytest.mark.parametrize(("payload", "code"), [(None, 4401), ({"role": "viewer"}, 4403)])
async def test_n5_the_ticket_of_who_was_removed_or_demoted_since_is_refused(
    gateway: GatewayUnderTest, payload: dict[str, Any] | None, code: int
) -> None:
    async with page(gateway) as socket:
        text = ticket(await nonce_of(socket))
        gateway.state.apply([Change(id=900, kind="member", key=f"{ACME}/7", payload=payload)])
        await send(socket, {"ticket": text, "request": ASK})
        assert "error" in await receive(socket)
        assert await closed_with(socket) == code
    assert not gateway.journal.opened


@pytest.mark.parametrize(
    "spoilt",
    [
        {"expires_s": time.time() - 1},
        {"origin": "http://evil.example"},
        {"secret": "another"},
        {"nonce": new_nonce()},
        {"tenant_id": GLOBEX},  # a tenant this gateway does not know
    ],
)
async def test_a_spoilt_ticket_is_refused(gateway: GatewayUnderTest, spoilt: dict[str, Any]) -> None:
    async with page(gateway) as socket:
        nonce = await nonce_of(socket)
        await send(socket, {"ticket": ticket(spoilt.pop("nonce", nonce), **spoilt), "request": ASK})
        assert "error" in await receive(socket)
        assert await closed_with(socket) == 4401
    assert not gateway.journal.opened


@pytest.mark.parametrize("origin", [None, "http://evil.example"])
async def test_the_browsers_origin_must_be_that_of_the_page(gateway: GatewayUnderTest, origin: str | None) -> None:
    async with page(gateway, origin) as socket:
        await send(socket, {"ticket": ticket(await nonce_of(socket)), "request": ASK})
        assert "origin" in (await receive(socket))["error"]["message"]
        assert await closed_with(socket) == 4401


@pytest.mark.parametrize("text", [7, {}, "", "a.b", None])
async def test_what_is_no_ticket_is_refused(gateway: GatewayUnderTest, text: Any) -> None:
    async with page(gateway) as socket:
        await nonce_of(socket)
        await send(socket, {"ticket": text, "request": ASK})
        assert "error" in await receive(socket)
        assert await closed_with(socket) == 4401


async def test_without_a_secret_no_ticket_is_taken(gateway: GatewayUnderTest) -> None:
    gateway.parts.ticket_secret = ""
    async with page(gateway) as socket:
        await send(socket, {"ticket": ticket(await nonce_of(socket), secret=""), "request": ASK})
        assert (await receive(socket))["error"]["code"] == "invalid_ticket"


async def test_stop_reaches_the_engine(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    never = asyncio.Event()
    events = chat_events(["Hel", "lo"])
    replica.script(streamed([*events[:2], never], after=()))
    async with page(gateway) as socket:
        await send(socket, {"ticket": ticket(await nonce_of(socket)), "request": ASK})
        await receive(socket)
        await receive(socket)
        await send(socket, {"type": "cancel"})
        await asyncio.wait_for(replica.requests[0].peer_closed.wait(), 2.0)
        await until(lambda: gateway.in_flight() == 0)
    assert (await gateway.only_record()).end_state.startswith("client_gone")

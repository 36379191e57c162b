"""A gateway on a real socket, for tests: the real edge and dispatcher, a journal in memory, replicas as the test says."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import httpx
import msgspec

from billing.services.ledger import UsageDraft
from headway.clock import Clock, SystemClock
from inference.dispatch.dispatcher import Dispatcher
from inference.dispatch.host import BrainHost, HostTunables
from inference.gateway.edge import EdgeTunables
from inference.gateway.listening import bind
from inference.gateway.metrics import Metrics
from inference.gateway.parts import GatewayParts, GatewayTunables
from inference.gateway.prompt_size import PromptSizer, TokeniserTunables
from inference.gateway.receipts import Receipts
from inference.gateway.server import build_server
from inference.gateway.state import Change, ControlState
from inference.gateway.upstream import UpstreamPool, UpstreamTunables
from inference.policy.brain_tunables import BrainTunables
from inference.tokenising.counter import PromptCounter
from tenants.services.key_format import ParsedKey, new_key

ACME = "11111111-1111-4111-8111-111111111111"
GLOBEX = "22222222-2222-4222-8222-222222222222"
CACHE_SALT = "acme-cache-salt"


@dataclass
class TwinJournal:
    """Records in memory, and the order in which things happened (`events`, shared with a test's own marks)."""

    is_healthy: bool = True
    opened: dict[str, UsageDraft] = field(default_factory=dict)
    closed: list[UsageDraft] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    fails_with: Exception | None = None
    num_refused: int = 0
    num_corrupt: int = 0

    @property
    def num_open(self) -> int:
        return len(self.opened) - len(self.closed)

    def open(self, draft: UsageDraft) -> None:
        if self.fails_with is not None:
            raise self.fails_with
        assert draft.request_id not in self.opened, "opened twice"
        self.opened[draft.request_id] = draft

    def close(self, draft: UsageDraft) -> None:
        assert draft.request_id in self.opened, "closed without being opened"
        assert all(draft.request_id != other.request_id for other in self.closed), "closed twice"
        self.closed.append(draft)
        self.events.append("closed")

    def depth(self) -> int:
        return len(self.closed)


@dataclass
class GatewayUnderTest:
    parts: GatewayParts
    state: ControlState
    dispatcher: Dispatcher
    host: BrainHost
    journal: TwinJournal
    port: int
    key: str
    http: httpx.AsyncClient
    stop: Callable[[], Coroutine[Any, Any, None]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def auth(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    async def post(self, path: str = "/v1/chat/completions", body: Any = None, **kwargs: Any) -> httpx.Response:
        """`basic` unless a body is given; bytes are sent as they are."""
        body = basic() if body is None else body
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"content-type": "application/json", **self.auth, **kwargs.pop("headers", {})}
        return await self.http.post(path, content=content, headers=headers, **kwargs)

    async def only_record(self, timeout_s: float = 5.0) -> UsageDraft:
        """The one record, once it is closed."""
        await until(lambda: len(self.journal.closed) > 0, timeout_s)
        assert len(self.journal.closed) == len(self.journal.opened) == 1
        return self.journal.closed[0]

    def in_flight(self) -> int:
        return self.host.snapshot().in_flight

    def struck(self) -> set[str]:
        """Replicas of `m` that were blamed for a failure, and have not worn it off."""
        records = self.host.brain.routers()["m"].health_records()
        return {name for name, record in records.items() if record.strikes}

    def queued(self) -> int:
        return self.host.snapshot().queued


class KnownTokenisers:
    def __init__(self, counters: Mapping[str, PromptCounter]) -> None:
        self._counters = counters

    async def counter(self, digest: str) -> PromptCounter | None:
        return self._counters.get(digest)


def basic(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **more}


async def until(holds: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait until something holds; fails after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110  whatever it is, it tells nobody when it changes
            await asyncio.sleep(0.005)


def key_changes(key: ParsedKey, tenant_id: str = ACME, first_id: int = 1) -> list[Change]:
    tenant = {"name": "acme", "cache_salt": CACHE_SALT, "is_active": True}
    secret = {"tenant_id": tenant_id, "member_id": None, "secret_sha256": key.secret_sha256, "expires_at": None}
    return [
        Change(id=first_id, kind="tenant", key=tenant_id, payload=tenant),
        Change(id=first_id + 1, kind="key", key=key.id, payload=secret),
    ]


def model_changes(
    public_id: str,
    urls: Sequence[str],
    *,
    kind: str = "vllm",
    upstream_model: str = "upstream-name",
    max_in_flight: int = 4,
    max_queued: int = 4,
    first_id: int = 100,
    tokeniser: str = "",
    max_model_len: int = 0,
) -> list[Change]:
    """A model with one ready replica a URL: `rep-0`, `rep-1`, ..."""
    model = {
        "created": 1700000000,
        "pool": f"{public_id}-pool",
        "version": "v1",
        "max_in_flight": max_in_flight,
        "max_queued": max_queued,
    }
    replica = {"model": public_id, "pool": f"{public_id}-pool", "version": "v1", "kind": kind, "upstream_model": upstream_model}
    facts = {"tokeniser": tokeniser, "max_model_len": max_model_len}
    ready = {"state": "ready", "max_in_flight": max_in_flight, "epoch": 1, **facts}
    return [
        Change(id=first_id, kind="model", key=public_id, payload=model),
        *(
            Change(id=first_id + number, kind="replica", key=f"rep-{number - 1}", payload={**replica, **ready, "url": url})
            for number, url in enumerate(urls, start=1)
        ),
    ]


@contextlib.asynccontextmanager
async def running_gateway(
    changes: Sequence[Change],
    *,
    tunables: GatewayTunables | None = None,
    edge: EdgeTunables | None = None,
    upstream: UpstreamTunables | None = None,
    admission: BrainTunables | None = None,
    hosting: HostTunables | None = None,
    clock: Clock | None = None,
    tokenisers: Mapping[str, PromptCounter] = MappingProxyType({}),
    tokenising: TokeniserTunables | None = None,
) -> AsyncIterator[GatewayUnderTest]:
    key, state, journal, clock = new_key(), ControlState(), TwinJournal(), clock or SystemClock()
    state.apply([*key_changes(key), *changes])
    host, dispatcher = BrainHost(state, clock, brain=admission, tunables=hosting), Dispatcher(state)
    dispatcher.link = host.open(dispatcher.deliver)
    metrics = Metrics()
    prompts = PromptSizer(state, KnownTokenisers(tokenisers), metrics, clock, tokenising or TokeniserTunables())
    parts = GatewayParts(
        name="gateway-under-test",
        state=state,
        dispatcher=dispatcher,
        journal=journal,
        upstream=UpstreamPool(upstream or UpstreamTunables()),
        metrics=metrics,
        prompts=prompts,
        clock=clock,
        tunables=tunables or GatewayTunables(drain_s=0.2),
        why_not_ready=lambda: "",
        feed_age_s=lambda: 0.0,
        brain_snapshot=host.snapshot,
        receipts=Receipts(find=lambda _tenant_id, _request_id: None),
        edge=edge or EdgeTunables(queue_comment_s=10.0),  # a status comes first, however slow the machine is
    )
    listening = asyncio.Event()
    bound: socket.socket = bind("127.0.0.1", 0)
    port: int = bound.getsockname()[1]
    server = build_server(parts, listening.set)
    task = asyncio.create_task(server.serve(sockets=[bound]))

    async def stop() -> None:
        server.should_exit = True
        await task

    await asyncio.wait_for(listening.wait(), 10)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
        try:
            yield GatewayUnderTest(parts, state, dispatcher, host, journal, port, key.text, http, stop)
        finally:
            await http.aclose()
            await stop()
            dispatcher.close()
            host.close()
            prompts.close()
            parts.receipts.close()

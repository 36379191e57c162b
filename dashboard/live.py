"""Pages that live: what an organisation's numbers and limits are at the moment, told to whoever watches.

One loop a process, while anybody watches: it looks at the dispatcher once, reads each watched tenant once, and tells its
watchers what has changed. So open pages cost the gateways nothing, however many there are. What is told is a state and not
an event, made anew from the stores: a watcher that missed something lacks nothing once it has the next.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError
from django.utils import timezone

from billing.selectors import first_request_at, spent_picos
from dashboard.limit_page import meter_id
from dashboard.seats import Seat
from dashboard.templatetags.dashboard import ms, percent, thousands, usd_of_picos
from dashboard.today import today_of
from headway.months import month_of
from inference.selectors import brain_seen
from tenants.access import Action
from tenants.selectors import keys_of_tenant, roles_now
from tenants.services.tickets import PLAYGROUND_KEY_ID

log = structlog.get_logger(__name__)

EVERY_S = 1.0
State = dict[str, Any]


class Watcher(Protocol):
    seat: Seat

    async def tell(self, state: State) -> None: ...

    async def put_out(self) -> None: ...


@dataclass(frozen=True)
class Numbers:
    """Of a tenant, from the database."""

    texts: dict[str, str]
    key_ids: frozenset[str]
    has_first_request: bool
    roles: dict[int, str] = field(default_factory=dict)
    """Of its members as they are now, by their ids: whoever is not among them belongs here no longer."""


def read_numbers(tenant: Any) -> Numbers:
    now = timezone.now()
    today = today_of(tenant, now)
    spent = spent_picos(tenant.id, month_of(now, tenant.time_zone).name)
    parts = (("in", today.input_tokens), ("cached", today.cached_tokens), ("out", today.output_tokens))
    texts = {
        "requests": thousands(today.requests),
        "failed": percent(today.errors, today.requests),
        "tokens": thousands(today.input_tokens + today.output_tokens),
        "token_parts": " · ".join(f"{thousands(value)} {name}" for name, value in parts),
        "ttft": ms(today.p95_ttft_ms),
        "spent": usd_of_picos(spent),
    }
    key_ids = frozenset(keys_of_tenant(tenant).filter(revoked_at=None).values_list("id", flat=True))
    has_first_request = first_request_at(tenant.id, without_key=PLAYGROUND_KEY_ID) is not None
    return Numbers(texts, key_ids, has_first_request, roles_now(tenant))


def state_of(seat: Seat, numbers: Numbers, seen: dict[str, Any] | None) -> State:
    """What this person may see of it."""
    state: State = {"has_first_request": numbers.has_first_request, "is_brain_seen": seen is not None}
    if seat.may(Action.VIEW_USAGE):
        state["texts"] = numbers.texts
    if seat.may(Action.VIEW_LIMITS) and seen is not None:
        uses = [use for use in seen["limits"]["in_use"] if _is_of(str(seat.tenant.id), numbers.key_ids, use)]
        state["meters"] = {
            meter_id(use["scope"], use["id"], use["kind"]): {"used": use["used"], "reserved": use["reserved"]} for use in uses
        }
    return state


def _is_of(tenant_id: str, key_ids: frozenset[str], use: dict[str, Any]) -> bool:
    match use["scope"]:
        case "tenant":
            return bool(use["id"] == tenant_id)
        case "key":
            return use["id"] in key_ids
        case "model":
            return str(use["id"]).startswith(f"{tenant_id}/")
    return False


@dataclass
class Watch:
    """`look`: at the dispatcher; `read`: a tenant's numbers. On one event loop."""

    look: Callable[[], Awaitable[dict[str, Any] | None]] = brain_seen
    read: Callable[[Any], Awaitable[Numbers]] = field(default_factory=lambda: database_sync_to_async(read_numbers))
    every_s: float = EVERY_S
    num_looks: int = 0
    _watchers: set[Watcher] = field(default_factory=set)
    _loop: "asyncio.Task[None] | None" = None

    def join(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run())

    def leave(self, watcher: Watcher) -> None:
        """The loop ends by itself when nobody is left."""
        self._watchers.discard(watcher)

    async def _run(self) -> None:
        while self._watchers:
            try:
                await self.tell_all()
            except (DatabaseError, OSError) as error:
                log.warning("live_not_read", reason=type(error).__name__)
            await asyncio.sleep(self.every_s)

    async def tell_all(self) -> None:
        """Once: one look, one reading for each tenant."""
        by_tenant: defaultdict[Any, list[Watcher]] = defaultdict(list)
        for watcher in self._watchers:
            by_tenant[watcher.seat.tenant.id].append(watcher)
        self.num_looks += 1
        seen = await self.look()
        for watchers in by_tenant.values():
            numbers = await self.read(watchers[0].seat.tenant)
            for watcher in watchers:
                role = numbers.roles.get(watcher.seat.user.id)
                if role is None:
                    await watcher.put_out()
                    continue
                if role != watcher.seat.role:
                    watcher.seat = replace(watcher.seat, role=role)
                await watcher.tell(state_of(watcher.seat, numbers, seen))

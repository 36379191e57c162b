"""How a gateway process gets at the brain: it hosts it (and lets others in), or is attached to the one that does."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import structlog

from billing.services.ledger import UsageDraft
from inference.dispatch.address import Address
from inference.dispatch.dispatcher import Dispatcher
from inference.dispatch.host import BrainHost
from inference.dispatch.leadership import Leadership
from inference.dispatch.lost_records import LostRecords
from inference.dispatch.process import serve
from inference.dispatch.remote import RemoteLink
from inference.dispatch.server import DispatcherServer
from inference.policy.brain import BrainSnapshot

log = structlog.get_logger(__name__)


class HostedBrain:
    """The brain of this process, which has the lock and the lease."""

    def __init__(
        self,
        host: BrainHost,
        dispatcher: Dispatcher,
        server: DispatcherServer,
        leadership: Leadership,
        records: LostRecords,
        *,
        gateway: str,
        path: Address,
        tcp: Address | None,
    ) -> None:
        self._host, self._dispatcher, self._server, self._leadership = host, dispatcher, server, leadership
        self._gateway, self._path, self._tcp, self._records = gateway, path, tcp, records
        self._on_lost: Callable[[], None] = lambda: None
        dispatcher.link = host.open(dispatcher.deliver)

    async def open(self, on_lost: Callable[[], None]) -> None:
        """`on_lost`: this process must not decide any more; all that it is asked is refused."""
        loop = asyncio.get_running_loop()
        self._on_lost = on_lost

        def lost() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._lost)

        self._leadership.on_lost = lost
        if self._leadership.epoch != self._server.epoch:
            self._lost()
            return
        self._records.start()
        if self._server.claim is not None:
            self._server.claim.came(self._gateway, self._host.now_s())
            self._server.claim.mandate.is_own(self._gateway)
        await serve(self._server, self._leadership, path=self._path, tcp=self._tcp, without=self._gateway)

    async def close(self) -> None:
        self._server.close()
        await asyncio.to_thread(self._records.stop)
        await asyncio.to_thread(self._leadership.give_back)
        self._leadership.stop(0.0)

    def why_not_ready(self) -> str:
        return ""

    def acknowledge(self, drafts: Iterable[UsageDraft]) -> None:
        self._host.acknowledge(drafts, self._gateway)

    def snapshot(self) -> BrainSnapshot | None:
        return self._host.snapshot()

    def _lost(self) -> None:
        log.error("gateway_lost_the_brain", holder=self._leadership.holder)
        self._dispatcher.close()
        self._server.close()
        self._on_lost()


class AttachedBrain:
    """In another process."""

    def __init__(self, link: RemoteLink, dispatcher: Dispatcher, leadership: Leadership | None = None) -> None:
        """`leadership`: what tells where the dispatcher is, if it may be on another machine."""
        self._link, self._leadership = link, leadership
        self._loop: asyncio.AbstractEventLoop | None = None
        dispatcher.link = link

    async def open(self, on_lost: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._link.start()

    async def close(self) -> None:
        await self._link.close()
        if self._leadership is not None:
            self._leadership.stop(0.0)

    def why_not_ready(self) -> str:
        """Until the first dispatcher was found; a takeover later is no reason to send clients elsewhere."""
        return "" if self._link.num_attached else "no dispatcher was found yet"

    def acknowledge(self, drafts: Iterable[UsageDraft]) -> None:
        """From the drainer's thread."""
        ids = [draft.request_id for draft in drafts]
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._link.acknowledged, ids)

    def snapshot(self) -> BrainSnapshot | None:
        return None

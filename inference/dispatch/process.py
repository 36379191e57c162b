"""A dispatcher process: it stands by until it may lead, then decides until it is told to end, or has lost the lease."""

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from inference.dispatch.address import Address
from inference.dispatch.host import BrainHost
from inference.dispatch.leadership import Leadership
from inference.dispatch.lost_records import RecordKeeper
from inference.dispatch.server import DispatcherServer, ServerTunables
from inference.dispatch.visitor import end_of, members_at_end_of

log = structlog.get_logger(__name__)

# Between looks: at a lock whose holder is just going, and at a machine that does not answer.
_SOON_S = 0.005
_PAUSE_S = 0.05
_ELSEWHERE_PAUSE_S = 0.2
ORPHAN_LOOK_S = 0.25
CANDIDACY_S = 10.0


class DispatcherProcess:
    def __init__(
        self,
        leadership: Leadership,
        make_host: Callable[[], BrainHost],
        *,
        name: str,
        local: Address,
        tcp: Address | None = None,
        secret: str = "",
        records: RecordKeeper | None = None,
        tunables: ServerTunables | None = None,
    ) -> None:
        """`local`: the Unix socket of whoever leads on this machine. `tcp`: where others are listened to."""
        assert local.path is not None
        self.server: DispatcherServer | None = None
        self._leadership, self._make_host, self._name = leadership, make_host, name
        self._local, self._path, self._tcp, self._secret, self._tunables = local, local.path, tcp, secret, tunables
        self._records = records
        self._stop = asyncio.Event()
        self.exit_code = 0

    def stop(self) -> None:
        self._stop.set()

    def orphaned(self, patience_s: float) -> None:
        """Who started it has gone: end as soon as no gateway is attached, and in any case after `patience_s`."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + patience_s

        def look() -> None:
            if self.server is None or self.server.is_idle() or loop.time() > give_up_s:
                self.stop()
            else:
                loop.call_later(ORPHAN_LOOK_S, look)

        look()

    async def run(self) -> None:
        """Raises OSError when it cannot listen."""
        leading = asyncio.create_task(self._stand_by())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if leading.done() and not self._stop.is_set():
                await self._lead(leading.result())
        finally:
            for task in (leading, stopping):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(self._leadership.give_back)

    async def _stand_by(self) -> int:
        """Until this one leads; its epoch."""
        log.info("dispatcher_stands_by", holder=self._leadership.holder)
        lock = self._leadership.lock
        gone: list[list[str]] = []
        while True:
            if not lock.take():
                was_there = await end_of(self._local)
                await asyncio.sleep(_SOON_S if was_there else _PAUSE_S)
                continue
            epoch = await asyncio.to_thread(self._leadership.take, gone=gone)
            if epoch is not None:
                return epoch
            elsewhere = self._leadership.elsewhere()
            if elsewhere is not None:
                own = str(self._leadership.address) if self._tcp is not None else ""
                gone = await members_at_end_of(elsewhere, own_address=own, secret=self._secret) or gone
            await asyncio.sleep(_ELSEWHERE_PAUSE_S)

    async def _lead(self, epoch: int) -> None:
        loop = asyncio.get_running_loop()
        server = self.server = DispatcherServer(
            self._make_host(),
            epoch=epoch,
            name=self._leadership.holder,
            tunables=self._tunables,
            secret=self._secret,
            records=self._records,
            claim=self._leadership.claim,
            on_newer_epoch=lambda newer: self._lost(),
            on_unfit=self._lost,
        )
        self._leadership.on_lost = lambda: _hop(loop, self._lost)
        if self._leadership.epoch != epoch:
            self._lost()  # before we could listen
        try:
            await serve(server, self._leadership, path=self._local, tcp=self._tcp)
            loop.call_later(CANDIDACY_S, self._give_up, server)
            await self._stop.wait()
        finally:
            server.close()

    def _give_up(self, server: DispatcherServer) -> None:
        """The row is out of reach and most gateways have not come: they may be with another one, who is to be found."""
        if server.claim is not None and not server.claim.has_row and server.host.is_holding:
            self._lost()

    def _lost(self) -> None:
        """Decide nothing from this turn of the loop on; whoever supervises us starts us again, as a standby."""
        log.error("dispatcher_steps_down", holder=self._leadership.holder)
        self.exit_code = 1
        if self.server is not None:
            self.server.close()
        self._stop.set()


async def serve(
    server: DispatcherServer, leadership: Leadership, *, path: Address, tcp: Address | None, without: str = ""
) -> None:
    """Listen, and grant once the gateways that live (but for `without`) are back. Raises OSError, ConfigurationError."""
    known = await asyncio.to_thread(leadership.known_gateways)
    server.begin({"(unknown)"} if known is None else known - {without})
    if tcp is not None:
        await server.listen_tcp(tcp.host, tcp.port, tcp.context())
    assert path.path is not None
    await server.listen_unix(path.path)


def _hop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(call)

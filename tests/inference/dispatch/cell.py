"""A dispatcher on a Unix socket and gateways that are attached to it, in one process."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.certificates import Certificates
from headway.clock import SystemClock
from inference.dispatch.address import Address
from inference.dispatch.dispatcher import Dispatcher
from inference.dispatch.host import BrainHost, HostTunables
from inference.dispatch.mandate import Claim
from inference.dispatch.remote import RemoteLink, RemoteTunables
from inference.dispatch.server import DispatcherServer, ServerTunables
from inference.gateway.state import Change, ControlState
from inference.policy.decisions import Ask
from tests.fakes.gateway import ACME, model_changes

SECRET = "a secret of the cell"


def terms(tenant: str = ACME, /, **limits: int) -> Change:
    rows = [{"scope": "tenant", "id": tenant, "kind": kind, "value": value} for kind, value in limits.items()]
    payload = {
        "plan": "p",
        "weight": 1.0,
        "tier_ceiling": "interactive",
        "time_zone": "UTC",
        "default_max_tokens": None,
        "limits": rows,
    }
    return Change(id=900, kind="terms", key=tenant, payload=payload)


async def until(holds: Callable[[], object], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110  nobody tells when it changes
            await asyncio.sleep(0.002)


class Gateway:
    def __init__(self, name: str, state: ControlState, locate: Callable[[], Address | None], **tunables: Any) -> None:
        self.dispatcher = Dispatcher(state)
        self.link = RemoteLink(name, self.dispatcher, locate, SystemClock(), tunables=RemoteTunables(**tunables), secret=SECRET)
        self.dispatcher.link = self.link

    def die(self) -> None:
        """As the kernel would see it: the socket is closed, nothing more is said."""
        assert self.link._task is not None
        self.link._task.cancel()
        if self.link._connection is not None:
            self.link._connection.abandon()


class Cell:
    """Dispatchers come and go at `address`; all see the same control state."""

    def __init__(self, folder: Path, *changes: Change, slots: int = 2, replicas: int = 1, max_queued: int = 100) -> None:
        self.state = ControlState()
        urls = [f"http://replica-{number}" for number in range(replicas)]
        self.state.apply([*model_changes("m", urls, max_in_flight=slots, max_queued=max_queued), *changes])
        self.address = Address(path=folder / "d.sock")
        self.servers: list[DispatcherServer] = []
        self.gateways: list[Gateway] = []

    async def serve(
        self,
        epoch: int = 1,
        *,
        known: tuple[str, ...] = (),
        tcp: bool = False,
        certificates: Certificates | None = None,
        claim: Claim | None = None,
        **tunables: Any,
    ) -> None:
        """`certificates`: over TCP, encrypted."""
        host = BrainHost(self.state, SystemClock(), tunables=HostTunables(positions_s=0.02))
        server = DispatcherServer(
            host, epoch=epoch, name=f"d{epoch}", tunables=ServerTunables(**tunables), secret=SECRET, claim=claim
        )
        server.begin(known)
        if tcp:
            self.address = Address(host="127.0.0.1", port=await server.listen_tcp("127.0.0.1", 0))
        elif certificates is not None:
            port = await server.listen_tcp("127.0.0.1", 0, certificates.dispatcher_context())
            self.address = Address(host="127.0.0.1", port=port, is_tls=True, tls=certificates.to_dispatcher_tls().get)
        else:
            assert self.address.path is not None
            await server.listen_unix(self.address.path)
        self.servers.append(server)

    def kill(self) -> None:
        """What is not written yet is lost, as with SIGKILL."""
        server = self.server
        for connection in list(server._connections):
            connection._unsaid.clear()
            assert connection._transport is not None
            connection._transport.abort()
        server.host.close()
        server.close()

    async def gateway(self, name: str, **options: Any) -> Gateway:
        gateway = Gateway(name, self.state, lambda: self.address, **options)
        self.gateways.append(gateway)
        gateway.link.start()
        await until(lambda: gateway.link.is_open)
        return gateway

    def ask(self, request_id: str, tenant: str = ACME, **more: Any) -> Ask:
        given = {"prompt_tokens": 10, "max_tokens": 20, **more}
        return Ask(id=request_id, model="m", tenant=tenant, key="k1", **given)

    @property
    def server(self) -> DispatcherServer:
        return self.servers[-1]

    @property
    def host(self) -> BrainHost:
        return self.server.host

    def counters(self) -> dict[str, Any]:
        """What must be the same after a takeover."""
        self.host.brain.check_invariants(self.host.now_s())
        seen = self.server.observe()
        counted = {name: seen[name] for name in ("in_flight", "queued", "away", "leaked_slots", "overcommitted")}
        limits = {name: value for name, value in seen["limits"].items() if name not in {"in_use", "overruns"}}
        uses = {use["kind"]: (use["used"], use["reserved"]) for use in seen["limits"]["in_use"]}
        return counted | {f"limits.{name}": value for name, value in limits.items()} | uses

    async def close(self) -> None:
        for gateway in self.gateways:
            await gateway.link.close()
        for server in self.servers:
            server.close()

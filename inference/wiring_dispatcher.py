"""The composition root of whatever decides or asks for decisions: dispatcher processes, and the gateway's way to the brain."""

import asyncio
import gc
import secrets
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import structlog
import uvloop
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection
from prometheus_client import start_http_server

from headway import env
from headway.certificates import Certificates
from headway.clock import Clock, SystemClock
from headway.errors import ConfigurationError
from inference.dispatch.address import Address, Tls, parse_address
from inference.dispatch.brain_lock import BrainLock
from inference.dispatch.dispatcher import Dispatcher, brain_tunables_from_env
from inference.dispatch.doors import AttachedBrain, HostedBrain
from inference.dispatch.host import BrainHost, HostTunables
from inference.dispatch.leadership import Leadership, LeaseTunables
from inference.dispatch.lost_records import LostRecords
from inference.dispatch.process import DispatcherProcess
from inference.dispatch.remote import RemoteLink, RemoteTunables
from inference.dispatch.server import DispatcherServer, ServerTunables
from inference.dispatch.visitor import look_at
from inference.dispatch.wake_desk import WakeDesk
from inference.gateway.drain import DrainTunables, LedgerWriter, commit_durably
from inference.gateway.feed import Feed, FeedTunables
from inference.gateway.metrics import Metrics
from inference.gateway.state import ControlState
from inference.gateway.worker_link import WorkerLink
from inference.services.feed_progress import DISPATCHER_PREFIX
from inference.services.lease import current_lease

log = structlog.get_logger(__name__)

SNAPSHOT_NAME = "dispatcher.snapshot"
MIN_SECRET_CHARS = 16
METRICS_EVERY_S = 1.0
_LEAD_LOOK_S = 0.1
LOST_RECORDS_WAIT_S = 10.0
"""Two looks for journals without an owner (HEADWAY_JOURNAL_ADOPT_INTERVAL_S), so that the journal usually comes first."""


@dataclass(frozen=True, slots=True)
class DispatcherSettings:
    listen: Address | None = None
    """Where other machines' gateways are listened to; None: only this machine's."""
    address: Address | None = None
    """As others reach it."""
    secret: str = ""

    @classmethod
    def from_env(cls) -> "DispatcherSettings":
        """Raises ConfigurationError."""
        listen = env.text("HEADWAY_DISPATCHER_LISTEN", "")
        address = env.text("HEADWAY_DISPATCHER_ADDRESS", "")
        secret = env.secret("HEADWAY_DISPATCHER_SECRET", "")
        if listen and not secret:
            raise ConfigurationError("HEADWAY_DISPATCHER_LISTEN needs HEADWAY_DISPATCHER_SECRET: the same on all machines")
        if secret and len(secret) < MIN_SECRET_CHARS:
            raise ConfigurationError(f"HEADWAY_DISPATCHER_SECRET must have at least {MIN_SECRET_CHARS} characters")
        at = parse_address(listen, tls=_certificates().dispatcher_context) if listen else None
        told = parse_address(address) if address else at
        if at is not None and told is not None and told.path is None:
            told = replace(told, is_tls=at.is_tls)  # one is as the other
        return cls(listen=at, address=told, secret=secret)


def _certificates() -> Certificates:
    return Certificates(settings.HOME.tls)


@cache
def to_dispatcher_tls() -> Tls:
    """Whom this process believes on other machines."""
    return _certificates().to_dispatcher_tls().get


def local_address() -> Address:
    """Of whoever leads on this machine."""
    return Address(path=settings.HOME.run / "dispatcher.sock")


def make_leadership(clock: Clock, chosen: DispatcherSettings, name: str) -> Leadership:
    """Raises ConfigurationError; also where the certificates are missing that it would need to lead."""
    if chosen.listen is not None:
        chosen.listen.context()
    return Leadership(
        machine=f"{settings.NODE_NAME}/{settings.HOME.installation_id}",
        name=name,
        address=chosen.address or local_address(),
        lock=BrainLock(settings.HOME.run / "dispatcher.lock"),
        seen_path=settings.HOME.run / "dispatcher.seen",
        clock=clock,
        tunables=LeaseTunables.from_env(),
        tls=to_dispatcher_tls(),
    )


# The gateway's side


def attach(state: ControlState, clock: Clock, gateway: str) -> tuple[Dispatcher, AttachedBrain]:
    """To the dispatcher that holds the lease, wherever it is."""
    chosen, dispatcher, local = DispatcherSettings.from_env(), Dispatcher(state), local_address()
    leadership: Leadership | None = None

    def locate() -> Address:
        return (leadership.elsewhere() if leadership is not None else None) or local

    if chosen.secret:  # it may be on another machine, and move there
        leadership = make_leadership(clock, chosen, gateway)
        leadership.start()
    link = RemoteLink(
        gateway,
        dispatcher,
        locate,
        clock,
        tunables=RemoteTunables.from_env(),
        secret=chosen.secret,
        newest_epoch=leadership.newest_epoch if leadership is not None else lambda: 0,
        tls=to_dispatcher_tls(),
    )
    return dispatcher, AttachedBrain(link, dispatcher, leadership)


def host_or_attach(
    state: ControlState, clock: Clock, gateway: str, desk: WakeDesk
) -> tuple[Dispatcher, HostedBrain | AttachedBrain]:
    """Of a gateway that is one process: it hosts the brain, unless another one of the installation does.

    Blocks for up to two seconds. Raises ConfigurationError when it may neither decide nor reach who does.
    """
    chosen = DispatcherSettings.from_env()
    leadership = make_leadership(clock, chosen, gateway)
    if not leadership.lock.take():
        log.info("gateway_attaches", reason="another process of this installation has the brain")
        return attach(state, clock, gateway)
    leadership.start()
    epoch = _try_to_lead(leadership)
    if epoch is None:
        leadership.stop()
        leadership.lock.give_back()
        elsewhere = leadership.elsewhere()
        if elsewhere is None or elsewhere.path is not None or not chosen.secret:
            raise ConfigurationError(
                f"another machine has the brain of this installation ({elsewhere or 'unknown'}): set "
                "HEADWAY_DISPATCHER_SECRET on both and HEADWAY_DISPATCHER_LISTEN there, or stop it"
            )
        log.info("gateway_attaches", reason="another machine has the brain", address=str(elsewhere))
        return attach(state, clock, gateway)
    host, dispatcher, records = _host(state, clock, desk), Dispatcher(state), lost_records()
    server = DispatcherServer(
        host,
        epoch=epoch,
        name=leadership.holder,
        tunables=ServerTunables.from_env(),
        secret=chosen.secret,
        records=records,
        claim=leadership.claim,
        on_unfit=lambda: leadership.on_lost(),
    )
    brain = HostedBrain(host, dispatcher, server, leadership, records, gateway=gateway, path=local_address(), tcp=chosen.listen)
    return dispatcher, brain


def _host(state: ControlState, clock: Clock, desk: WakeDesk) -> BrainHost:
    return BrainHost(state, clock, brain=brain_tunables_from_env(), tunables=HostTunables.from_env(), wake_desk=desk)


def lost_records() -> LostRecords:
    """Of gateways that are lost; not started."""
    writer = LedgerWriter(settings.HOME.journal, commit_durably, DrainTunables().batch_records)
    return LostRecords(writer, wait_s=env.seconds("HEADWAY_LOST_RECORDS_WAIT_S", LOST_RECORDS_WAIT_S))


def _try_to_lead(leadership: Leadership) -> int | None:
    """A row of another machine is watched until it must be stale, if its holder has gone."""
    deadline_s = time.monotonic() + 2.0
    while (epoch := leadership.take()) is None and time.monotonic() < deadline_s:
        time.sleep(_LEAD_LOOK_S)
    return epoch


def look_at_dispatcher(row_address: str) -> dict[str, Any] | None:
    """What the one that leads shows: of this machine, else where the lease row says. None: nobody answers."""
    chosen, seen = DispatcherSettings.from_env(), None
    for address in (local_address(), parse_address(row_address, tls=to_dispatcher_tls()) if row_address else None):
        if address is not None and (address.path is not None or chosen.secret):
            seen = seen or asyncio.run(look_at(address, secret=chosen.secret))
    return seen


def dispatcher_secret() -> str:
    return DispatcherSettings.from_env().secret


def find_dispatcher() -> Address | None:
    """The socket of this machine's, else what the lease row says; None: neither, or the database is away."""
    local = local_address()
    if local.path is not None and local.path.exists():
        return local
    try:
        lease = current_lease()
    except (OperationalError, InterfaceError):
        return None
    finally:
        connection.close()
    if lease is None or not lease.address or lease.address.startswith("unix:"):
        return None
    return parse_address(lease.address, tls=to_dispatcher_tls()) if dispatcher_secret() else None


# The process


def run_dispatcher(*, metrics_port: int, channel_fd: int | None, patience_s: float) -> int:
    """Stand by, lead, end; an exit code. `channel_fd`: the link to a parent, after whose end it may go on for `patience_s`."""
    sys.setswitchinterval(0.0005)
    clock, state, metrics = SystemClock(), ControlState(), Metrics()
    name = f"{settings.NODE_NAME[:30]}-{secrets.token_hex(4)}"
    chosen, desk = DispatcherSettings.from_env(), WakeDesk(name)
    feed = Feed(
        state,
        gateway=f"{DISPATCHER_PREFIX}{name}",
        snapshot_path=settings.HOME.snapshots / SNAPSHOT_NAME,
        tunables=FeedTunables.from_env(),
        clock=clock,
        errand=desk.work,
    )
    leadership = make_leadership(clock, chosen, name)
    if metrics_port:
        try:
            start_http_server(metrics_port, addr=settings.GATEWAY_HOST, registry=metrics.registry)
        except OSError as error:
            raise ConfigurationError(f"cannot serve metrics on port {metrics_port}: {error.strerror}") from error
    records = lost_records()
    process = DispatcherProcess(
        leadership,
        lambda: _host(state, clock, desk),
        name=name,
        local=local_address(),
        tcp=chosen.listen,
        secret=chosen.secret,
        tunables=ServerTunables.from_env(),
        records=records,
    )
    channel = None if channel_fd is None else socket.socket(fileno=channel_fd)
    feed.start()
    feed.wait_ready(5.0)
    leadership.start()
    records.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(process, metrics, channel, patience_s))
    except OSError as error:
        raise ConfigurationError(f"the dispatcher cannot listen: {error.strerror}") from error
    finally:
        records.stop()
        leadership.stop()
        feed.stop()
    return process.exit_code


async def _run(process: DispatcherProcess, metrics: Metrics, channel: socket.socket | None, patience_s: float) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    link = None if channel is None else WorkerLink(channel, metrics.registry)
    if link is not None:
        await link.open(lambda: process.orphaned(patience_s))
    sampling = asyncio.create_task(_sample(process, metrics, link))
    try:
        await process.run()
    finally:
        sampling.cancel()
        if link is not None:
            await link.close()


async def _sample(process: DispatcherProcess, metrics: Metrics, link: WorkerLink | None) -> None:
    while True:
        if process.server is not None:
            metrics.sample_brain(process.server.host.snapshot())
        if link is not None:
            link.push_metrics()
        await asyncio.sleep(METRICS_EVERY_S)

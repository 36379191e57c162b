"""The composition root of the data plane: which objects there are, made from which settings, started in which order."""

import gc
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from django.conf import settings
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from billing.services.ledger import UsageDraft
from headway import env
from headway.certificates import Certificates
from headway.clock import SystemClock
from headway.errors import ConfigurationError
from inference.dispatch.dispatcher import Dispatcher
from inference.dispatch.doors import AttachedBrain, HostedBrain
from inference.dispatch.wake_desk import WakeDesk
from inference.gateway.drain import commit_durably
from inference.gateway.edge import EdgeTunables
from inference.gateway.feed import Feed, FeedTunables
from inference.gateway.journal import Journal, JournalTunables
from inference.gateway.listening import bind, bind_several, raise_file_limit, shown_address
from inference.gateway.metrics import Metrics
from inference.gateway.parts import GatewayParts, GatewayTunables
from inference.gateway.place import Place
from inference.gateway.processes import END_GRACE_S, Parent, ProcessTunables
from inference.gateway.prompt_size import PromptSizer, TokeniserTunables
from inference.gateway.server import BACKLOG, serve
from inference.gateway.shadow import Shadower, ShadowScores, ShadowTunables
from inference.gateway.shadow_budget import ShadowBudget
from inference.gateway.state import ControlState
from inference.gateway.sweeper import ExternalSweeper, external_tunables_from_env
from inference.gateway.tokenisers import TokeniserStore, from_database
from inference.gateway.tracing import NoSpans, Tracer
from inference.gateway.trust import Trust
from inference.gateway.upstream import UpstreamPool, UpstreamTunables
from inference.gateway.worker_link import WorkerLink
from inference.gateway.worker_metrics import SummedMetrics
from inference.wiring_dispatcher import attach, host_or_attach

log = structlog.get_logger(__name__)

# For the first look at the database; a gateway that is not ready then listens all the same, and says so in /readyz.
FIRST_FEED_WAIT_S = 5.0
SNAPSHOT_NAME = "gateway.snapshot"
MAX_NODE_NAME_CHARS = 40
NUM_DISPATCHERS = 2
"""Beside several gateway processes: one that decides, and one that stands by."""
# The loop takes Python's lock anew for each callback, and may wait this long for it while the ledger's thread computes (5 ms
# by default). Tried on 2,000 streams, one run before and after; what it costs per token event was not measured.
THREAD_SWITCH_S = 0.0005


def gateway_name(node: str) -> str:
    """A name no other gateway process has had: `<node>-<pid>-<4 hex>`, at most 64 characters, fit for a folder."""
    tidy = re.sub(r"[^A-Za-z0-9._-]", "_", node)[:MAX_NODE_NAME_CHARS] or "node"
    return f"{tidy}-{os.getpid()}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class GatewayProcess:
    """What has a life of its own in a gateway process."""

    parts: GatewayParts
    dispatcher: Dispatcher
    journal: Journal
    feed: Feed
    tokenisers: TokeniserStore


def run_gateway(*, host: str, port: int, metrics_port: int) -> None:
    """Serve until a signal and its drain are over. Raises ConfigurationError when a port or a folder cannot be had.

    Ports are taken before anything starts.
    """
    bound, metrics = bind(host, port), Metrics()
    if metrics_port:
        _serve_metrics(metrics.registry, host, metrics_port)
    _run(bound, metrics, Place(), link=None, ready_within_s=FIRST_FEED_WAIT_S)


def run_worker(*, place: Place, listening_fd: int, channel_fd: int, ready_within_s: float) -> None:
    """The same as one of several processes: the parent has the ports, and the link to it is `channel_fd`."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # sent to a whole process group, it is for the parent
    bound, metrics = socket.socket(fileno=listening_fd), Metrics()
    link = WorkerLink(socket.socket(fileno=channel_fd), metrics.registry)
    _run(bound, metrics, place, link=link, ready_within_s=ready_within_s)


def run_gateway_processes(*, host: str, port: int, metrics_port: int, processes: int, command: list[str]) -> int:
    """Be the parent of `processes` workers, each started as `command` with `--worker`; returns an exit code."""
    several, metrics, registry = bind_several(host, port, processes), SummedMetrics(), CollectorRegistry()
    for bound in several:
        bound.listen(BACKLOG)
    address = shown_address(several[0])
    registry.register(metrics)
    tunables = ProcessTunables.from_env(drain_s=GatewayTunables.from_env().drain_s)
    has_started = False

    def worker_command(place: int, listening_fd: int, channel_fd: int) -> list[str]:
        ready_s = tunables.ready_s if has_started else FIRST_FEED_WAIT_S
        return [*command, "--worker", f"{place}/{processes}/{listening_fd}/{channel_fd}/{ready_s:g}"]

    def dispatcher_command(channel_fd: int) -> list[str]:
        return [*command[:-1], "dispatcher", "--child", f"{channel_fd}/{tunables.drain_s + END_GRACE_S:g}"]

    def on_listening() -> None:
        nonlocal has_started
        has_started = True
        log.info("gateway_listening", address=address, processes=processes)
        print(f"gateway: listening on http://{address}", file=sys.stderr, flush=True)  # noqa: T201

    parent = Parent(
        listening=several,
        command=worker_command,
        metrics=metrics,
        tunables=tunables,
        on_listening=on_listening,
        companions=[dispatcher_command] * NUM_DISPATCHERS,
    )
    running = Gauge("headway_gateway_processes", "Worker processes that accept requests.", registry=registry)
    restarts = Gauge("headway_gateway_process_restarts", "Worker processes that died and were replaced.", registry=registry)
    running.set_function(lambda: parent.num_running)
    restarts.set_function(lambda: parent.num_restarts)
    if metrics_port:
        _serve_metrics(registry, host, metrics_port)
    return parent.run()


def _run(bound: socket.socket, metrics: Metrics, place: Place, *, link: WorkerLink | None, ready_within_s: float) -> None:
    """The end goes the other way round: requests, journal, feed."""
    raise_file_limit()
    sys.setswitchinterval(THREAD_SWITCH_S)
    gateway = build_gateway(metrics, place, is_worker=link is not None)
    sweeper = ExternalSweeper(external_tunables_from_env(), gateway.parts.clock)
    gateway.tokenisers.start()
    gateway.feed.start()
    sweeper.start()
    try:
        if not gateway.feed.wait_ready(ready_within_s):
            log.warning("gateway_not_ready", reason=gateway.feed.why_not_ready())
        settle_garbage_collector()
        serve(gateway.parts, bound, link)
    finally:
        gateway.dispatcher.close()
        sweeper.stop()
        gateway.journal.stop()
        gateway.feed.stop()
        gateway.tokenisers.stop()
        gateway.parts.prompts.close()
        gateway.parts.receipts.close()
        gateway.parts.tracer.close()
        log.info("gateway_stopped", gateway=gateway.parts.name)


def settle_garbage_collector() -> None:
    """What is there now stays; cycles are rare in what comes, and looking for them among much costs a pause."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def build_gateway(metrics: Metrics, place: Place, *, is_worker: bool = False) -> GatewayProcess:
    """Everything but the sockets, from the settings; the journal's folder is taken, the feed is not started.

    One that is no worker hosts the brain, if nobody else of the installation does.
    """
    clock, state, name = SystemClock(), ControlState(), gateway_name(settings.NODE_NAME)
    desk = WakeDesk(name)  # idle in a process that does not decide
    feed = Feed(
        state,
        gateway=name,
        snapshot_path=settings.HOME.snapshots / SNAPSHOT_NAME,
        tunables=FeedTunables.from_env(),
        clock=clock,
        place=place,
        errand=desk.work,
    )
    dispatcher, brain = attach(state, clock, name) if is_worker else host_or_attach(state, clock, name, desk)

    shadow_tunables, shadow_budget = ShadowTunables.from_env(), ShadowBudget()
    scores = ShadowScores(shadow_tunables.max_scores)
    certificates = Certificates(settings.HOME.tls)
    trust = Trust(certificates.revocations)
    journal = _journal(name, brain, scores.flush, shadow_budget.refill, trust.look)
    tokenisers = TokeniserStore(settings.HOME.tokenisers, from_database)
    state.on_routes_changed(lambda: tokenisers.want(state.tokenisers()))
    parts = GatewayParts(
        name=name,
        state=state,
        dispatcher=dispatcher,
        journal=journal,
        upstream=UpstreamPool(UpstreamTunables.from_env(), node_tls=certificates.client_tls().get),
        metrics=metrics,
        clock=clock,
        tunables=GatewayTunables.from_env(),
        zone=settings.ZONE,
        ticket_secret=settings.SECRET_KEY,
        edge=EdgeTunables.from_env(),
        prompts=PromptSizer(state, tokenisers, metrics, clock, TokeniserTunables.from_env()),
        tracer=_tracer(name),
        why_not_ready=lambda: feed.why_not_ready() or brain.why_not_ready(),
        feed_age_s=feed.age_s,
        brain_snapshot=brain.snapshot,
        brain=brain,
    )
    parts.shadow = Shadower(parts, scores, shadow_budget, shadow_tunables)
    return GatewayProcess(parts=parts, dispatcher=dispatcher, journal=journal, feed=feed, tokenisers=tokenisers)


def _journal(gateway: str, brain: HostedBrain | AttachedBrain, *beside: Callable[[], object]) -> Journal:
    """`beside`: what else the thread that drains it carries to and from the database."""

    def commit(drafts: list[UsageDraft]) -> None:
        commit_durably(drafts)
        brain.acknowledge(drafts)

    def also() -> None:
        for work in beside:
            work()

    return Journal(settings.HOME.journal, gateway, JournalTunables.from_env(), commit=commit, also=also)


def _tracer(gateway: str) -> Tracer:
    endpoint = env.text("HEADWAY_OTLP_ENDPOINT", "")
    if not endpoint:
        return NoSpans()
    from inference.gateway.otel import OtelTracer  # heavy, and off by default

    return OtelTracer.to_endpoint(endpoint, gateway=gateway)


def _serve_metrics(registry: CollectorRegistry, host: str, port: int) -> None:
    """Answer /metrics on a thread of its own."""
    try:
        start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigurationError(f"cannot serve metrics on {host}:{port}: {error.strerror}") from error

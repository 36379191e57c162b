"""The composition root of the data plane: which objects there are, made from which settings, started in which order."""

import os
import re
import secrets
from dataclasses import dataclass

import structlog
from django.conf import settings

from headway import env
from headway.clock import SystemClock
from headway.errors import ConfigurationError
from inference.dispatch.dispatcher import LocalDispatcher, admission_tunables_from_env
from inference.gateway.edge import EdgeTunables
from inference.gateway.feed import Feed, FeedTunables
from inference.gateway.journal import Journal, JournalTunables
from inference.gateway.metrics import Metrics
from inference.gateway.parts import GatewayParts, GatewayTunables
from inference.gateway.server import bind, serve
from inference.gateway.state import ControlState
from inference.gateway.tracing import NoSpans, Tracer
from inference.gateway.upstream import UpstreamPool, UpstreamTunables

log = structlog.get_logger(__name__)

# For the first look at the database; a gateway that is not ready then listens all the same, and says so in /readyz.
FIRST_FEED_WAIT_S = 5.0
SNAPSHOT_NAME = "gateway.snapshot"
MAX_NODE_NAME_CHARS = 40


def gateway_name(node: str) -> str:
    """A name no other gateway process has had: `<node>-<pid>-<4 hex>`, at most 64 characters, fit for a folder."""
    tidy = re.sub(r"[^A-Za-z0-9._-]", "_", node)[:MAX_NODE_NAME_CHARS] or "node"
    return f"{tidy}-{os.getpid()}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class GatewayProcess:
    """What has a life of its own in a gateway process."""

    parts: GatewayParts
    dispatcher: LocalDispatcher
    journal: Journal
    feed: Feed


def run_gateway(*, host: str, port: int, metrics_port: int) -> None:
    """Serve until a signal and its drain are over. Raises ConfigurationError when a port or a folder cannot be had.

    Ports are taken before anything starts. The end goes the other way round: requests, journal, feed.
    """
    bound, metrics = bind(host, port), Metrics()
    if metrics_port:
        _serve_metrics(metrics, host, metrics_port)
    gateway = build_gateway(metrics)
    gateway.feed.start()
    try:
        if not gateway.feed.wait_ready(FIRST_FEED_WAIT_S):
            log.warning("gateway_not_ready", reason=gateway.feed.why_not_ready())
        serve(gateway.parts, bound)
    finally:
        gateway.dispatcher.close()
        gateway.journal.stop()
        gateway.feed.stop()
        gateway.parts.tracer.close()
        log.info("gateway_stopped", gateway=gateway.parts.name)


def build_gateway(metrics: Metrics) -> GatewayProcess:
    """Everything but the sockets, from the settings; the journal's folder is taken, the feed is not started."""
    clock, state, name = SystemClock(), ControlState(), gateway_name(settings.NODE_NAME)
    snapshot = settings.HOME.snapshots / SNAPSHOT_NAME
    feed = Feed(state, gateway=name, snapshot_path=snapshot, tunables=FeedTunables.from_env(), clock=clock)
    dispatcher = LocalDispatcher(state, admission_tunables_from_env(), clock)
    gateway_tunables, upstream_tunables = GatewayTunables.from_env(), UpstreamTunables.from_env()
    journal = Journal(settings.HOME.journal, name, JournalTunables.from_env())
    parts = GatewayParts(
        name=name,
        state=state,
        dispatcher=dispatcher,
        journal=journal,
        upstream=UpstreamPool(upstream_tunables),
        metrics=metrics,
        clock=clock,
        tunables=gateway_tunables,
        edge=EdgeTunables.from_env(),
        tracer=_tracer(name),
        why_not_ready=feed.why_not_ready,
        feed_age_s=feed.age_s,
    )
    return GatewayProcess(parts=parts, dispatcher=dispatcher, journal=journal, feed=feed)


def _tracer(gateway: str) -> Tracer:
    endpoint = env.text("HEADWAY_OTLP_ENDPOINT", "")
    if not endpoint:
        return NoSpans()
    from inference.gateway.otel import OtelTracer  # heavy, and off by default

    return OtelTracer.to_endpoint(endpoint, gateway=gateway)


def _serve_metrics(metrics: Metrics, host: str, port: int) -> None:
    try:
        metrics.serve(host, port)
    except OSError as error:
        raise ConfigurationError(f"cannot serve metrics on {host}:{port}: {error.strerror}") from error

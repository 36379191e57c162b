"""What the gateway's consumers work with, put together by inference/wiring.py (or by a test, from twins)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from billing.services.ledger import UsageDraft
from headway import env
from headway.clock import Clock
from headway.errors import Unavailable
from inference.dispatch.dispatcher import Grant
from inference.gateway.bad_keys import BadKeys, TooManyBadKeys, client_address
from inference.gateway.cors import Cors
from inference.gateway.edge import BodyBudget, EdgeTunables
from inference.gateway.fields import MAX_CHOICES, USUAL_MAX_CHOICES
from inference.gateway.idempotency import IdempotencyKeys, IdempotencyTunables
from inference.gateway.listening import connections_allowed
from inference.gateway.metrics import Metrics
from inference.gateway.prompt_size import PromptSizer
from inference.gateway.receipts import Receipts
from inference.gateway.record import JournalLike
from inference.gateway.state import ModelEntry, Principal, ReplicaEntry
from inference.gateway.tenant_rows import TenantFacts
from inference.gateway.tracing import NoSpans, Tracer
from inference.gateway.upstream import UpstreamPool
from inference.policy.brain import BrainSnapshot
from inference.policy.decisions import Ask, Ending, Queued, RateView, TenantTerms, TokenPrice, Usage
from tenants.access import Action

if TYPE_CHECKING:
    from inference.gateway.exchange import Exchange
    from inference.gateway.requests import GenerationRequest


class StateLike(Protocol):
    def authenticate(self, key_text: str, *, now_s: float) -> Principal: ...
    def member(self, tenant_id: str, member_id: int) -> Principal: ...
    def model(self, public_id: str) -> ModelEntry | None: ...
    def models(self) -> list[ModelEntry]: ...
    def replicas(self, model: str) -> list[ReplicaEntry]: ...
    def operator_id(self) -> str: ...
    def replica(self, replica_id: str) -> ReplicaEntry | None: ...
    def terms(self, tenant_id: str) -> TenantTerms: ...
    def facts(self, tenant_id: str) -> TenantFacts: ...
    def price(self, model: str, tier: str, *, now_s: float) -> tuple[str, TokenPrice]: ...


class DispatcherLike(Protocol):
    async def submit(self, ask: Ask, on_queued: Callable[[Queued], None] | None = None) -> Grant: ...
    async def resubmit_parked(self, grant: Grant, ask: Ask, on_queued: Callable[[Queued], None] | None = None) -> Grant: ...
    def settle(self, request_id: str, ending: Ending, usage: Usage, draft: UsageDraft | None = None) -> None: ...
    def report_progress(self) -> None: ...
    async def rates(self, tenant: str, key: str, model: str) -> RateView | None: ...


class Mirror(Protocol):
    """shadow.Shadower, as requests see it."""

    def consider(self, exchange: "Exchange", request: "GenerationRequest") -> None: ...


class BrainDoor(Protocol):
    """dispatch/doors.py."""

    async def open(self, on_lost: Callable[[], None]) -> None: ...
    async def close(self) -> None: ...


class NoDoor:
    """The brain is there already: tests host it."""

    async def open(self, on_lost: Callable[[], None]) -> None:
        pass

    async def close(self) -> None:
        pass


class NotReady(Unavailable):
    """Retry after a while; the gateway does not know keys and models yet."""

    code = "gateway_not_ready"


class JournalCannotWrite(Unavailable):
    """Retry after a while; usage records cannot be written, so nothing is served."""

    code = "journal_unavailable"


@dataclass(frozen=True)
class GatewayTunables:
    max_body_bytes: int = 16 * 1024 * 1024
    """The largest request body taken; larger ones get 413."""
    default_max_tokens: int = 512
    """max_tokens of a request that names none."""
    max_choices: int = USUAL_MAX_CHOICES
    """How many answers one request may ask for: its prompts times `n`. It takes one slot all the same."""
    max_attempts: int = 3
    """How many replicas one request may fail on before its failure is told; parking does not count."""
    drain_s: float = 25.0
    """After SIGTERM: how long running requests may go on before they are cut."""
    socket_idle_s: float = 60.0
    """How long a WebSocket may stay open without a request: before the first, and between two."""
    max_message_bytes: int = 16 * 1024 * 1024
    """The largest WebSocket message taken."""
    cors_origins: tuple[str, ...] = ()
    """The origins whose pages may call the API from a browser; `*` for any; none: CORS is off."""
    idempotency: IdempotencyTunables = field(default_factory=IdempotencyTunables)
    """Of the Idempotency-Keys that this process remembers."""
    bad_keys_per_minute: int = 60
    """How many requests with a bad key one address may send; further ones get 429 in place of 401."""
    trusted_hops: int = 0
    """How many proxies of ours stand in front: so many entries from its end, `x-forwarded-for` is believed."""

    @classmethod
    def from_env(cls) -> "GatewayTunables":
        default = cls()
        return cls(
            max_body_bytes=env.whole("HEADWAY_MAX_BODY_BYTES", default.max_body_bytes, at_least=1024),
            default_max_tokens=env.whole("HEADWAY_DEFAULT_MAX_TOKENS", default.default_max_tokens, at_least=1),
            max_choices=env.whole("HEADWAY_MAX_CHOICES", default.max_choices, at_least=1, at_most=MAX_CHOICES),
            max_attempts=env.whole("HEADWAY_MAX_ATTEMPTS", default.max_attempts, at_least=1, at_most=100),
            drain_s=env.seconds("HEADWAY_GATEWAY_DRAIN_S", default.drain_s),
            socket_idle_s=env.seconds("HEADWAY_WS_IDLE_S", default.socket_idle_s, at_least=1.0),
            max_message_bytes=env.whole("HEADWAY_WS_MAX_MESSAGE_BYTES", default.max_message_bytes, at_least=1024),
            cors_origins=tuple(env.names("HEADWAY_CORS_ORIGINS", [])),
            idempotency=IdempotencyTunables.from_env(),
            bad_keys_per_minute=env.whole("HEADWAY_BAD_KEYS_PER_MINUTE", default.bad_keys_per_minute, at_least=1),
            trusted_hops=env.whole("HEADWAY_TRUSTED_PROXY_HOPS", default.trusted_hops, at_least=0, at_most=16),
        )


@dataclass
class GatewayParts:
    name: str
    """This gateway process, as it signs its usage records."""
    state: StateLike
    dispatcher: DispatcherLike
    journal: JournalLike
    upstream: UpstreamPool
    metrics: Metrics
    clock: Clock
    tunables: GatewayTunables
    why_not_ready: Callable[[], str]
    """A reason in a few words, or an empty text when requests can be served."""
    feed_age_s: Callable[[], float]
    brain_snapshot: Callable[[], BrainSnapshot | None]
    """Of the brain, where this process hosts it."""
    prompts: PromptSizer
    receipts: Receipts = field(default_factory=Receipts)
    zone: str = ""
    """Of this process: replicas of the same are preferred."""
    ticket_secret: str = field(default="", repr=False)
    """What the site signs its pages' tickets with; empty: none is taken."""
    edge: EdgeTunables = field(default_factory=EdgeTunables)
    tracer: Tracer = field(default_factory=NoSpans)
    running: "set[Exchange]" = field(default_factory=set)
    """The requests between authentication and their end."""
    brain: BrainDoor = field(default_factory=NoDoor)
    """Opened before the first request, closed after the last."""
    shadow: Mirror | None = None
    """Mirrors what candidates are to be held against; None: nothing is mirrored."""
    is_draining: bool = False
    on_draining: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bodies = BodyBudget(self.edge.max_bodies_bytes)
        self.max_connections = min(self.edge.max_connections, connections_allowed())
        self.bad_keys = BadKeys(self.tunables.bad_keys_per_minute)
        self.cors = Cors(self.tunables.cors_origins)
        self.idempotency = IdempotencyKeys(self.tunables.idempotency)

    def check_key(self, principal: Principal, action: Action, scope: dict[str, Any]) -> None:
        """Raises KeyNotAllowed: not with these scopes, or not from there."""
        principal.key.check(action, client_address(scope, self.tunables.trusted_hops) if principal.key.networks else "")

    def count_bad_key(self, scope: dict[str, Any]) -> None:
        """Raises TooManyBadKeys."""
        address = client_address(scope, self.tunables.trusted_hops)
        self.bad_keys.count(address, self.clock.monotonic_s())

    def bad_key_error(self, scope: dict[str, Any]) -> TooManyBadKeys | None:
        """The same as a value."""
        try:
            self.count_bad_key(scope)
        except TooManyBadKeys as error:
            return error
        return None

    def begin_drain(self) -> None:
        """Stop taking new work: idle WebSockets close now, busy ones after their answer."""
        self.is_draining = True
        for callback in list(self.on_draining):
            callback()

    def check_ready(self) -> None:
        """Raises NotReady."""
        reason = self.why_not_ready()
        if reason:
            raise NotReady(f"This gateway is not ready: {reason}. Retry.", retry_after_s=1.0)

    def check_journal(self) -> None:
        """Raises JournalCannotWrite."""
        if not self.journal.is_healthy:
            raise JournalCannotWrite("Usage records cannot be written at the moment. Retry.", retry_after_s=5.0)

    def sample_metrics(self) -> None:
        """Copy what changes by itself into gauges; on the event loop, once a second."""
        self.metrics.sample(
            brain=self.brain_snapshot(),
            journal=self.journal,
            feed_age_s=self.feed_age_s(),
            num_upstream_connections=self.upstream.num_open(),
        )

"""The words of the policies: what the brain is asked, what it is told, what it answers. Plain values, nothing else.

Times ending in `_s` are seconds of any one clock that does not go back. Tokens are the model's own. Money that is
spent is whole pico-dollars (exact), money that was agreed on (a budget) whole micro-dollars. A request is known by its `id`
for its whole life; a second attempt, or one resumed after it was parked, asks again under the same id.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Tier(IntEnum):
    """How urgent; the lower, the sooner. The name in lower case is what clients say."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


PICOS_A_MICRO = 1_000_000


def micros_up(picos: int) -> int:
    """Pico-dollars as people are told them: in micro-dollars, rounded up."""
    return -(-picos // PICOS_A_MICRO)


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Pico-dollars a token, which is micro-dollars per million tokens: what tokens cost is a whole number of them, exactly."""

    input_picos: int = 0
    cached_picos: int = 0
    output_picos: int = 0

    def amount_picos(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
        """What these tokens cost, never rounded. Cached are among the prompt's."""
        return (
            (prompt_tokens - cached_tokens) * self.input_picos
            + cached_tokens * self.cached_picos
            + completion_tokens * self.output_picos
        )

    def at_most_picos(self, *, prompt_tokens: int, completion_tokens: int) -> int:
        """The most they can cost, however much of the prompt is cached."""
        dearest = max(self.input_picos, self.cached_picos)
        return prompt_tokens * dearest + completion_tokens * self.output_picos


NO_MODEL = "\0"
"""What an ask names for a model that nobody knows, whatever its client called it; no model can be named so."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that wants a replica."""

    id: str
    model: str
    tenant: str
    key: str
    tier: Tier = Tier.STANDARD
    prompt_tokens: int = 0
    """Exact for managed versions, an upper bound for external ones: what limits and budgets reserve."""
    max_tokens: int = 0
    """Output tokens it may make, over all choices; what is still left of them when it is resumed."""
    may_shorten: bool = False
    """The client named no max_tokens: the brain may grant fewer rather than refuse."""
    price: TokenPrice = field(default_factory=TokenPrice)
    blocks: tuple[int, ...] = ()
    """Chained hashes of the prompt's token blocks under the tenant's salt, first block first, capped in depth."""
    excluded: frozenset[str] = frozenset()
    """Replicas it has tried."""
    zone: str = ""
    deadline_s: float | None = None
    """When an answer must have begun; None: the pool's queue timeout."""
    can_park: bool = False
    """It may be taken off its replica for a more urgent one and go on later, at the exact token."""
    waits_for_restart: bool = False
    """The engine that had it is gone: where nobody else is left, it waits for that one to be started again."""
    repeat_key: bytes = b""
    """Of a client's Idempotency-Key; empty: it sent none."""
    likely_prompt_tokens: int | None = None
    """Where `prompt_tokens` is a bound: what it most likely is. None: it is exact."""
    conversation: bytes = b""
    """By what a split between versions decides; empty: there is none, or the candidate has failed it."""
    version: str = ""
    """The one it must be served by: pinned, asked for, or what its answer so far is of. Empty: any that serves."""
    may_change_version: bool = False
    """Where nobody of that version is left, the stable one may serve it."""

    @property
    def work_tokens(self) -> int:
        """The prompt's tokens as far as work, waits, fairness and memory are predicted; never what is reserved."""
        likely = self.likely_prompt_tokens
        return self.prompt_tokens if likely is None else likely


class Reason(StrEnum):
    """Why: reaches the client's error, the log, the metric and the receipt unchanged."""

    # Granted: why this replica.
    PREFIX = "prefix"  # it holds the prompt's beginning
    FASTEST = "fastest"  # the lowest predicted time to first token; nobody holds the prompt
    SPILLED = "spilled"  # a holder of the prefix was too busy
    PROBE = "probe"  # an ejected replica gets one request to show that it is well
    LAST_RESORT = "last_resort"  # every replica it may use is ejected
    SQUEEZED = "squeezed"  # it was late: one more than the batch cap, where batch work runs
    # Waiting: what for.
    ALL_BUSY = "all_busy"
    NO_REPLICA = "no_replica"
    WAKING = "waking"  # nothing serves, and a replica is started for those who wait
    CONCURRENCY = "concurrency"  # its tenant's, key's or model's requests at once
    PARKED = "parked"
    # Refused.
    ALL_TRIED = "all_tried"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    DEADLINE = "deadline"  # the predicted wait is longer than it may wait
    LIMIT = "limit"
    REPEATED = "repeated"  # another request has its Idempotency-Key


class LimitKind(StrEnum):
    REQUESTS = "requests_per_minute"
    INPUT_TOKENS = "input_tokens_per_minute"
    OUTPUT_TOKENS = "output_tokens_per_minute"
    CONCURRENCY = "concurrent_requests"
    BUDGET = "monthly_budget"  # micro-dollars a calendar month of the tenant's time zone
    BALANCE = "balance"  # micro-dollars left of what was paid in advance


class ScopeKind(StrEnum):
    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"  # of one tenant


class RetryKind(StrEnum):
    EXACT = "exact"  # holds when nothing else of the scope is admitted meanwhile
    ESTIMATE = "estimate"
    NEVER = "never"  # this request can never fit: waiting does not help


@dataclass(frozen=True, slots=True)
class Scope:
    kind: ScopeKind
    id: str
    """The tenant's id; the key's id; "<tenant id>/<public model id>"."""


@dataclass(frozen=True, slots=True)
class Limit:
    scope: Scope
    kind: LimitKind
    value: int
    """Of money in micro-dollars, as it was agreed on."""


@dataclass(frozen=True, slots=True)
class LimitHit:
    """The limit that refuses, as it stood; of money in micro-dollars, rounded up: the limiter itself counts exactly."""

    limit: Limit
    used: int
    reserved: int
    asked: int
    retry_after_s: float | None
    """None: never."""
    retry_kind: RetryKind


@dataclass(frozen=True, slots=True)
class RateView:
    """What x-ratelimit-* say: the tightest limit of each kind after this decision; None: there is no such limit."""

    limit_requests: int | None = None
    remaining_requests: int | None = None
    reset_requests_s: float | None = None
    """Until the whole limit is free again."""
    limit_tokens: int | None = None
    """Of input and output tokens, the one with the smaller part left."""
    remaining_tokens: int | None = None
    reset_tokens_s: float | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    id: str
    replica: str
    reason: Reason
    tier: Tier
    """After the plan's ceiling."""
    max_tokens: int
    waited_s: float
    """In the queue since this ask; not the time before it was parked."""
    predicted_ttft_s: float
    predicted_cached_tokens: int
    engine_priority: int
    """For `--scheduling-policy priority`: lower is sooner."""
    rates: RateView


@dataclass(frozen=True, slots=True)
class Queued:
    """Not final: Granted or Refused follows."""

    id: str
    reason: Reason
    position: int
    """1: the next."""
    predicted_wait_s: float
    tier: Tier
    rates: RateView | None = None
    """With the first that is said of an ask."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing stays reserved."""

    id: str
    reason: Reason
    retry_after_s: float | None
    retry_kind: RetryKind
    predicted_wait_s: float | None = None
    hit: LimitHit | None = None
    """For Reason.LIMIT."""
    rates: RateView = field(default_factory=RateView)
    holder: str = ""
    """For Reason.REPEATED: the request that has the key."""


@dataclass(frozen=True, slots=True)
class Park:
    """Abort this running request upstream; its owner then says `parked`, and it waits for a new grant."""

    id: str
    replica: str
    for_id: str


Decision = Granted | Queued | Refused | Park


class Ending(StrEnum):
    """How an attempt ended, as far as its replica goes."""

    WELL = "well"  # the replica did its work
    FAILED = "failed"  # the replica is to blame
    NEUTRAL = "neutral"  # the client left, the request was bad, it was cut or parked: says nothing about the replica


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the whole request so far: what settles its reservations."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    amount_picos: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A replica that is ready. A higher `epoch` is a new engine: what its forerunner did, and held, is forgotten."""

    id: str
    max_in_flight: int
    epoch: int = 0
    zone: str = ""
    address: str = ""
    kv_tokens: int = 0
    """Tokens its KV cache holds; 0: not known."""
    prefill_tokens_per_s: float = 0.0
    """0: not known, learnt from what it does."""
    is_draining: bool = False
    min_in_flight: int = 1
    """The batch cap goes no lower."""
    version: str = ""
    """Empty: an external one."""


@dataclass(frozen=True, slots=True)
class StateFrame:
    """What an agent says of a replica twice a second; None: the engine does not tell."""

    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None
    generated_tokens: int | None = None
    iteration_s: float | None = None
    acceptance_ratio: float | None = None
    """Of the tokens that speculation proposed since the engine's start, how many were right."""


@dataclass(frozen=True, slots=True)
class TierTargets:
    """Of a pool, for one tier."""

    ttft_s: float
    inter_token_s: float


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """What a tenant's plan and limits say."""

    tenant: str
    weight: float = 1.0
    tier_ceiling: Tier = Tier.INTERACTIVE
    limits: tuple[Limit, ...] = ()
    """Of all scopes of this tenant: itself, its keys, its models."""

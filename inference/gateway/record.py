"""One usage record for each authenticated request, opened and settled exactly once, whatever its end.

| end                                                                        | end state                         |
| -------------------------------------------------------------------------- | --------------------------------- |
| the whole answer, with a finish reason, was handed to the client           | done                              |
| the client left, cancelled, or sent into a socket's running answer what is | client_gone_before_first_token /  |
|   neither a cancel nor readable: before / after the engine's first token   |   client_gone_after_first_token   |
|   reached us; for an answer the engine does not stream: before             |                                   |
| the engine could not be reached, answered 5xx or an error object, or sent  | engine_error                      |
|   what is no answer, and no other replica could take over                  |                                   |
| the engine's connection ended before its answer was whole, and no other    | engine_died                       |
|   replica could go on with it (resume.py)                                  |                                   |
| the engine stayed silent past headers_s, inter_event_s or whole_answer_s   | deadline                          |
| this gateway was shut down and the request did not end in time             | cut_by_drain                      |
| this gateway failed after the request had been dispatched: a fault of ours | gateway_lost                      |
|   (500, traceback logged), it died and another process wrote the record,   |                                   |
|   or it was cut off from its dispatcher for too long (503)                 |                                   |
| refused before dispatch: not valid, unknown model, queue full or timed     | refused                           |
|   out, no replica, a fault of ours, a body that was not whole when this    |                                   |
|   gateway shut down; or refused by the engine with a 4xx                   |                                   |

Not recorded: requests without a valid key, GET routes, and those refused because the journal cannot be written (503).
"""

from typing import Protocol

import msgspec
import structlog

from billing.services.attempt_rows import AttemptDraft
from billing.services.ledger import UsageDraft
from headway.clock import Clock
from headway.errors import HeadwayError
from inference.gateway.engine_usage import Usage
from inference.gateway.state import Principal

log = structlog.get_logger(__name__)

DONE = "done"
CLIENT_GONE_BEFORE = "client_gone_before_first_token"
CLIENT_GONE_AFTER = "client_gone_after_first_token"
ENGINE_ERROR = "engine_error"
ENGINE_DIED = "engine_died"
DEADLINE = "deadline"
CUT_BY_DRAIN = "cut_by_drain"
GATEWAY_LOST = "gateway_lost"
REFUSED = "refused"

FAILED = frozenset({ENGINE_ERROR, ENGINE_DIED, DEADLINE, CUT_BY_DRAIN})
"""After an engine was given it."""

MAX_MODEL_CHARS = 200
MAX_FINISH_REASON_CHARS = 32


class JournalLike(Protocol):
    @property
    def is_healthy(self) -> bool: ...
    @property
    def num_open(self) -> int: ...
    @property
    def num_refused(self) -> int: ...
    @property
    def num_corrupt(self) -> int: ...
    def open(self, draft: UsageDraft) -> None: ...
    def close(self, draft: UsageDraft) -> None: ...
    def depth(self) -> int: ...


class Record:
    """The fields that become known on the way are set as attributes; `settle` writes them."""

    def __init__(
        self, *, journal: JournalLike, clock: Clock, gateway: str, principal: Principal, request_id: str, route: str
    ) -> None:
        self._journal, self._clock = journal, clock
        self._started_monotonic_s = clock.monotonic_s()
        now_s = clock.now().timestamp()
        self._draft = UsageDraft(
            request_id=request_id,
            tenant_id=principal.tenant_id,
            key_id=principal.key_id,
            member_id=principal.member_id,
            route=route,
            model="",
            tier="standard",
            end_state=GATEWAY_LOST,
            gateway=gateway,
            started_at_s=now_s,
            ended_at_s=now_s,
        )
        self._is_open = False
        self.is_settled = False
        self.model, self.tier = "", "standard"
        self.version = self.pool = self.replica = ""
        self.replica_epoch = 0
        self.attempts = 0
        self.attempt_rows: tuple[AttemptDraft, ...] = ()
        """What its record does not tell of them (attempt_notes.py)."""
        self.resumes = 0
        """How often it went on at another replica, or after it was parked, in the middle of its answer."""
        self.parks = 0
        """How often it was taken from its engine for a more urgent one."""
        self.is_resumed_exactly = True
        """Is what was made as likely as if that had not happened? Not with a seed."""
        self.queue_ms = 0
        self.ttft_ms: int | None = None
        self.usage: Usage | None = None
        self.counted_prompt_tokens = 0
        """Of its prompt, by our own count; 0: only its engine can tell."""
        self.finish_reason = ""
        self.end_state = ""
        self.asked_tier = "standard"
        self.route_reason = ""
        self.price_version = ""
        self.discount_percent = 0
        self.amount_picos: int | None = None
        self.overhead_ms: float | None = None
        """Time spent in this gateway before the first dispatch, without the queue."""

    def elapsed_ms(self, until_s: float | None = None) -> int:
        """Until then on the monotonic clock; None: until now."""
        until_s = self._clock.monotonic_s() if until_s is None else until_s
        return round((until_s - self._started_monotonic_s) * 1000)

    @property
    def made_tokens(self) -> bool:
        """Has it ended with something to be billed?"""
        return self.end_state == DONE or (self.is_settled and self.usage is not None and self.usage.completion_tokens > 0)

    def timing_headers(self) -> list[tuple[bytes, bytes]]:
        if self.overhead_ms is None:
            return []
        overhead = f"{self.overhead_ms:.2f}".encode()
        return [(b"x-headway-queue-ms", str(self.queue_ms).encode()), (b"x-headway-overhead-ms", overhead)]

    def open(self) -> None:
        """From here on the request is recorded even if this process dies. Raises JournalUnavailable."""
        self._journal.open(self._filled())
        self._is_open = True

    def so_far(self, usage: Usage | None) -> UsageDraft:
        """As it stands, for whoever settles it if this process dies."""
        self.usage = usage
        return msgspec.structs.replace(
            self._filled(),
            ended_at_s=self._clock.now().timestamp(),
            total_ms=self.elapsed_ms(),
            usage_source=_source(usage, GATEWAY_LOST),
        )

    def settle(self, end_state: str) -> UsageDraft | None:
        """Write the final record; call it before the last event is sent. None when it was settled before."""
        if self.is_settled:
            return None
        self.is_settled, self.end_state = True, end_state
        draft = msgspec.structs.replace(
            self._filled(),
            end_state=end_state,
            ended_at_s=self._clock.now().timestamp(),
            total_ms=self.elapsed_ms(),
            usage_source=_source(self.usage, end_state),
        )
        if self.usage is None and self.attempts and self.counted_prompt_tokens and end_state in FAILED:
            # An engine was given it: the record says so, and nobody pays for it.
            draft = msgspec.structs.replace(draft, prompt_tokens=self.counted_prompt_tokens, usage_source="counted")
        if not self._is_open:
            try:
                self.open()
            except HeadwayError as error:
                log.warning("request_not_recorded", end_state=end_state, reason=error.message)
                return draft
        self._journal.close(draft)
        return draft

    def _filled(self) -> UsageDraft:
        usage = self.usage or Usage()
        return msgspec.structs.replace(
            self._draft,
            model=_printable(self.model, MAX_MODEL_CHARS),
            tier=self.tier,
            version=self.version,
            pool=self.pool,
            replica=self.replica,
            replica_epoch=self.replica_epoch,
            attempt_rows=self.attempt_rows,
            attempts=self.attempts,
            queue_ms=self.queue_ms,
            ttft_ms=self.ttft_ms,
            route_reason=self.route_reason,
            resumes=self.resumes,
            is_resumed_exactly=self.is_resumed_exactly,
            parks=self.parks,
            price_version=self.price_version,
            discount_percent=self.discount_percent,
            amount_picos=self.amount_picos,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            finish_reason=_printable(self.finish_reason, MAX_FINISH_REASON_CHARS),
        )


def _source(usage: Usage | None, end_state: str) -> str:
    if usage is None:
        return "none"
    if usage.is_counted:
        return "counted"
    return "engine" if end_state == DONE and not usage.is_running else "partial"


def _printable(text: str, max_chars: int) -> str:
    """What a client or an engine sent may hold anything; a database column may not (NUL, length)."""
    kept = text[:max_chars]
    return kept if kept.isprintable() else "".join(char if char.isprintable() else "?" for char in kept)

"""One request from authentication to its usage record, whichever edge it came through.

    parse -> open the record -> [queue] -> grant -> attempt (again elsewhere, or on from where it was) -> settle -> last event

record.py has the table of ends. At each of them, in this order: the record is settled, the engine's connection is
aborted (unless its answer was whole), the grant is released, and only then is the last event sent.
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial

import structlog

from billing.services.ledger import UsageDraft
from billing.services.rating import amount_of
from headway.errors import HeadwayError, Unavailable
from headway.logs import access
from inference.dispatch.dispatcher import Grant
from inference.gateway.answer import AnswerReader
from inference.gateway.attempt import AttemptFailed, EngineRefused, new_reader, run_attempt
from inference.gateway.attempt_notes import PARKED, AttemptNotes
from inference.gateway.continuation import Continuation
from inference.gateway.openai_errors import INTERNAL, Refusal, refusal_of, unknown_model
from inference.gateway.outputs import EventStreamOutput
from inference.gateway.parts import GatewayParts
from inference.gateway.prompt_blocks import blocks_of
from inference.gateway.rate_headers import Headers, rate_headers
from inference.gateway.record import (
    CLIENT_GONE_AFTER,
    CLIENT_GONE_BEFORE,
    CUT_BY_DRAIN,
    DEADLINE,
    DONE,
    ENGINE_ERROR,
    GATEWAY_LOST,
    REFUSED,
    Record,
)
from inference.gateway.relay import Output
from inference.gateway.requests import GenerationRequest, shortened
from inference.gateway.resume import (
    Resumed,
    best_cut,
    can_resume,
    can_take_over,
    continuation_of,
    ends_at_once,
    is_exact,
    resumed,
)
from inference.gateway.state import ModelEntry, Principal, ReplicaEntry
from inference.gateway.tenant_rows import net_price
from inference.gateway.tracing import RequestTrace
from inference.gateway.upstream_connection import UpstreamResponse
from inference.gateway.version_wish import ANY, VERSION_HEADER, wish_of
from inference.policy.decisions import NO_MODEL, Ask, Ending, Queued, RateView, Tier, TokenPrice, Usage

log = structlog.get_logger(__name__)

STOPPING = Refusal(
    status=503,
    message="This gateway is shutting down and the answer did not end in time. Retry.",
    type="server_error",
    code="gateway_stopping",
    retry_after_s=1.0,
)


DETACHED = Refusal(
    status=503,
    message="This gateway was cut off from the rest of the service for too long, so the answer was ended. Retry.",
    type="server_error",
    code="gateway_detached",
    retry_after_s=1.0,
)


class Cut(Enum):
    """Why a request was ended from outside."""

    CLIENT_GONE = "client_gone"
    DRAIN = "drain"
    DETACHED = "detached"  # from the dispatcher, for so long that its slot may be another's


class Exchange:
    """`run` is called once, in a task of its own; `cut` may be called at any moment on the same loop."""

    def __init__(
        self,
        parts: GatewayParts,
        *,
        principal: Principal,
        request_id: str,
        route: str,
        output: Output,
        trace: RequestTrace,
        headers: Iterable[tuple[bytes, bytes]] = (),
        max_wait_s: float | None = None,
    ) -> None:
        """`max_wait_s`: in the queue; None: as its tier does."""
        self.parts, self.principal, self.request_id, self.output = parts, principal, request_id, output
        self.trace, self._headers, self._max_wait_s = trace, headers, max_wait_s
        self.record = Record(
            journal=parts.journal,
            clock=parts.clock,
            gateway=parts.name,
            principal=principal,
            request_id=request_id,
            route=route,
        )
        self.repeat_key = b""
        """Of the client's Idempotency-Key, if it sent one."""
        self.notes = AttemptNotes(parts.clock)
        # Of the attempt that runs; set by attempt.py.
        self.reader: AnswerReader | None = None
        self.response: UpstreamResponse | None = None
        # Of all attempts: what another one would go on from, if it can be gone on from at all.
        self.continuation: Continuation | None = None
        self._goes_on = self._is_parking = False
        self._parked: Grant | None = None  # whose slot is to be given up for a new one
        self._grant: Grant | None = None
        self._rates: RateView | None = None
        self._price = TokenPrice()
        self._wish = ANY
        self._uncounted_bound = 0  # tokens of a prompt that only its engine counts
        self._queued: Queued | None = None
        self._told_s = parts.clock.monotonic_s()
        self._ending = Ending.NEUTRAL
        self._draft: UsageDraft | None = None  # once it is settled
        self._task: asyncio.Task[None] | None = None
        self._cut: Cut | None = None
        self._last_output_s = 0.0
        self._started_s = parts.clock.monotonic_s()
        self._silent_since_s = self._started_s
        self._queued_s = 0.0

    def cut(self, reason: Cut) -> None:
        if self._cut is None and self._task is not None:
            self._cut = reason
            if reason is Cut.CLIENT_GONE or not self.record.is_settled:
                self._task.cancel()

    async def run(self, read: Callable[[], GenerationRequest]) -> None:
        """`read` parses the request. Never raises but for a cancellation that did not come through `cut`."""
        self._task = asyncio.current_task()
        self._started_s = self.parts.clock.monotonic_s()
        self.parts.running.add(self)
        try:
            await self._serve(read())
        except asyncio.CancelledError:
            await self._end_by_cut()
        except EngineRefused as error:
            await self._fail(REFUSED, error.refusal)
        except AttemptFailed as error:
            await self._fail(error.end_state, error.refusal)
        except HeadwayError as error:
            rates = error.data.get("rates")
            self._rates = rates if isinstance(rates, RateView) else self._rates
            await self._fail(REFUSED, refusal_of(error))
        except Exception:
            log.exception("request_failed_in_gateway")
            await self._fail(GATEWAY_LOST if self.record.attempts else REFUSED, INTERNAL)
        finally:
            self._let_go()
            self.parts.running.discard(self)
            if self._cut is not None and self._task is not None:
                self._task.uncancel()
            self._task = None

    def is_due_comment(self, now_s: float) -> bool:
        """A stream that was silent for `comment_s` gets a comment, and then another after as long again."""
        if self.record.is_settled or not isinstance(self.output, EventStreamOutput):
            return False
        return now_s - self._silent_since_s >= self.parts.edge.comment_s

    async def keep_alive(self) -> None:
        self._silent_since_s = self.parts.clock.monotonic_s()
        if isinstance(self.output, EventStreamOutput):
            await self.output.keep_alive()

    def on_queued(self, queued: Queued) -> None:
        """Where it stands in the queue; its client is told by the next comment."""
        self._queued = queued
        self._rates = queued.rates or self._rates

    async def tell_position(self) -> None:
        """To a client whose request waits, if there is news."""
        queued, now_s = self._queued, self.parts.clock.monotonic_s()
        if queued is None or self._grant is not None or self.record.is_settled:
            return
        if now_s - self._told_s >= self.parts.edge.queue_comment_s:
            self._queued, self._told_s, self._silent_since_s = None, now_s, now_s
            await self.output.show_position(queued.position, queued.predicted_wait_s)

    def num_tokens(self) -> int:
        """Made so far, over all attempts."""
        return 0 if self.reader is None else self.reader.tokens_so_far()

    def _draft_so_far(self) -> UsageDraft:
        self.record.attempt_rows = self.notes.rows(GATEWAY_LOST)
        return self.record.so_far(self.reader.usage() if self.reader is not None else None)

    def answer_headers(self) -> Headers:
        """Of timing, of the tier that was given where another was asked for, and of limits."""
        headers = self.record.timing_headers()
        if self.record.attempts and self.record.version:
            headers.append((VERSION_HEADER, self.record.version.encode()))
        if self.record.asked_tier != self.record.tier:
            headers.append((b"x-headway-tier", self.record.tier.encode()))
        return headers + rate_headers(self._rates) if self._rates is not None else headers

    async def refuse(self, error: HeadwayError) -> None:
        """The request ended before it could be read."""
        await self._fail(REFUSED, refusal_of(error))

    def client_left_early(self) -> None:
        """The client left before its request was whole."""
        self._settle(CLIENT_GONE_BEFORE, 499)

    async def _serve(self, request: GenerationRequest) -> None:
        record = self.record
        model = self.parts.state.model(request.model)
        record.model = request.model if model is not None else ""  # whoever asks for thousands gets one row of sums
        self._set_terms(request)
        self.principal.key.check_model(request.model)
        if model is None:
            await self._count_unknown()
            raise unknown_model(request.model)
        record.pool, record.version = model.pool, model.stable
        facts = self.parts.state.facts(self.principal.tenant_id)
        self._wish = wish_of(model, request, facts, self._headers, self.principal.cache_salt)
        record.open()
        request = await self.parts.prompts.fit(request, salt=self.principal.cache_salt)
        if request.likely_prompt_tokens is not None:
            self._uncounted_bound = request.prompt_tokens_bound
        else:
            record.counted_prompt_tokens = request.prompt_tokens_bound
        await self._attempt_until_done(request, model)
        if self.parts.shadow is not None and model.shadow.share_ppm:
            # In a turn of the loop of its own: whatever becomes of it, this request is over.
            asyncio.get_running_loop().call_soon(self.parts.shadow.consider, self, request)

    async def _attempt_until_done(self, request: GenerationRequest, model: ModelEntry) -> None:
        tried: dict[str, int] = {}  # replicas, and of which epoch
        last: AttemptFailed | None = None
        blocks = blocks_of(request.api, request.fields, self.principal.cache_salt)
        num_failed = 0
        while not (self._goes_on and await self._ended_at_once(request)):
            excluded = self._still_there(tried)
            may_change = self._may_change_version(request.model, excluded)
            grant = await self._submit(request, blocks, excluded, last, may_change_version=may_change)
            if not self._may_use(grant.replica, model, may_change_version=may_change):
                grant.give_back(Ending.NEUTRAL)
                tried[grant.replica.id] = grant.replica.epoch
                continue
            allowed = grant.decision.max_tokens // request.num_choices
            if not self._goes_on and allowed < request.max_tokens:
                request = shortened(request, allowed)
            try:
                await self._attempt(request, grant, is_on_trial=self._wish.is_on_trial(model, grant.replica))
                return
            except AttemptFailed as failure:
                is_parked, self._is_parking = self._is_parking, False
                self._after_failure(failure, grant, is_parked=is_parked)
                if is_parked:
                    continue
                num_failed += 1
                if num_failed >= self.parts.tunables.max_attempts:
                    raise
                last = failure
                tried[grant.replica.id] = grant.replica.epoch
                if self._wish.is_on_trial(model, grant.replica):
                    self._wish = self._wish.without_candidate()

    def _may_use(self, replica: ReplicaEntry, model: ModelEntry, *, may_change_version: bool) -> bool:
        """False: not to go on with the answer. Raises VersionGone."""
        if not self._goes_on or self.continuation is None:
            self._wish.check(model, replica)
            return True
        return can_take_over(self.continuation, replica, may_change_version=may_change_version)

    def _may_change_version(self, model: str, excluded: frozenset[str]) -> bool:
        """Whether it goes on, of a version of which nobody is left, and its tenant has not pinned that one."""
        continuation = self.continuation
        if not self._goes_on or continuation is None or self._wish.version:
            return False
        ready = self.parts.state.replicas(model)
        return not any(one.version == continuation.version and one.id not in excluded for one in ready)

    def _still_there(self, tried: dict[str, int]) -> frozenset[str]:
        """Those that were not started anew since."""
        known = ((name, epoch, self.parts.state.replica(name)) for name, epoch in tried.items())
        return frozenset([name for name, epoch, entry in known if entry is None or entry.epoch == epoch])

    async def _attempt(self, request: GenerationRequest, grant: Grant, *, is_on_trial: bool) -> None:
        """Begin the answer, or go on with it. Raises AttemptFailed, EngineRefused.

        What a candidate on trial refuses, the stable version may take.
        """
        record, replica = self.record, grant.replica
        record.attempts += 1
        record.replica, record.replica_epoch = replica.id, replica.epoch
        record.pool, record.version = replica.pool, replica.version
        self.notes.begin(record.attempts, replica)
        if not self._goes_on:
            self.continuation = continuation_of(request, replica)
            try:
                await run_attempt(self, request, grant, record.attempts)
            except EngineRefused as error:
                if not is_on_trial:
                    raise
                raise AttemptFailed(REFUSED, f"it refuses: {error.refusal.status}", error.refusal) from None
            return
        further = await self._cut_at(request, grant)
        if further.is_over:
            await self._end_at_once(request, further)
            return
        record.resumes += 1
        record.is_resumed_exactly = record.is_resumed_exactly and is_exact(request) and self._keeps_version(replica)
        self.parts.metrics.resumed(is_exact=record.is_resumed_exactly)
        try:
            await run_attempt(self, request, grant, record.attempts, further)
        except EngineRefused as error:
            # Not its message: that may quote the prompt, and the reason is logged.
            raise AttemptFailed(ENGINE_ERROR, f"it refuses to go on: {error.refusal.status}", error.refusal) from None

    def _keeps_version(self, replica: ReplicaEntry) -> bool:
        """Of an answer that goes on there; from now on it is of that one."""
        continuation = self.continuation
        assert continuation is not None
        before, continuation.version = continuation.version, replica.version
        return replica.version == before

    async def _cut_at(self, request: GenerationRequest, grant: Grant) -> Resumed:
        continuation = self.continuation
        assert continuation is not None
        cut = continuation.cut()
        assert cut is not None, "_may_go_on has asked"
        cut = await best_cut(continuation, cut, self.parts.upstream, grant.replica)
        return resumed(request, continuation, cut, self.reader.usage() if self.reader else None)

    async def _ended_at_once(self, request: GenerationRequest) -> bool:
        """Has the client got all the tokens that it may get? Then no replica is asked any more."""
        continuation = self.continuation
        cut = continuation.cut() if continuation is not None else None
        if continuation is None or cut is None or cut.had or cut.num_tokens < request.max_tokens:
            return False
        await self._end_at_once(request, resumed(request, continuation, cut, self.reader.usage() if self.reader else None))
        return True

    async def _end_at_once(self, request: GenerationRequest, further: Resumed) -> None:
        reader = self.reader = new_reader(self, request, further, version=self.record.version)
        last = self.output.last([*ends_at_once(reader)], reader)
        self.on_output()
        self.done()
        await self.output.send_last(last)

    def _set_terms(self, request: GenerationRequest) -> None:
        """The tier that its plan and its key allow, and what tokens cost there."""
        record, state = self.record, self.parts.state
        ceiling = max(state.terms(self.principal.tenant_id).tier_ceiling, self.principal.key.tier_ceiling)
        record.asked_tier = request.tier
        record.tier = max(Tier[request.tier.upper()], ceiling).name.lower()
        now_s = self.parts.clock.now().timestamp()
        record.price_version, list_price = state.price(request.model, record.tier, now_s=now_s)
        if record.price_version:
            record.discount_percent = state.facts(self.principal.tenant_id).discount_percent
        self._price = net_price(list_price, record.discount_percent)

    async def _count_unknown(self) -> None:
        """A request for a model that nobody knows counts on limits as any other does. Raises RateLimited at one."""
        of = self.principal
        if not self.parts.state.terms(of.tenant_id).limits:
            return
        ask = Ask(self.request_id, NO_MODEL, of.tenant_id, of.key_id, Tier[self.record.tier.upper()])
        try:
            await self.parts.dispatcher.submit(ask)
        except Unavailable as error:  # it was counted, or nobody is there to count: the client is told what is wrong
            rates = error.data.get("rates")
            self._rates = rates if isinstance(rates, RateView) else None

    def _asked(
        self,
        request: GenerationRequest,
        blocks: tuple[int, ...],
        excluded: frozenset[str],
        last: AttemptFailed | None,
        *,
        may_change_version: bool,
    ) -> Ask:
        begun = self.continuation if self._goes_on else None
        return Ask(
            id=self.request_id,
            model=request.model,
            tenant=self.principal.tenant_id,
            key=self.principal.key_id,
            tier=Tier[self.record.tier.upper()],
            prompt_tokens=request.prompt_tokens_bound,
            likely_prompt_tokens=request.likely_prompt_tokens,
            max_tokens=request.max_tokens * request.num_choices - (self.num_tokens() if self._goes_on else 0),
            may_shorten=not request.names_limit,
            price=self._price,
            blocks=blocks,
            excluded=excluded,
            can_park=can_resume(request),
            repeat_key=self.repeat_key,
            waits_for_restart=last is not None and last.is_gone,
            deadline_s=None if self._max_wait_s is None else self.parts.clock.monotonic_s() + self._max_wait_s,
            zone=self.parts.zone,
            conversation=b"" if begun is not None else self._wish.conversation,
            version=begun.version if begun is not None else self._wish.version,
            may_change_version=may_change_version,
        )

    async def _submit(
        self,
        request: GenerationRequest,
        blocks: tuple[int, ...],
        excluded: frozenset[str],
        last: AttemptFailed | None,
        *,
        may_change_version: bool,
    ) -> Grant:
        """Where no further replica can take over, the failure of the last one is the answer."""
        ask = self._asked(request, blocks, excluded, last, may_change_version=may_change_version)
        asked_s = self.parts.clock.monotonic_s()
        self._grant = None
        try:
            if self._parked is not None:
                parked, self._parked = self._parked, None
                grant = self._grant = await self.parts.dispatcher.resubmit_parked(parked, ask, self.on_queued)
            else:
                grant = self._grant = await self.parts.dispatcher.submit(ask, self.on_queued)
        except Unavailable as error:
            if last is not None:
                raise last from None
            if self._goes_on:  # it was parked, and is no refusal any more
                raise AttemptFailed(DEADLINE, f"parked for too long: {error.message}", refusal_of(error)) from None
            raise
        self._queued_s += self.parts.clock.monotonic_s() - asked_s
        grant.num_tokens, grant.on_park, grant.draft = self.num_tokens, self.park, self._draft_so_far
        grant.on_cut = partial(self.cut, Cut.DETACHED)
        self._rates = grant.decision.rates
        self.record.route_reason = grant.decision.reason.value
        self.record.queue_ms += grant.queue_ms
        return grant

    def _after_failure(self, failure: AttemptFailed, grant: Grant, *, is_parked: bool) -> None:
        """Raises the failure where the answer can neither go on nor be begun anew."""
        self.notes.end(PARKED if is_parked else failure.end_state)
        if not is_parked:
            log.warning("attempt_failed", replica=grant.replica.id, attempt=self.record.attempts, reason=failure.reason)
            self.parts.metrics.attempt_failed(failure.end_state)
            self.trace.attempt_failed(failure.reason)
        if self.response is not None:
            self.response.abort()
            self.response = None
        if is_parked:
            self._parked = grant
        else:
            grant.give_back(Ending.FAILED if failure.blames_replica else Ending.NEUTRAL, failure.reason)
        self._goes_on = self._may_go_on()
        if self._goes_on:
            return
        if self.output.has_started:
            raise failure
        self.continuation = None
        self.output.restart()

    def _may_go_on(self) -> bool:
        continuation = self.continuation
        if continuation is None or not self.output.keeps or not continuation.can_go_on:
            return False
        return (self.output.has_started or continuation.delivered > 0) and continuation.cut() is not None

    def park(self) -> bool:
        """Take the answer from its engine and give its slot back; it goes on, or begins anew, after a new grant.

        To be called on the loop, at any moment. False: nothing runs on an engine, or it could not go on elsewhere.
        """
        response = self.response
        if response is None or response.is_complete or self._is_parking or self.record.is_settled:
            return False
        if self.output.has_started and not self._may_go_on():
            return False
        self._is_parking = True
        self.record.parks += 1
        response.abort()
        return True

    # -- the ends

    def before_dispatch(self) -> None:
        if self.record.overhead_ms is None:
            spent_s = self.parts.clock.monotonic_s() - self._started_s - self._queued_s
            self.record.overhead_ms = max(0.0, spent_s * 1000)

    def on_output(self) -> None:
        """Something the model made is about to be handed on."""
        now_s = self.parts.clock.monotonic_s()
        if self._grant is not None:
            self._grant.first_token()
        self.notes.output(now_s)
        if self.record.ttft_ms is None:
            self.record.ttft_ms = self.record.elapsed_ms()
            self.parts.metrics.first_output(self.record.ttft_ms / 1000)
        else:
            self.parts.metrics.further_output(now_s - self._last_output_s)
        self._last_output_s = self._silent_since_s = now_s

    def done(self) -> None:
        """The answer is whole; its last event is sent after this."""
        self._settle(DONE, 200)
        self._let_go()

    async def _fail(self, end_state: str, refusal: Refusal) -> None:
        is_first_end = not self.record.is_settled
        self._settle(end_state, refusal.status)
        self._let_go()
        if is_first_end or not self.output.has_started:
            await self.output.send_error(refusal)

    async def _end_by_cut(self) -> None:
        if self._cut is Cut.CLIENT_GONE:
            has_output = self.reader is not None and self.reader.has_output
            self._settle(CLIENT_GONE_AFTER if has_output else CLIENT_GONE_BEFORE, 499)
            return
        if self._cut is Cut.DRAIN:
            await self._fail(CUT_BY_DRAIN, STOPPING)
            return
        if self._cut is Cut.DETACHED:
            await self._fail(GATEWAY_LOST, DETACHED)
            return
        self._settle(CUT_BY_DRAIN, 503)  # the server cancelled us: it has waited long enough
        raise asyncio.CancelledError

    def _settle(self, end_state: str, status: int) -> None:
        record = self.record
        if end_state == DONE:
            self._ending = Ending.WELL
        if self.reader is not None:
            record.usage = usage = self.reader.usage()
            if self._uncounted_bound and usage is not None:
                self.parts.prompts.learn(record.model, bound=self._uncounted_bound, prompt_tokens=usage.prompt_tokens)
            record.finish_reason = self.reader.finish_reason
        if record.price_version:
            record.amount_picos = amount_of(end_state, record.usage, self._price)
        record.attempt_rows = self.notes.rows(end_state)
        draft = record.settle(end_state)
        if draft is not None:
            self._draft = draft
            self.parts.metrics.request_ended(draft, status)
            self.parts.receipts.keep(draft)
            self._log(draft, status)
            self.trace.end(end_state=end_state, status=status, model=draft.model, completion_tokens=draft.completion_tokens)

    def _log(self, draft: UsageDraft, status: int) -> None:
        """The access log: one line a request, without a word of its text."""
        access(
            __name__,
            "request_ended",
            route=draft.route,
            status=status,
            end_state=draft.end_state,
            model=draft.model,
            replica=draft.replica,
            attempts=draft.attempts,
            prompt_tokens=draft.prompt_tokens,
            completion_tokens=draft.completion_tokens,
            queue_ms=draft.queue_ms,
            ttft_ms=draft.ttft_ms,
            total_ms=draft.total_ms,
        )

    def _let_go(self) -> None:
        """The engine's work and its slot; again: nothing happens."""
        if self.response is not None:
            if self.reader is not None and self.reader.is_done and not self.reader.is_cut_short:
                self.response.finish(self.parts.upstream.tunables.tail_s)
            else:
                self.response.abort()
        usage = self.record.usage
        settled = Usage(amount_picos=self.record.amount_picos or 0)
        if usage is not None:
            settled = Usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, self.record.amount_picos or 0)
        self.parts.dispatcher.settle(self.request_id, self._ending, settled, self._draft)

"""One request from authentication to its usage record, whichever edge it came through.

    parse -> open the record -> [queue] -> grant -> attempt (again elsewhere, or on from where it was) -> settle -> last event

record.py has the table of ends. At each of them, in this order: the record is settled, the engine's connection is
aborted (unless its answer was whole), the grant is released, and only then is the last event sent.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from billing.services.ledger import UsageDraft
from billing.services.rating import amount_of
from headway.errors import HeadwayError
from inference.dispatch.dispatcher import Grant
from inference.gateway.answer import AnswerReader
from inference.gateway.asking import Asking
from inference.gateway.attempt import AttemptFailed, EngineRefused
from inference.gateway.attempt_notes import PARKED, AttemptNotes
from inference.gateway.attempts import Attempts
from inference.gateway.continuation import Continuation
from inference.gateway.ends import DETACHED, STOPPING, Cut, log_end
from inference.gateway.entries import Principal
from inference.gateway.openai_errors import INTERNAL, Refusal, refusal_of, unknown_model
from inference.gateway.output_times import OutputTimes
from inference.gateway.outputs import EventStreamOutput
from inference.gateway.parts import GatewayParts
from inference.gateway.rate_headers import Headers, rate_headers
from inference.gateway.record import (
    CLIENT_GONE_AFTER,
    CLIENT_GONE_BEFORE,
    CUT_BY_DRAIN,
    DONE,
    GATEWAY_LOST,
    REFUSED,
    Record,
)
from inference.gateway.relay import Output
from inference.gateway.requests import GenerationRequest
from inference.gateway.tracing import RequestTrace
from inference.gateway.upstream_connection import UpstreamResponse
from inference.gateway.version_wish import VERSION_HEADER, wish_of
from inference.policy.decisions import Ask, Ending, Usage

log = structlog.get_logger(__name__)


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
        self.trace, self._headers = trace, headers
        self.record = Record(
            journal=parts.journal,
            clock=parts.clock,
            gateway=parts.name,
            principal=principal,
            request_id=request_id,
            route=route,
        )
        self.asking = Asking(parts, principal, self.record, request_id=request_id, max_wait_s=max_wait_s)
        self.notes = AttemptNotes(parts.clock)
        self.times = OutputTimes(parts.clock, self.record, self.notes, parts.metrics)
        # Of the attempt that runs; set by attempt.py.
        self.reader: AnswerReader | None = None
        self.response: UpstreamResponse | None = None
        # Of all attempts: what another one would go on from, if it can be gone on from at all.
        self.continuation: Continuation | None = None
        self.goes_on = self._is_parking = False
        self._uncounted_bound = 0  # tokens of a prompt that only its engine counts
        self._told_s = parts.clock.monotonic_s()
        self._ending = Ending.NEUTRAL
        self._draft: UsageDraft | None = None  # once it is settled
        self._task: asyncio.Task[None] | None = None
        self._cut: Cut | None = None
        self._started_s = parts.clock.monotonic_s()
        self._silent_since_s = self._started_s  # but for output

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
            self.asking.learn_rates(error.data.get("rates"))
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
        return now_s - max(self._silent_since_s, self.times.last_s) >= self.parts.edge.comment_s

    async def keep_alive(self) -> None:
        self._silent_since_s = self.parts.clock.monotonic_s()
        if isinstance(self.output, EventStreamOutput):
            await self.output.keep_alive()

    async def tell_position(self) -> None:
        """To a client whose request waits, if there is news."""
        queued, now_s = self.asking.queued, self.parts.clock.monotonic_s()
        if queued is None or self.asking.grant is not None or self.record.is_settled:
            return
        if now_s - self._told_s >= self.parts.edge.queue_comment_s:
            self.asking.queued, self._told_s, self._silent_since_s = None, now_s, now_s
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
        rates = self.asking.rates
        return headers + rate_headers(rates) if rates is not None else headers

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
        self.asking.set_terms(request)
        self.principal.key.check_model(request.model)
        if model is None:
            await self.asking.count_unknown()
            raise unknown_model(request.model)
        record.pool, record.version = model.pool, model.stable
        facts = self.parts.state.facts(self.principal.tenant_id)
        self.asking.wish = wish_of(model, request, facts, self._headers, self.principal.cache_salt)
        record.open()
        request = await self.parts.prompts.fit(request, salt=self.principal.cache_salt)
        if request.likely_prompt_tokens is not None:
            self._uncounted_bound = request.prompt_tokens_bound
        else:
            record.counted_prompt_tokens = request.prompt_tokens_bound
        await Attempts(self, request, model).run()
        if self.parts.shadow is not None and model.shadow.share_ppm:
            # In a turn of the loop of its own: whatever becomes of it, this request is over.
            asyncio.get_running_loop().call_soon(self.parts.shadow.consider, self, request)

    async def slot(self, ask: Ask, last: AttemptFailed | None) -> Grant:
        """Whoever gives it may ask about the request, and end it. Raises as Asking.submit."""
        grant = await self.asking.submit(ask, last, goes_on=self.goes_on)
        grant.num_tokens, grant.on_park, grant.draft = self.num_tokens, self.park, self._draft_so_far
        grant.on_cut = partial(self.cut, Cut.DETACHED)
        return grant

    def after_failure(self, failure: AttemptFailed, grant: Grant) -> bool:
        """Whether it was parked and has not failed. Raises the failure where the answer can neither go on nor be begun anew."""
        is_parked, self._is_parking = self._is_parking, False
        self.times.settle()
        self.notes.end(PARKED if is_parked else failure.end_state)
        if not is_parked:
            log.warning("attempt_failed", replica=grant.replica.id, attempt=self.record.attempts, reason=failure.reason)
            self.parts.metrics.attempt_failed(failure.end_state)
            self.trace.attempt_failed(failure.reason)
        if self.response is not None:
            self.response.abort()
            self.response = None
        if is_parked:
            self.asking.parked = grant
        else:
            grant.give_back(Ending.FAILED if failure.blames_replica else Ending.NEUTRAL, failure.reason)
        self.goes_on = self._may_go_on()
        if not self.goes_on:
            if self.output.has_started:
                raise failure
            self.continuation = None
            self.output.restart()
        return is_parked

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
            spent_s = self.parts.clock.monotonic_s() - self._started_s - self.asking.waited_s
            self.record.overhead_ms = max(0.0, spent_s * 1000)

    def on_output(self) -> None:
        """Something the model made is about to be handed on."""
        if self.asking.grant is not None:
            self.asking.grant.first_token()
        self.times.append_now()
        self.times.settle()

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
        self.times.settle()
        if end_state == DONE:
            self._ending = Ending.WELL
        if self.reader is not None:
            record.usage = usage = self.reader.usage()
            if self._uncounted_bound and usage is not None:
                self.parts.prompts.learn(record.model, bound=self._uncounted_bound, prompt_tokens=usage.prompt_tokens)
            record.finish_reason = self.reader.finish_reason
        if record.price_version:
            record.amount_picos = amount_of(end_state, record.usage, self.asking.price)
        record.attempt_rows = self.notes.rows(end_state)
        draft = record.settle(end_state)
        if draft is not None:
            self._draft = draft
            self.parts.metrics.request_ended(draft, status)
            self.parts.receipts.keep(draft)
            log_end(draft, status)
            self.trace.end(end_state=end_state, status=status, model=draft.model, completion_tokens=draft.completion_tokens)

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

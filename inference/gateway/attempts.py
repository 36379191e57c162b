"""One request's attempts: at one replica after another until one has answered, or on from where the one before it was."""

from typing import TYPE_CHECKING

from inference.dispatch.dispatcher import Grant
from inference.gateway.attempt import AttemptFailed, EngineRefused, new_reader, run_attempt
from inference.gateway.continuation import Continuation
from inference.gateway.entries import ModelEntry, ReplicaEntry
from inference.gateway.prompt_blocks import blocks_of
from inference.gateway.record import ENGINE_ERROR, REFUSED
from inference.gateway.requests import GenerationRequest, shortened
from inference.gateway.resume import (
    Resumed,
    best_cut,
    can_take_over,
    continuation_of,
    ends_at_once,
    is_exact,
    resumed,
)
from inference.policy.decisions import Ask, Ending

if TYPE_CHECKING:
    from inference.gateway.exchange import Exchange


class Attempts:
    def __init__(self, exchange: "Exchange", request: GenerationRequest, model: ModelEntry) -> None:
        self._exchange, self._request, self._model = exchange, request, model
        self._blocks = blocks_of(request.api, request.fields, exchange.principal.cache_salt)
        self._tried: dict[str, int] = {}  # replicas, and of which epoch
        self._last: AttemptFailed | None = None

    async def run(self) -> None:
        """Until the request is settled. Raises AttemptFailed, EngineRefused, VersionGone, and what a refusal is made of."""
        exchange, model, num_failed = self._exchange, self._model, 0
        while not (exchange.goes_on and await self._ended_at_once()):
            ask = self._ask()
            grant = await exchange.slot(ask, self._last)
            if not self._may_use(grant.replica, ask):
                grant.give_back(Ending.NEUTRAL)
                self._tried[grant.replica.id] = grant.replica.epoch
                continue
            self._shorten(grant)
            is_on_trial = exchange.asking.wish.is_on_trial(model, grant.replica)
            try:
                await self._attempt(grant, is_on_trial=is_on_trial)
                return
            except AttemptFailed as failure:
                if exchange.after_failure(failure, grant):
                    continue
                num_failed += 1
                if num_failed >= exchange.parts.tunables.max_attempts:
                    raise
                self._last = failure
                self._tried[grant.replica.id] = grant.replica.epoch
                if is_on_trial:
                    exchange.asking.wish = exchange.asking.wish.without_candidate()

    def _ask(self) -> Ask:
        exchange, last = self._exchange, self._last
        excluded = self._still_there()
        begun = exchange.continuation if exchange.goes_on else None
        return exchange.asking.ask(
            self._request,
            self._blocks,
            excluded=excluded,
            begun=begun,
            made_tokens=exchange.num_tokens() if exchange.goes_on else 0,
            waits_for_restart=last is not None and last.is_gone,
            may_change_version=begun is not None and self._may_change_version(begun, excluded),
        )

    def _shorten(self, grant: Grant) -> None:
        allowed = grant.decision.max_tokens // self._request.num_choices
        if not self._exchange.goes_on and allowed < self._request.max_tokens:
            self._request = shortened(self._request, allowed)

    def _may_use(self, replica: ReplicaEntry, ask: Ask) -> bool:
        """False: not to go on with the answer. Raises VersionGone."""
        exchange = self._exchange
        if not exchange.goes_on or exchange.continuation is None:
            exchange.asking.wish.check(self._model, replica)
            return True
        return can_take_over(exchange.continuation, replica, may_change_version=ask.may_change_version)

    def _may_change_version(self, begun: Continuation, excluded: frozenset[str]) -> bool:
        """Whether nobody is left of its version, and its tenant has not pinned that one."""
        if self._exchange.asking.wish.version:
            return False
        ready = self._exchange.parts.state.replicas(self._request.model)
        return not any(one.version == begun.version and one.id not in excluded for one in ready)

    def _still_there(self) -> frozenset[str]:
        """Those that were not started anew since they were tried."""
        state = self._exchange.parts.state
        known = ((name, epoch, state.replica(name)) for name, epoch in self._tried.items())
        return frozenset([name for name, epoch, entry in known if entry is None or entry.epoch == epoch])

    # One of them

    async def _attempt(self, grant: Grant, *, is_on_trial: bool) -> None:
        """Begin the answer, or go on with it. Raises AttemptFailed, EngineRefused.

        What a candidate on trial refuses, the stable version may take.
        """
        exchange, request, replica = self._exchange, self._request, grant.replica
        record = exchange.record
        record.attempts += 1
        record.replica, record.replica_epoch = replica.id, replica.epoch
        record.pool, record.version = replica.pool, replica.version
        exchange.notes.begin(record.attempts, replica)
        if exchange.goes_on:
            await self._go_on(grant)
            return
        exchange.continuation = continuation_of(request, replica)
        try:
            await run_attempt(exchange, request, grant, record.attempts)
        except EngineRefused as error:
            if not is_on_trial:
                raise
            raise AttemptFailed(REFUSED, f"it refuses: {error.refusal.status}", error.refusal) from None

    async def _go_on(self, grant: Grant) -> None:
        exchange, record = self._exchange, self._exchange.record
        further = await self._cut_at(grant)
        if further.is_over:
            await self._end_at_once(further)
            return
        record.resumes += 1
        keeps_version = self._moves_to(grant.replica)
        record.is_resumed_exactly = record.is_resumed_exactly and is_exact(self._request) and keeps_version
        exchange.parts.metrics.resumed(is_exact=record.is_resumed_exactly)
        try:
            await run_attempt(exchange, self._request, grant, record.attempts, further)
        except EngineRefused as error:
            # Not its message: that may quote the prompt, and the reason is logged.
            raise AttemptFailed(ENGINE_ERROR, f"it refuses to go on: {error.refusal.status}", error.refusal) from None

    def _moves_to(self, replica: ReplicaEntry) -> bool:
        """The answer is of that one's version from now on. Whether it was before."""
        continuation = self._exchange.continuation
        assert continuation is not None
        before, continuation.version = continuation.version, replica.version
        return replica.version == before

    async def _cut_at(self, grant: Grant) -> Resumed:
        exchange = self._exchange
        continuation = exchange.continuation
        assert continuation is not None
        cut = continuation.cut()
        assert cut is not None, "it was asked whether it may go on"
        cut = await best_cut(continuation, cut, exchange.parts.upstream, grant.replica)
        return resumed(self._request, continuation, cut, exchange.reader.usage() if exchange.reader else None)

    # Where nothing is left to be made

    async def _ended_at_once(self) -> bool:
        """Has the client got all the tokens that it may get? Then no replica is asked any more."""
        exchange, request = self._exchange, self._request
        continuation = exchange.continuation
        cut = continuation.cut() if continuation is not None else None
        if continuation is None or cut is None or cut.had or cut.num_tokens < request.max_tokens:
            return False
        usage = exchange.reader.usage() if exchange.reader else None
        await self._end_at_once(resumed(request, continuation, cut, usage))
        return True

    async def _end_at_once(self, further: Resumed) -> None:
        exchange = self._exchange
        reader = exchange.reader = new_reader(exchange, self._request, further, version=exchange.record.version)
        last = exchange.output.last([*ends_at_once(reader)], reader)
        exchange.on_output()
        exchange.done()
        await exchange.output.send_last(last)

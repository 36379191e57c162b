"""The gateway's side of the brain: a request submits, waits, and has a grant. Lives on the event loop.

The brain is in this process (`BrainHost.open`), or behind a socket: a `Link` is all that is known of it here.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from billing.services.ledger import UsageDraft
from headway import env
from headway.errors import HeadwayError
from inference.dispatch.refusals import closing_error, error_of
from inference.gateway.state import ControlState, ReplicaEntry
from inference.policy.brain_tunables import BrainTunables
from inference.policy.decisions import Ask, Decision, Ending, Granted, Park, Queued, RateView, Reason, Refused, RetryKind, Usage

log = structlog.get_logger(__name__)

# An answer that has no decision of its own (an error, a list) waits so long for its x-ratelimit headers.
RATES_WITHIN_S = 0.25


def brain_tunables_from_env() -> BrainTunables:
    default = BrainTunables()
    return BrainTunables(
        queue_timeout_s=env.seconds("HEADWAY_QUEUE_TIMEOUT_S", default.queue_timeout_s),
        batch_queue_timeout_s=env.seconds("HEADWAY_BATCH_QUEUE_TIMEOUT_S", default.batch_queue_timeout_s),
        parked_timeout_s=env.seconds("HEADWAY_PARKED_TIMEOUT_S", default.parked_timeout_s, at_least=1.0),
        replica_hold_s=env.seconds("HEADWAY_REPLICA_HOLD_S", default.replica_hold_s),
        restart_wait_s=env.seconds("HEADWAY_RESTART_WAIT_S", default.restart_wait_s),
        no_replica_retry_after_s=env.seconds(
            "HEADWAY_NO_REPLICA_RETRY_AFTER_S", default.no_replica_retry_after_s, at_least=1.0
        ),
        max_retry_after_s=env.seconds("HEADWAY_MAX_RETRY_AFTER_S", default.max_retry_after_s, at_least=1.0),
    )


class Link(Protocol):
    """A session with the brain, as host.Session; what it decides is delivered to `Dispatcher.deliver`."""

    def submit(self, ask: Ask) -> None: ...
    def first_token(self, request_id: str) -> None: ...
    def progress(self, tokens: Iterable[tuple[str, int]]) -> None: ...
    def end(self, request_id: str, ending: Ending, usage: Usage | None) -> None: ...
    def parked(self, request_id: str, ask: Ask) -> None: ...
    def final(self, draft: UsageDraft) -> None:
        """Its record, after its end."""

    def rates(self, tenant: str, key: str, model: str, answer: Callable[[RateView], None]) -> None:
        """May never be answered."""


class Grant:
    """A slot on a replica, once `Dispatcher.submit` has returned it. Given back once: `give_back`, `finish` or `parked`."""

    __slots__ = (
        "_dispatcher",
        "_is_held",
        "_is_reported",
        "decision",
        "draft",
        "num_tokens",
        "on_cut",
        "on_park",
        "queue_ms",
        "replica",
    )

    def __init__(self, dispatcher: "Dispatcher", decision: Granted, replica: ReplicaEntry) -> None:
        self.decision, self.replica = decision, replica
        self.queue_ms = round(decision.waited_s * 1000)
        self.on_park: Callable[[], object] | None = None
        """Called when a more urgent request needs the slot; answered by `parked`, or by the end if that is near."""
        self.on_cut: Callable[[], object] | None = None
        """Called when its slot may have been given to another: the answer is to end."""
        self.num_tokens: Callable[[], int] | None = None
        """Made so far, over all attempts of the request; asked four times a second."""
        self.draft: Callable[[], UsageDraft] | None = None
        """The request's record as it stands; asked once, when it has made tokens."""
        self._dispatcher = dispatcher
        self._is_held, self._is_reported = True, False

    def first_token(self) -> None:
        if self._is_held and not self._is_reported:
            self._is_reported = True
            self._dispatcher.link.first_token(self.decision.id)

    def give_back(self, ending: Ending, reason: str = "") -> None:
        """The attempt has ended, the request has not: it may `submit` again. Again: nothing happens."""
        if self._let_go():
            if ending is Ending.FAILED:
                log.warning("replica_failed_a_request", replica=self.replica.id, reason=reason)
            self._dispatcher.link.end(self.decision.id, ending, None)

    def _let_go(self) -> bool:
        held, self._is_held = self._is_held, False
        self.on_park = self.on_cut = self.num_tokens = self.draft = None  # nobody asks any more; each holds its request
        if held:
            self._dispatcher.running.pop(self.decision.id, None)
        return held


class _Waiter:
    __slots__ = ("future", "model", "on_queued")

    def __init__(self, model: str, future: "asyncio.Future[Granted]", on_queued: Callable[[Queued], None] | None) -> None:
        self.model, self.future, self.on_queued = model, future, on_queued


class Dispatcher:
    """Its methods belong to one event loop."""

    def __init__(self, state: ControlState, link: Link | None = None) -> None:
        self.link: Link
        if link is not None:
            self.link = link
        self.running: dict[str, Grant] = {}
        self._state = state
        self._waiters: dict[str, _Waiter] = {}
        self._open: set[str] = set()  # reserved at the brain, or about to be
        self._is_closed = False

    async def submit(self, ask: Ask, on_queued: Callable[[Queued], None] | None = None) -> Grant:
        """Wait for a slot on a replica of `ask.model`; `on_queued` is told where it stands, now and then.

        Raises what refusals.py makes of a refusal. Cancelling the task leaves the queue and leaks nothing, in whatever turn
        of the loop it happens; what was reserved stays so until `settle`, except after a refusal.
        """
        return await self._wait(ask, on_queued, self.link.submit)

    async def resubmit_parked(self, grant: Grant, ask: Ask, on_queued: Callable[[Queued], None] | None = None) -> Grant:
        """Give a slot up for a more urgent request, and wait for another with what is left."""
        grant._let_go()
        return await self._wait(ask, on_queued, lambda ask: self.link.parked(ask.id, ask))

    async def _wait(self, ask: Ask, on_queued: Callable[[Queued], None] | None, say: Callable[[Ask], None]) -> Grant:
        if self._is_closed:
            raise closing_error()
        future: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._waiters[ask.id] = _Waiter(ask.model, future, on_queued)
        self._open.add(ask.id)
        grant: Grant | None = None
        try:
            say(ask)
            decision = future.result() if future.done() else await future
            grant = self._granted(decision, ask)
        finally:
            self._waiters.pop(ask.id, None)
            if grant is None and ask.id in self._open:
                # Cancelled, waiting or just granted: it gives up its place or its slot, and says what it used in `settle`.
                self.link.end(ask.id, Ending.NEUTRAL, None)
        return grant

    def _granted(self, decision: Granted, ask: Ask) -> Grant:
        entry = self._state.replica(decision.replica)
        if entry is None:
            # The brain knows more than we do: its news reach us within the feed's next look.
            refusal = Refused(ask.id, Reason.NO_REPLICA, 1.0, RetryKind.ESTIMATE)
            raise error_of(refusal, ask.model)
        grant = self.running[ask.id] = Grant(self, decision, entry)
        return grant

    def settle(self, request_id: str, ending: Ending, usage: Usage, draft: UsageDraft | None = None) -> None:
        """The request has ended: its slot, if it has one, is free, and what it really used counts. Again: nothing happens.

        `draft`: its record, of which the brain keeps a copy until the ledger has it.
        """
        grant = self.running.get(request_id)
        if grant is not None:
            grant._let_go()
        if request_id in self._open:
            self._open.discard(request_id)
            self.link.end(request_id, ending, usage)
            if draft is not None:
                self.link.final(draft)

    async def rates(self, tenant: str, key: str, model: str) -> RateView | None:
        """How the limits of this key stand; None: nobody says in time."""
        if not self._state.terms(tenant).limits:
            return None
        told: asyncio.Future[RateView] = asyncio.get_running_loop().create_future()
        self.link.rates(tenant, key, model, lambda rates: None if told.done() else told.set_result(rates))
        if told.done():
            return told.result()
        try:
            return await asyncio.wait_for(told, RATES_WITHIN_S)
        except TimeoutError:
            return None

    def report_progress(self) -> None:
        """Called four times a second: how far those are that run."""
        tokens = [(name, grant.num_tokens()) for name, grant in self.running.items() if grant.num_tokens is not None]
        if tokens:
            self.link.progress(tokens)

    def draft_of(self, request_id: str) -> UsageDraft | None:
        """Of one that runs: its record as it stands."""
        grant = self.running.get(request_id)
        return grant.draft() if grant is not None and grant.draft is not None else None

    def deliver(self, decisions: list[Decision]) -> None:
        """From the brain."""
        for decision in decisions:
            if isinstance(decision, Park):
                grant = self.running.get(decision.id)
                if grant is not None and grant.on_park is not None:
                    grant.on_park()
                continue
            waiter = self._waiters.get(decision.id)
            if isinstance(decision, Refused):
                self._open.discard(decision.id)
            # Done without a result read: its task was cancelled in this turn, and says so when it runs.
            if waiter is None or waiter.future.done():
                continue
            if isinstance(decision, Granted):
                waiter.future.set_result(decision)
            elif isinstance(decision, Queued):
                if waiter.on_queued is not None:
                    waiter.on_queued(decision)
            else:
                waiter.future.set_exception(error_of(decision, waiter.model))

    def refuse(self, request_id: str, error: HeadwayError) -> None:
        """From a link that has nobody to ask; nothing is reserved."""
        self._open.discard(request_id)
        waiter = self._waiters.get(request_id)
        if waiter is not None and not waiter.future.done():
            waiter.future.set_exception(error)

    def cut_running(self) -> None:
        """From a link that was cut off for too long."""
        for grant in list(self.running.values()):
            if grant.on_cut is not None:
                grant.on_cut()

    def close(self) -> None:
        """Refuse all who wait and all who come; what runs may run on."""
        self._is_closed = True
        for waiter in list(self._waiters.values()):
            if not waiter.future.done():
                waiter.future.set_exception(closing_error())

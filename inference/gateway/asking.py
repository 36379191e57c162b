"""What one request asks the brain: its terms, its ask, the slot it is granted, and what was said of its limits."""

from headway.errors import Unavailable
from inference.dispatch.dispatcher import Grant
from inference.gateway.attempt import AttemptFailed
from inference.gateway.continuation import Continuation
from inference.gateway.entries import Principal
from inference.gateway.openai_errors import refusal_of
from inference.gateway.parts import GatewayParts
from inference.gateway.record import DEADLINE, Record
from inference.gateway.requests import GenerationRequest
from inference.gateway.resume import can_resume
from inference.gateway.tenant_rows import net_price
from inference.gateway.version_wish import ANY
from inference.policy.decisions import NO_MODEL, Ask, Queued, RateView, Tier, TokenPrice


class Asking:
    """`set_terms` first; then `submit`, once for each attempt."""

    def __init__(
        self, parts: GatewayParts, principal: Principal, record: Record, *, request_id: str, max_wait_s: float | None
    ) -> None:
        """`max_wait_s`: in the queue; None: as its tier does."""
        self._parts, self._principal, self._record = parts, principal, record
        self._request_id, self._max_wait_s = request_id, max_wait_s
        self.repeat_key = b""
        """Of the client's Idempotency-Key, if it sent one."""
        self.wish = ANY
        self.price = TokenPrice()
        self.rates: RateView | None = None
        """How its limits stood when that was told last."""
        self.queued: Queued | None = None
        """Where it stands in the queue, until its client was told."""
        self.parked: Grant | None = None
        """Whose slot is to be given up for a new one."""
        self.grant: Grant | None = None
        self.waited_s = 0.0

    def on_queued(self, queued: Queued) -> None:
        self.queued = queued
        self.rates = queued.rates or self.rates

    def learn_rates(self, told: object) -> None:
        """Of what a refusal carries."""
        if isinstance(told, RateView):
            self.rates = told

    def set_terms(self, request: GenerationRequest) -> None:
        """The tier that its plan and its key allow, and what tokens cost there."""
        record, state = self._record, self._parts.state
        ceiling = max(state.terms(self._principal.tenant_id).tier_ceiling, self._principal.key.tier_ceiling)
        record.asked_tier = request.tier
        record.tier = max(Tier[request.tier.upper()], ceiling).name.lower()
        now_s = self._parts.clock.now().timestamp()
        record.price_version, list_price = state.price(request.model, record.tier, now_s=now_s)
        if record.price_version:
            record.discount_percent = state.facts(self._principal.tenant_id).discount_percent
        self.price = net_price(list_price, record.discount_percent)

    async def count_unknown(self) -> None:
        """A request for a model that nobody knows counts on limits as any other does. Raises RateLimited at one."""
        of, record = self._principal, self._record
        if not self._parts.state.terms(of.tenant_id).limits:
            return
        ask = Ask(self._request_id, NO_MODEL, of.tenant_id, of.key_id, Tier[record.tier.upper()])
        try:
            await self._parts.dispatcher.submit(ask)
        except Unavailable as error:  # it was counted, or nobody is there to count: the client is told what is wrong
            self.rates = None
            self.learn_rates(error.data.get("rates"))

    def ask(
        self,
        request: GenerationRequest,
        blocks: tuple[int, ...],
        *,
        excluded: frozenset[str],
        begun: Continuation | None,
        made_tokens: int,
        waits_for_restart: bool,
        may_change_version: bool,
    ) -> Ask:
        """`begun`: the answer that goes on, of which `made_tokens` are made."""
        return Ask(
            id=self._request_id,
            model=request.model,
            tenant=self._principal.tenant_id,
            key=self._principal.key_id,
            tier=Tier[self._record.tier.upper()],
            prompt_tokens=request.prompt_tokens_bound,
            likely_prompt_tokens=request.likely_prompt_tokens,
            max_tokens=request.max_tokens * request.num_choices - made_tokens,
            may_shorten=not request.names_limit,
            price=self.price,
            blocks=blocks,
            excluded=excluded,
            can_park=can_resume(request),
            repeat_key=self.repeat_key,
            waits_for_restart=waits_for_restart,
            deadline_s=None if self._max_wait_s is None else self._parts.clock.monotonic_s() + self._max_wait_s,
            zone=self._parts.zone,
            conversation=b"" if begun is not None else self.wish.conversation,
            version=begun.version if begun is not None else self.wish.version,
            may_change_version=may_change_version,
        )

    async def submit(self, ask: Ask, last: AttemptFailed | None, *, goes_on: bool) -> Grant:
        """Where no further replica can take over, the failure of the last one is the answer."""
        clock = self._parts.clock
        asked_s = clock.monotonic_s()
        self.grant = None
        try:
            grant = self.grant = await self._granted(ask)
        except Unavailable as error:
            if last is not None:
                raise last from None
            if goes_on:  # it was parked, and is no refusal any more
                raise AttemptFailed(DEADLINE, f"parked for too long: {error.message}", refusal_of(error)) from None
            raise
        self.waited_s += clock.monotonic_s() - asked_s
        self.rates = grant.decision.rates
        self._record.route_reason = grant.decision.reason.value
        self._record.queue_ms += grant.queue_ms
        return grant

    async def _granted(self, ask: Ask) -> Grant:
        parked, self.parked = self.parked, None
        if parked is not None:
            return await self._parts.dispatcher.resubmit_parked(parked, ask, self.on_queued)
        return await self._parts.dispatcher.submit(ask, self.on_queued)

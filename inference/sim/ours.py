"""Our policies as fronts: the router alone behind one FIFO queue, and the whole brain as the dispatcher runs it."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from inference.policy.brain import Brain
from inference.policy.brain_tunables import BrainTunables
from inference.policy.decisions import (
    Ask,
    Decision,
    Ending,
    Granted,
    RateView,
    StateFrame,
    TenantTerms,
    Tier,
    TierTargets,
    Usage,
)
from inference.policy.routing import Choice, Router, RoutingTunables
from inference.sim.fronts import FrontContext

MODEL = "model"
TARGETS = {
    Tier.INTERACTIVE: TierTargets(ttft_s=0.5, inter_token_s=0.05),
    Tier.STANDARD: TierTargets(ttft_s=2.0, inter_token_s=0.05),
    Tier.BATCH: TierTargets(ttft_s=30.0, inter_token_s=0.1),
}


class RouterFront:
    """Routing without fairness, limits or a batch cap: shows what routing alone does."""

    wants_progress = True

    def __init__(self, context: FrontContext, tunables: RoutingTunables | None = None) -> None:
        self.router = Router(_fitted(tunables, context))
        self.router.set_replicas(context.specs, 0.0)
        self._waiting: deque[tuple[Ask, float]] = deque()

    def submit(self, ask: Ask, now_s: float) -> Sequence[Decision]:
        self._waiting.append((ask, now_s))
        return self._serve(now_s)

    def parked(self, request_id: str, ask: Ask, now_s: float) -> Sequence[Decision]:
        raise AssertionError("the router parks nothing")

    def first_token(self, request_id: str, now_s: float) -> None:
        self.router.first_token(request_id, now_s)

    def progress(self, request_id: str, completion_tokens: int, now_s: float) -> None:
        self.router.progress(request_id, completion_tokens, now_s)

    def end(self, request_id: str, ending: Ending, usage: Usage, now_s: float) -> Sequence[Decision]:
        self.router.end(request_id, ending, usage, now_s)
        return self._serve(now_s)

    def frame(self, replica: str, frame: StateFrame, now_s: float) -> Sequence[Decision]:
        self.router.frame(replica, frame, now_s)
        return []

    def expire(self, now_s: float) -> Sequence[Decision]:
        return self._serve(now_s)

    def next_event_s(self, now_s: float) -> float | None:
        return self.router.next_event_s(now_s)

    def _serve(self, now_s: float) -> list[Decision]:
        decisions: list[Decision] = []
        while self._waiting:
            ask, since_s = self._waiting[0]
            choice = self.router.choose(ask, now_s)
            if choice is None:
                break
            self._waiting.popleft()
            self.router.begin(ask, choice, now_s)
            decisions.append(_granted(ask, choice, now_s - since_s))
        return decisions


class BrainFront:
    """Everything on: limits (none, unless terms say so), tiers, fairness, batch cap, parking, routing."""

    wants_progress = True

    def __init__(
        self,
        context: FrontContext,
        *,
        routing: RoutingTunables | None = None,
        tunables: BrainTunables | None = None,
        targets: Mapping[Tier, TierTargets] | None = None,
        terms: Sequence[TenantTerms] = (),
        max_queued: int = 10_000,
    ) -> None:
        fitted = _fitted(routing, context)
        self.brain = Brain(tunables or BrainTunables(), lambda model: Router(fitted))
        self.brain.set_pool(MODEL, max_queued=max_queued, targets=targets or TARGETS, now_s=0.0)
        self.brain.set_replicas(MODEL, context.specs, 0.0)
        for one in terms:
            self.brain.set_terms(one, 0.0)

    def submit(self, ask: Ask, now_s: float) -> Sequence[Decision]:
        return self.brain.submit(ask, now_s)

    def parked(self, request_id: str, ask: Ask, now_s: float) -> Sequence[Decision]:
        return self.brain.parked(request_id, ask, now_s)

    def first_token(self, request_id: str, now_s: float) -> None:
        self.brain.first_token(request_id, now_s)

    def progress(self, request_id: str, completion_tokens: int, now_s: float) -> None:
        self.brain.progress(request_id, completion_tokens, now_s)

    def end(self, request_id: str, ending: Ending, usage: Usage, now_s: float) -> Sequence[Decision]:
        return self.brain.end(request_id, ending, usage, now_s)

    def frame(self, replica: str, frame: StateFrame, now_s: float) -> Sequence[Decision]:
        return self.brain.frame(replica, frame, now_s)

    def expire(self, now_s: float) -> Sequence[Decision]:
        return self.brain.expire(now_s)

    def next_event_s(self, now_s: float) -> float | None:
        return self.brain.next_event_s(now_s)


def _fitted(tunables: RoutingTunables | None, context: FrontContext) -> RoutingTunables:
    """The prefix index speaks of the workload's blocks."""
    return replace(tunables or RoutingTunables(), block_tokens=context.content_block_tokens)


def _granted(ask: Ask, choice: Choice, waited_s: float) -> Granted:
    return Granted(
        id=ask.id,
        replica=choice.replica,
        reason=choice.reason,
        tier=ask.tier,
        max_tokens=ask.max_tokens,
        waited_s=waited_s,
        predicted_ttft_s=choice.predicted_ttft_s,
        predicted_cached_tokens=choice.cached_tokens,
        engine_priority=0,
        rates=RateView(),
    )

"""One look at a rollout: what its engines and its traffic say, and the move that follows. Decisions are policy's."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from inference.models import Pool
from inference.policy.judging import joined, judge, judge_health
from inference.policy.rollout import Next, Plan, ShadowStep, Step, next_step
from inference.policy.rollout_gates import Outcome, Verdict
from inference.rollout_models import Rollout, RolloutState
from inference.services.rollouts.approving import ask_for_approval, waits_for_approval
from inference.services.rollouts.eval_results import has_eval_gates, judge_eval_gates
from inference.services.rollouts.evidence import num_taken, traffic
from inference.services.rollouts.fleet import Fleet, fleet_of, needed_replicas, settle_fleet, settle_stable
from inference.services.rollouts.going_back import go_back, tick_way_back
from inference.services.rollouts.moves import SYSTEM, change, held_pool, move, note, say, verdict_shown
from inference.services.rollouts.plans import plan_of
from inference.services.rollouts.shadow_results import judge_shadow
from inference.services.rollouts.stable import make_stable
from tenants.services.operations import operations_tenant

_S = RolloutState


@dataclass(frozen=True)
class Sight:
    """What one look saw."""

    state: RolloutState
    place: tuple[object, ...]
    """Where the rollout was: see `_place_of`."""
    plan: Plan
    fleet: Fleet
    verdict: Verdict
    num_samples: int
    shown: dict[str, Any]
    now: datetime
    trouble: str = ""
    """Why replicas could not be placed."""

    @property
    def reasons(self) -> str:
        return "; ".join(self.verdict.reasons)


def tick_rollout(rollout: Rollout, *, now: datetime) -> None:
    """Evidence is read before anything is held; what was decided on it is done only if the rollout is still where it was."""
    sight = look_at_rollout(rollout, now=now)
    with transaction.atomic():
        pool = held_pool(rollout)
        if _place_of(rollout) != sight.place or not rollout.is_open:
            return
        if rollout.state == _S.ROLLING_BACK:
            tick_way_back(rollout, pool, now=now)
            return
        trouble = settle_fleet(pool, now=now)
        if _is_measured_anew(rollout, now=now):
            return
        change(rollout, verdict=sight.shown)
        if sight.verdict.outcome is Outcome.BREACH:
            go_back(rollout, pool=pool, actor=SYSTEM, reason=sight.reasons, now=now, evidence=sight.shown)
            return
        _STEPS[sight.state](rollout, pool, sight, trouble)
        settle_fleet(pool, now=now)


def _is_measured_anew(rollout: Rollout, *, now: datetime) -> bool:
    """Because engines were taken from it, or from the stable version: what failed with them says nothing of either."""
    taken = num_taken(rollout)
    if taken == rollout.engines_taken:
        return False
    change(rollout, engines_taken=taken)
    if rollout.measured_since is None:
        return False
    change(rollout, measured_since=now)
    reason = "measured anew: engines went with their node, or were stopped by hand"
    note(rollout, "note", actor=SYSTEM, reason=reason, now=now)
    return True


def _place_of(rollout: Rollout) -> tuple[object, ...]:
    """What evidence is read for: of another share or window, even in the same step, it says nothing."""
    return rollout.state, rollout.step, rollout.share_ppm, rollout.shadow_share_ppm, rollout.measured_since


def look_at_rollout(rollout: Rollout, *, now: datetime) -> Sight:
    """Reads, and changes nothing."""
    pool = Pool.objects.select_related("model", "version").get(model_id=rollout.model_id)
    plan = plan_of(rollout.schedule, rollout.gates)
    fleet = fleet_of(pool, rollout.to_version, since=rollout.started_at, now=now)
    verdicts = [judge_health(plan.gates, fleet.health(1 if rollout.share_ppm else 0))]
    num_samples, extra = 0, {}
    if rollout.share_ppm and rollout.measured_since is not None:
        seen = traffic(rollout, now=now)
        verdicts.append(judge(plan.gates, stable=seen.stable, candidate=seen.candidate))
        num_samples = seen.candidate.attempts
        extra = {"seen": seen.seen_share(plan.gates.confidence)}
    elif rollout.shadow_share_ppm and rollout.measured_since is not None:
        shadow = judge_shadow(rollout, plan, now=now)
        verdicts.append(shadow.verdict)
        num_samples = shadow.num_samples
    if rollout.state == _S.EVALS:
        verdicts.append(judge_eval_gates(rollout))
    verdict = joined(*verdicts)
    return Sight(
        state=RolloutState(rollout.state),
        place=_place_of(rollout),
        plan=plan,
        fleet=fleet,
        verdict=verdict,
        num_samples=num_samples,
        shown={**verdict_shown(verdict, now=now), **extra},
        now=now,
    )


def _step_staging(rollout: Rollout, pool: Pool, sight: Sight, trouble: str) -> None:
    if sight.fleet.begun:
        _move(rollout, pool, sight, _S.CERTIFYING, "its weights are on a node")
    else:
        say(rollout, trouble or _waits_for(sight))


def _step_certifying(rollout: Rollout, pool: Pool, sight: Sight, trouble: str) -> None:
    if sight.fleet.certified:
        _leave(rollout, pool, sight, "a replica of it is certified")
    else:
        say(rollout, trouble or _waits_for(sight))


def _step_shadow(rollout: Rollout, pool: Pool, sight: Sight, trouble: str) -> None:
    shadow = sight.plan.shadow
    assert shadow is not None, "a rollout without one does not come here"
    if not rollout.shadow_share_ppm:
        if not sight.fleet.ready:
            say(rollout, trouble or _waits_for(sight))
            return
        operations_tenant(actor=SYSTEM)  # whose work it is
        change(rollout, pool=pool, measured_since=sight.now, shadow_share_ppm=shadow.share_ppm)
        note(rollout, "share", actor=SYSTEM, reason=f"{_percent(shadow.share_ppm)} of the requests are mirrored", now=sight.now)
        return
    if _is_over(rollout, sight, shadow):
        _leave(rollout, pool, sight, "mirrored requests pass all gates")
    elif not rollout.shadow_micros_left:
        say(rollout, f"{rollout.reason}; gateways have taken all that mirrored requests may cost")


def _step_evals(rollout: Rollout, pool: Pool, sight: Sight, trouble: str) -> None:
    if sight.verdict.outcome is Outcome.PASS and sight.fleet.ready:
        _leave(rollout, pool, sight, "all eval gates pass")
    else:
        say(rollout, trouble or (sight.reasons if sight.fleet.ready else _waits_for(sight)))


def _step_canary(rollout: Rollout, pool: Pool, sight: Sight, trouble: str) -> None:
    steps, needed = sight.plan.steps, needed_replicas(rollout, pool)
    is_full = sight.fleet.ready >= needed
    if rollout.step >= len(steps):
        if waits_for_approval(rollout):  # the rule is younger than its last step
            ask_for_approval(rollout, now=sight.now)
        elif is_full:
            _promote(rollout, pool, sight)
        else:
            say(rollout, trouble or f"before it takes everything: {sight.fleet.ready} of {needed} replicas serve")
        return
    step = steps[rollout.step]
    if rollout.share_ppm != step.share_ppm:
        if is_full:
            _give_share(rollout, pool, sight, step)
        else:
            say(rollout, trouble or f"before {_percent(step.share_ppm)}: {sight.fleet.ready} of {needed} replicas serve")
        return
    if _is_over(rollout, sight, step):
        if step is steps[-1] and waits_for_approval(rollout):
            ask_for_approval(rollout, now=sight.now)
            return
        note(rollout, "step", actor=SYSTEM, reason=f"{_percent(step.share_ppm)} passed", now=sight.now, evidence=sight.shown)
        change(rollout, step=rollout.step + 1, reason="all gates pass")


def _step_paused(rollout: Rollout, pool: Pool, sight: Sight, trouble: str) -> None:
    """Its gates are watched, and nothing goes on."""


def _is_over(rollout: Rollout, sight: Sight, step: Step | ShadowStep) -> bool:
    assert rollout.measured_since is not None
    elapsed_s = (sight.now - rollout.measured_since).total_seconds()
    decision = next_step(step, sight.verdict, elapsed_s=elapsed_s, num_samples=sight.num_samples)
    say(rollout, decision.reason)
    return decision.next is Next.GO_ON


def _give_share(rollout: Rollout, pool: Pool, sight: Sight, step: Step) -> None:
    share = _percent(step.share_ppm)
    change(rollout, pool=pool, share_ppm=step.share_ppm, measured_since=sight.now, reason=f"{share} of the requests go there")
    note(rollout, "share", actor=SYSTEM, reason=f"{share} of the requests go to {rollout.to_version}", now=sight.now)


def _leave(rollout: Rollout, pool: Pool, sight: Sight, reason: str) -> None:
    """To the next of its states that the plan has."""
    after = {_S.CERTIFYING: 0, _S.SHADOW: 1, _S.EVALS: 2}[sight.state]
    ways = [(_S.SHADOW, sight.plan.shadow is not None), (_S.EVALS, has_eval_gates(rollout)), (_S.CANARY, True)]
    to = next(state for state, is_asked in ways[after:] if is_asked)
    may_cost: dict[str, int] = {}
    if to is _S.SHADOW and sight.plan.shadow is not None:  # once in its life: gateways take from it (services/shadow_budget.py)
        may_cost = {"shadow_micros_left": sight.plan.shadow.max_usd_micros}
    _move(rollout, pool, sight, to, reason, shadow_share_ppm=0, **may_cost)


def _promote(rollout: Rollout, pool: Pool, sight: Sight) -> None:
    old, now = rollout.from_version, sight.now
    ended = {"share_ppm": 0, "promoted_at": now, "ended_at": now}
    make_stable(pool, rollout.to_version)
    _move(
        rollout,
        pool,
        sight,
        _S.PROMOTED,
        f"{rollout.to_version} is stable; {old} is kept warm for {rollout.window_s} s",
        **ended,
    )
    settle_stable(pool)


def _move(rollout: Rollout, pool: Pool, sight: Sight, to: RolloutState, reason: str, **changes: Any) -> None:
    move(rollout, to, pool=pool, actor=SYSTEM, reason=reason, now=sight.now, evidence=sight.shown, **changes)


def _waits_for(sight: Sight) -> str:
    return "; ".join(sight.fleet.reasons) or "waiting for a replica of it"


def _percent(ppm: int) -> str:
    return f"{ppm / 10_000:g} %"


_STEPS: dict[RolloutState, Callable[[Rollout, Pool, Sight, str], None]] = {
    _S.STAGING: _step_staging,
    _S.CERTIFYING: _step_certifying,
    _S.SHADOW: _step_shadow,
    _S.EVALS: _step_evals,
    _S.CANARY: _step_canary,
    _S.PAUSED: _step_paused,
}

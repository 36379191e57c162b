"""Rollouts as commands, the API and pages show them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from inference.models import Pool
from inference.policy.rollout import PPM, Plan
from inference.rollout_models import Rollout, RolloutEvent, RolloutState
from inference.services.rollouts.approving import is_to_be_promoted, may_be_promoted, waits_for_approval
from inference.services.rollouts.eval_results import has_eval_gates
from inference.services.rollouts.fleet import is_way_back_open
from inference.services.rollouts.plans import gates_shown, plan_of
from inference.services.version_labels import version_label

_S = RolloutState
NEWEST_EVENTS = 200


@dataclass(frozen=True)
class StepView:
    name: str
    state: str
    """done, now, ahead"""
    share_ppm: int = 0


@dataclass(frozen=True)
class RolloutView:
    rollout: Rollout
    plan: Plan
    steps: list[StepView]
    findings: list[dict[str, Any]]
    seen: dict[str, Any] | None
    """Of the share that is really seen: {share, low, high, requests}."""
    may: dict[str, bool]
    """What an operator can do with it now."""

    @property
    def label_from(self) -> str:
        return version_label(self.rollout.from_version)

    @property
    def label_to(self) -> str:
        return version_label(self.rollout.to_version)

    @property
    def since(self) -> datetime:
        return self.rollout.changed_at


def rollouts(*, public_id: str = "", is_open: bool | None = None) -> QuerySet[Rollout]:
    """Newest first. `public_id` blank: of all models; `is_open` None: ended ones too."""
    rows = Rollout.objects.select_related("model", "from_version__model", "to_version__model").order_by("-id")
    if public_id:
        rows = rows.filter(model__public_id=public_id)
    if is_open is not None:
        ended = [state for state in RolloutState if state in {_S.PROMOTED, _S.ROLLED_BACK, _S.ABORTED}]
        rows = rows.exclude(state__in=ended) if is_open else rows.filter(state__in=ended)
    return rows


def every_event(rollout: Rollout) -> QuerySet[RolloutEvent]:
    return RolloutEvent.objects.filter(rollout=rollout)


def events_of(rollout: Rollout) -> list[RolloutEvent]:
    """The newest, newest first."""
    return list(every_event(rollout).order_by("-id")[:NEWEST_EVENTS])


def view_of(rollout: Rollout, *, now: datetime) -> RolloutView:
    plan, verdict = plan_of(rollout.schedule, rollout.gates), rollout.verdict or {}
    return RolloutView(
        rollout=rollout,
        plan=plan,
        steps=_steps(rollout, plan),
        findings=verdict.get("findings", []),
        seen=verdict.get("seen"),
        may=_may(rollout, now),
    )


def shown(rollout: Rollout, *, now: datetime) -> dict[str, Any]:
    """For programs. Shares are in millionths; times in ISO 8601, UTC."""
    view = view_of(rollout, now=now)
    return {
        "id": rollout.pk,
        "model": rollout.model.public_id,
        "from": view.label_from,
        "to": view.label_to,
        "state": rollout.state,
        "reason": rollout.reason,
        "since": rollout.changed_at.isoformat(),
        "paused_from": rollout.paused_from or None,
        "step": rollout.step,
        "share_ppm": rollout.share_ppm,
        "share_seen": view.seen,
        "schedule": rollout.schedule,
        "gates": gates_shown(view.plan.gates),
        "findings": view.findings,
        "window_s": rollout.window_s,
        "kept_warm": rollout.kept_warm,
        "scheduled_for": _time(rollout.scheduled_for),
        "started_at": _time(rollout.started_at),
        "breached_at": _time(rollout.breached_at),
        "promoted_at": _time(rollout.promoted_at),
        "ended_at": _time(rollout.ended_at),
        "created_by": rollout.created_by,
        "approved_by": rollout.approved_by or None,
        "approved_at": _time(rollout.approved_at),
        "may": view.may,
    }


def event_shown(event: RolloutEvent) -> dict[str, Any]:
    return {
        "at": event.at.isoformat(),
        "kind": event.kind,
        "from": event.from_state,
        "to": event.to_state,
        "actor": event.actor,
        "reason": event.reason,
        "evidence": event.evidence,
    }


def _steps(rollout: Rollout, plan: Plan) -> list[StepView]:
    states: list[tuple[RolloutState, str]] = [(_S.STAGING, "staging"), (_S.CERTIFYING, "certifying")]
    if plan.shadow is not None:
        states.append((_S.SHADOW, "shadow"))
    if rollout.state == _S.EVALS or has_eval_gates(rollout):
        states.append((_S.EVALS, "evals"))
    names = [(name, 0) for _, name in states]
    names += [(f"{100 * step.share_ppm / PPM:g} %", step.share_ppm) for step in plan.steps] + [("100 %", PPM)]
    place = _place(rollout, [state for state, _ in states], len(plan.steps))
    return [
        StepView(name, "done" if n < place else "now" if n == place else "ahead", share)
        for n, (name, share) in enumerate(names)
    ]


def _place(rollout: Rollout, before: list[RolloutState], steps: int) -> int:
    """How many of its steps are behind it; of one that went back: none is the one it is at."""
    state = RolloutState(rollout.paused_from if rollout.state == _S.PAUSED else rollout.state)
    if state == _S.PROMOTED:
        return len(before) + steps + 1
    if state == _S.CANARY:
        return len(before) + min(rollout.step, steps)
    return before.index(state) if state in before else -1


def _may(rollout: Rollout, now: datetime) -> dict[str, bool]:
    state = RolloutState(rollout.state)
    runs = state in {_S.STAGING, _S.CERTIFYING, _S.SHADOW, _S.EVALS, _S.CANARY}
    is_stable = Pool.objects.filter(model_id=rollout.model_id, version_id=rollout.to_version_id).exists()
    is_back_open = state == _S.PROMOTED and is_stable and is_way_back_open(rollout, now=now)
    return {
        "start": state == _S.DRAFT,
        "pause": runs,
        "resume": state == _S.PAUSED or (state == _S.ROLLING_BACK and is_stable),
        "approve": may_be_promoted(rollout) and waits_for_approval(rollout),
        "promote": may_be_promoted(rollout) and not is_to_be_promoted(rollout),
        "roll_back": runs or state == _S.PAUSED or is_back_open,
        "abort": runs or state in {_S.DRAFT, _S.PAUSED},
    }


def _time(at: datetime | None) -> str | None:
    return at.isoformat() if at else None

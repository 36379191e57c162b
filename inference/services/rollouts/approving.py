"""The two-person rule: where it is on, a rollout is promoted when an operator beside the one who made it has approved it.

It is a setting of the installation (HEADWAY_TWO_PERSON_RULE): what one operator could switch off on a page would bind nobody.
Ways back never wait for anybody. Persons are operators' accounts; a command runs as a user of the machine, so it names one.
"""

from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from inference.errors import RolloutMoved, SecondPersonNeeded
from inference.rollout_models import Rollout, RolloutState
from inference.services.rollouts.moves import SYSTEM, change, held_pool, note, say
from inference.services.rollouts.telling import ask_operators
from tenants.services.audit import record_audit

_S = RolloutState
CERTIFIED = frozenset({_S.SHADOW, _S.EVALS, _S.CANARY})
"""Before that no engine of it was certified: there is nothing to approve or to promote."""
PERSON = "operator:"


def is_rule_on() -> bool:
    return bool(settings.TWO_PERSON_RULE)


def waits_for_approval(rollout: Rollout) -> bool:
    return is_rule_on() and not rollout.approved_by


def may_be_promoted(rollout: Rollout) -> bool:
    return (rollout.paused_from or rollout.state) in CERTIFIED


def is_to_be_promoted(rollout: Rollout) -> bool:
    """Its steps are through, or somebody does not wait for them: it needs nobody's word any more."""
    is_through = rollout.state == _S.CANARY and rollout.step >= len(rollout.schedule["steps"])
    return is_through and not waits_for_approval(rollout)


def check_certified(rollout: Rollout) -> None:
    """Raises RolloutMoved."""
    if not may_be_promoted(rollout):
        state = RolloutState(rollout.paused_from or rollout.state)
        raise RolloutMoved(f"rollout {rollout.pk} is {state.label.lower()}: no replica of it is certified, or it has ended")


def check_maker(actor: str) -> None:
    """Who drafts a rollout: with the rule on somebody with a name. Raises SecondPersonNeeded."""
    if is_rule_on() and not actor.startswith(PERSON):
        raise SecondPersonNeeded("by the two-person rule a rollout is made by an operator with a name: --operator NAME")


def approve_rollout(*, rollout: Rollout, actor: str, reason: str = "") -> None:
    """It is promoted once its steps are through. Raises RolloutMoved, SecondPersonNeeded."""
    with transaction.atomic():
        held_pool(rollout)
        if not is_rule_on():
            raise RolloutMoved("no approval is asked for: the two-person rule is off")
        check_certified(rollout)
        if rollout.approved_by:
            raise RolloutMoved(f"{rollout.approved_by} has approved rollout {rollout.pk}")
        give_approval(rollout, actor=actor, reason=reason, now=timezone.now())


def give_approval(rollout: Rollout, *, actor: str, reason: str, now: datetime) -> None:
    """Call it with the pool held. Nothing where the rule is off, or somebody has. Raises SecondPersonNeeded."""
    if not waits_for_approval(rollout):
        return
    if not actor.startswith(PERSON):
        raise SecondPersonNeeded("by the two-person rule an operator with a name approves it: --operator NAME")
    if actor == rollout.created_by:
        raise SecondPersonNeeded(f"{actor} made rollout {rollout.pk}: another operator approves it")
    change(rollout, approved_by=actor[:200], approved_at=now)
    note(rollout, "approval", actor=actor, reason=reason.strip() or "approved", now=now)
    after: dict[str, Any] = {"made_by": rollout.created_by, "to": str(rollout.to_version), "reason": reason}
    record_audit(actor=actor, action="rollout.approve", target=f"rollout {rollout.pk}", after=after)


def ask_for_approval(rollout: Rollout, *, now: datetime) -> None:
    """Its steps are through. Operators are told once; call it with the pool held."""
    say(rollout, f"all gates pass; an operator other than {rollout.created_by.removeprefix(PERSON)} has to approve it")
    if rollout.approval_asked_at is None:
        change(rollout, approval_asked_at=now)
        note(rollout, "note", actor=SYSTEM, reason="approval is asked for", now=now)
        ask_operators(rollout)

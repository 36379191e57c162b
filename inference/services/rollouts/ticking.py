"""Every few seconds: each rollout goes on or back, and what serves beside the stable versions is settled.

Called by beat through the worker, so by one process at a time; two at once do no harm, as every move expects the state it
starts from.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import Count, F, Q

from headway.errors import HeadwayError
from inference.errors import RolloutMoved
from inference.models import Pool, Replica
from inference.rollout_models import ENDED, Rollout, RolloutState, VersionPin
from inference.services.database_clock import database_now
from inference.services.holding import hold_pool
from inference.services.replicas import LIVE_STATES
from inference.services.rollouts.advancing import tick_rollout
from inference.services.rollouts.fleet import fleet_of, is_way_back_open, settle_fleet, settle_stable
from inference.services.rollouts.going_back import go_back, make_way
from inference.services.rollouts.moves import SYSTEM, held_pool, say
from inference.services.rollouts.operating import begin
from inference.services.rollouts.pins import put_pins_in_force
from inference.services.rollouts.retiring import retire_due

log = structlog.get_logger(__name__)
_S = RolloutState
LONGEST_WINDOW = timedelta(days=30)


def tick(now: datetime | None = None) -> int:
    """Returns how many rollouts were looked at."""
    now = now or database_now()
    rows = Rollout.objects.select_related("model", "from_version", "to_version")
    looked_at = 0
    for rollout in rows.exclude(state__in=[*ENDED, _S.DRAFT]).order_by("id"):
        _alone(lambda rollout=rollout: tick_rollout(rollout, now=now), rollout.pk)  # type: ignore[misc]
        looked_at += 1
    for rollout in rows.filter(state=_S.DRAFT, scheduled_for__lte=now).order_by("id"):
        _alone(lambda rollout=rollout: _begin_scheduled(rollout, now=now), rollout.pk)  # type: ignore[misc]
    for rollout in rows.filter(state=_S.PROMOTED, promoted_at__gte=now - LONGEST_WINDOW).order_by("id"):
        _alone(lambda rollout=rollout: watch_promoted(rollout, now=now), rollout.pk)  # type: ignore[misc]
    retire_due(now=now)
    refill_stable()
    settle_all(now=now)
    put_pins_in_force(now=now)
    return looked_at


def settle_all(*, now: datetime) -> None:
    """Of pools in which a version beside the stable one serves, or is to."""
    beside = Replica.objects.filter(is_wanted=True, state__in=LIVE_STATES, version__isnull=False).exclude(node="")
    beside = beside.exclude(version_id=F("pool__version_id"))
    pinned = VersionPin.objects.filter(version__retired_at=None)
    promoted = Rollout.objects.filter(state=_S.PROMOTED, promoted_at__gte=now - LONGEST_WINDOW)
    wanted = Q(pk__in=beside.values("pool_id")) | Q(model_id__in=pinned.values("model_id"))
    for pool in Pool.objects.filter(wanted | Q(model_id__in=promoted.values("model_id")), version__isnull=False):
        with transaction.atomic():
            settle_fleet(hold_pool(pool.pk), now=now)


def refill_stable() -> None:
    """Ask again for what a stable version is to have and has lost (its zone was emptied by force, its node forgotten).

    Never for fewer, and not of pools that are autoscaled, whose every look does it.
    """
    counts = Q(replicas__version=F("version"), replicas__is_wanted=True, replicas__state__in=LIVE_STATES)
    counts &= Q(replicas__replaced_by="") & ~Q(replicas__node="")
    pools = Pool.objects.filter(version__isnull=False, is_autoscaled=False).annotate(there=Count("replicas", filter=counts))
    for pool in pools.filter(there__lt=F("desired_replicas") + F("warm_replicas")).order_by("id"):
        with transaction.atomic():
            settle_stable(hold_pool(pool.pk))


def watch_promoted(rollout: Rollout, *, now: datetime) -> None:
    """While the way back is open: it is taken when nothing of the new version serves, and the old one could."""
    if not is_way_back_open(rollout, now=now):
        return
    with transaction.atomic():
        pool = held_pool(rollout)
        if rollout.state != _S.PROMOTED or pool.version_id != rollout.to_version_id or not pool.desired_replicas:
            return
        new = fleet_of(pool, rollout.to_version, since=rollout.started_at, now=now)
        old = fleet_of(pool, rollout.from_version, since=None, now=now)
        if new.ready or not old.certified:
            return
        reason = f"no replica of {rollout.to_version} serves any more: {'; '.join(new.reasons) or 'there is none'}"
        make_way(pool, reason=f"rollout {rollout.pk} goes back to {rollout.from_version}: {reason}", now=now)
        go_back(rollout, pool=pool, actor=SYSTEM, reason=reason, now=now)


def _begin_scheduled(rollout: Rollout, *, now: datetime) -> None:
    with transaction.atomic():
        pool = held_pool(rollout)
        if rollout.state == _S.DRAFT:
            try:
                begin(rollout, pool=pool, actor=SYSTEM, reason="its time has come", now=now)
            except RolloutMoved as moved:
                say(rollout, f"its time has come, but {moved.message}")


def _alone(work: Callable[[], None], rollout: int) -> None:
    """One rollout's fault keeps no other from its work."""
    try:
        work()
    except RolloutMoved as moved:
        log.info("rollout_moved_on", rollout=rollout, reason=moved.message)
    except HeadwayError as error:
        log.warning("rollout_not_ticked", rollout=rollout, reason=error.message)
    except Exception:  # the sweep is a boundary: what one rollout runs into is its trouble alone
        log.exception("rollout_tick_failed", rollout=rollout)

"""The autoscaler's tick: what the dispatcher shows, through the policy, to `want`. Thin: policy/autoscale.py decides.

Any number of beats and workers may call it: a look is taken by moving the pool's memory row on, so one of them decides.
In a rollout the load of all versions counts, and the number is the stable version's: as many as all of it needs, so that the
way back finds them. The candidate's follow from it and its share (services/rollouts/fleet.py).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import structlog
from django.db import transaction

from headway.errors import HeadwayError
from inference.models import Pool, Replica, ReplicaState
from inference.policy.autoscale import Decision, PoolSeen, decide
from inference.policy.autoscale_tunables import AutoscaleTunables, ScaleBounds
from inference.policy.autoscale_view import seen_of
from inference.services.autoscale_memory import begin_look, keep
from inference.services.database_clock import database_now
from inference.services.holding import hold_pool
from inference.services.scale_decisions import record_decision
from inference.services.wanted import want_what_fits, wanted_counts

log = structlog.get_logger(__name__)
TUNABLES = AutoscaleTunables()


def autoscale_pools(
    *, shown: Mapping[str, Any] | None, now: datetime | None = None, tunables: AutoscaleTunables = TUNABLES
) -> int:
    """Look at every pool that is autoscaled. `shown`: what the dispatcher shows; None: it does not answer.

    Returns how many pools are to have another number of replicas than before.
    """
    now = now or database_now()
    pools = Pool.objects.filter(is_autoscaled=True, version__isnull=False).select_related("model", "version").order_by("id")
    return sum(_alone(pool, shown, now, tunables) for pool in pools)


def _alone(pool: Pool, shown: Mapping[str, Any] | None, now: datetime, tunables: AutoscaleTunables) -> bool:
    """What one pool runs into (a dispatcher of another release shows other things of it) keeps no other from its look."""
    try:
        return _autoscale(pool, shown, now, tunables)
    except (KeyError, TypeError, ValueError, HeadwayError):
        log.exception("pool_not_looked_at", pool=pool.name)
        return False


def _autoscale(pool: Pool, shown: Mapping[str, Any] | None, now: datetime, tunables: AutoscaleTunables) -> bool:
    with transaction.atomic():
        pool = hold_pool(pool.pk)
        if not pool.is_autoscaled or pool.version is None:
            return False  # switched off since the pools were read
        memory = begin_look(pool=pool, now=now)
        if memory is None:
            return False
        before, _ = wanted_counts(pool, pool.version)
        decision, memory = decide(
            _seen(pool, shown, before),
            memory,
            _bounds(pool),
            serving=before,
            now_s=now.timestamp(),
            tunables=tunables,
        )
        keep(pool=pool, memory=memory)
        reached, problem = _carry_out(pool, decision, in_flight=_in_flight(pool, shown))
        record_decision(
            pool=pool,
            before=before,
            desired=reached,
            reason=decision.why.value,
            at=now,
            evidence=decision.evidence,
            problem=problem,
        )
    if reached != before:
        log.info("pool_scaled", pool=pool.name, before=before, desired=reached, reason=decision.why.value)
    return reached != before


def _bounds(pool: Pool) -> ScaleBounds:
    """While another version serves (a rollout, a pin), the stable one keeps a replica: its requests may come back to it."""
    beside = Replica.objects.filter(pool=pool, is_wanted=True, is_standby=False).exclude(node="").exclude(version=pool.version)
    has_others = beside.exclude(state=ReplicaState.STOPPED).exists()
    least = max(pool.min_replicas, 1) if has_others else pool.min_replicas
    return ScaleBounds(least, max(pool.max_replicas, least), float(pool.idle_before_zero_s))


def _seen(pool: Pool, shown: Mapping[str, Any] | None, serving: int) -> PoolSeen | None:
    pool_shown = _of_pool(pool, shown)
    if shown is None or pool_shown is None:
        return None
    return seen_of(pool_shown, serving=serving, clock=f"{shown.get('holder', '')}/{shown.get('epoch', '')}")


def _of_pool(pool: Pool, shown: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return None if shown is None else shown.get("scaling", {}).get(pool.model.public_id)


def _in_flight(pool: Pool, shown: Mapping[str, Any] | None) -> dict[str, int]:
    of_pool = _of_pool(pool, shown) or {}
    return {replica: one["in_flight"] for replica, one in of_pool.get("replicas", {}).items()}


def _carry_out(pool: Pool, decision: Decision, *, in_flight: dict[str, int]) -> tuple[int, str]:
    """(how many are wanted now, why not more). Where there is no room for all, as many as there is room for."""
    assert pool.version is not None
    fitted = want_what_fits(
        pool=pool, version=pool.version, serving=decision.desired, warm=pool.warm_replicas, in_flight=in_flight
    )
    if pool.desired_replicas != fitted.serving:
        Pool.objects.filter(pk=pool.pk).update(desired_replicas=fitted.serving)
    return fitted.serving, fitted.problem

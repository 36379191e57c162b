"""What an operator sets of a pool: how many at once, how many may wait, what latency each tier is to have, how it scales."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from headway.errors import InvalidInput
from inference.engines.options import check_pool_args
from inference.models import Pool, Replica
from inference.policy.brain_tunables import targets_of
from inference.services.holding import hold_pool
from inference.services.registry import TARGET_FIELDS, pool_of, publish_model
from inference.services.replicas import LIVE_STATES, publish_replica
from inference.services.wanted import MAX_REPLICAS, want, wanted_counts
from tenants.services.audit import record_audit

BOUNDS = ("min_in_flight", "max_in_flight", "max_queued")
SCALING = ("is_autoscaled", "min_replicas", "max_replicas", "warm_replicas", "idle_before_zero_s", "hold_limit_s")
MAX_IDLE_S = 30 * 24 * 3600
MAX_HOLD_S = 600
MAX_IN_FLIGHT = 10_000
MAX_QUEUED = 1_000_000
MAX_TARGET_MS = 24 * 3600 * 1000


def set_pool(*, public_id: str, changes: Mapping[str, int | None], actor: str) -> Pool:
    """Change what is named: BOUNDS, SCALING, TARGET_FIELDS (None: the default). Holds for requests that come from then on.

    Warm replicas are asked for at once; how many serve, the autoscaler sees to with its next look.

    Raises UnknownModel, InvalidInput; nothing is changed then.
    """
    unknown = sorted(changes.keys() - {*BOUNDS, *SCALING, *TARGET_FIELDS})
    assert not unknown, f"no fields of a pool: {unknown}"
    with transaction.atomic():
        pool = hold_pool(pool_of(public_id).pk)
        before = {name: getattr(pool, name) for name in changes}
        for name, value in changes.items():
            setattr(pool, name, value)
        _check(pool)
        if changes:
            pool.save(update_fields=list(changes))
            publish_model(pool)
            if "max_in_flight" in changes:  # each replica's row in the feed says it too
                for replica in Replica.objects.filter(pool=pool, state__in=LIVE_STATES):
                    publish_replica(replica)
            if "warm_replicas" in changes and pool.version is not None:
                serving, _ = wanted_counts(pool, pool.version)
                want(pool=pool, version=pool.version, serving=serving, warm=pool.warm_replicas)
            record_audit(actor=actor, action="pool.set", target=public_id, before=before, after=dict(changes))
    return pool


def set_pool_engine_args(*, public_id: str, engine_args: list[str], actor: str) -> Pool:
    """For replicas that are started from then on, over their version's. Raises UnknownModel, InvalidInput."""
    check_pool_args(engine_args)
    with transaction.atomic():
        pool = hold_pool(pool_of(public_id).pk)
        before, pool.engine_args = pool.engine_args, engine_args
        pool.save(update_fields=["engine_args"])
        record_audit(
            actor=actor, action="pool.set", target=public_id, before={"engine_args": before}, after={"engine_args": engine_args}
        )
    return pool


def _check(pool: Pool) -> None:
    """Raises InvalidInput."""
    _check_whole("max_in_flight", pool.max_in_flight, 1, MAX_IN_FLIGHT)
    _check_whole("min_in_flight", pool.min_in_flight, 1, MAX_IN_FLIGHT)
    _check_whole("max_queued", pool.max_queued, 0, MAX_QUEUED)
    _check_scaling(pool)
    if pool.min_in_flight > pool.max_in_flight:
        raise InvalidInput("min_in_flight must not be above max_in_flight", param="min_in_flight")
    targets = {name: getattr(pool, name) for name in TARGET_FIELDS}
    for name, value in targets.items():
        if value is not None:
            _check_whole(name, value, 1, MAX_TARGET_MS)
    try:
        targets_of(targets)
    except ValueError as error:
        raise InvalidInput(f"{error} (what is not set has its default)", param="targets") from None


def _check_scaling(pool: Pool) -> None:
    _check_whole("min_replicas", pool.min_replicas, 0, MAX_REPLICAS)
    _check_whole("max_replicas", pool.max_replicas, 0, MAX_REPLICAS)
    _check_whole("warm_replicas", pool.warm_replicas, 0, MAX_REPLICAS)
    _check_whole("idle_before_zero_s", pool.idle_before_zero_s, 10, MAX_IDLE_S)
    _check_whole("hold_limit_s", pool.hold_limit_s, 0, MAX_HOLD_S)
    if pool.min_replicas > pool.max_replicas:
        raise InvalidInput("min_replicas must not be above max_replicas", param="min_replicas")
    if pool.is_autoscaled and not pool.max_replicas:
        raise InvalidInput("an autoscaled pool has max_replicas of at least 1", param="max_replicas")


def _check_whole(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{name} is from {least} to {most}", param=name)

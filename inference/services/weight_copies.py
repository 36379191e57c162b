"""Want weights on nodes' disks before they are needed; what their agents read of that, and tell of it.

Every version that may have to serve soon is kept on every node that can run it (`want_needed_copies`, which Celery's beat
calls); anyone may ask for more (`stage_version`). Agents do the fetching and decide what goes where a disk is full.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q

from headway.errors import InvalidInput
from inference.engines.options import over
from inference.engines.speculation import uris_of
from inference.errors import IllegalTransition
from inference.models import ModelVersion, NodeHeartbeat, Pool, Replica
from inference.rollout_models import ENDED, Rollout
from inference.services.database_clock import database_now
from inference.services.heartbeats import live_nodes
from inference.services.node_fit import why_not
from inference.services.replicas import LIVE_STATES, MAX_REASON_CHARS
from inference.weight_models import COPY_TRANSITIONS, CopyState, WeightCopy
from inference.weight_uris import is_fetched
from tenants.services.audit import record_audit

KEEP_FOR = timedelta(hours=24)
"""A copy that was asked for is not evicted for so long, though nothing needs it yet; asking again begins anew."""
NEW_FOR = timedelta(hours=24)
"""A version that is newer than the stable one is staged of itself for so long: a rollout of it is likely."""
_S = CopyState


@dataclass(frozen=True)
class WantedCopy:
    """One copy of a node as the registry has it."""

    version_id: int
    state: str
    is_final: bool
    weights_uri: str
    weights_digest: str
    engine_environment: str
    dtype: str
    max_in_flight: int
    engine_args: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class NodeCopies:
    """Of one node. `needed_uris`: what must not be evicted there."""

    copies: list[WantedCopy]
    needed_uris: list[str]


def stage_version(*, version: ModelVersion, actor: str, nodes: list[str] | None = None) -> list[str]:
    """Want copies on those nodes (None: on every live one that can run it); returns their names.

    Copies that failed are tried again. Raises InvalidInput: an unknown node, or none that could.
    """
    alive = _nodes_for(version)
    if nodes is not None:
        known = set(NodeHeartbeat.objects.values_list("name", flat=True))
        unknown = sorted(set(nodes) - known)
        if unknown:
            raise InvalidInput(f"there is no node {unknown[0]!r}; `manage.py status` lists them", param="nodes")
    wanted = sorted(set(nodes)) if nodes is not None else alive
    if not wanted:
        raise InvalidInput(f"no live node can run {version.engine_environment}", param="nodes")
    with transaction.atomic():
        _want(version, wanted, again=(_S.FAILED, _S.EVICTED))
        WeightCopy.objects.filter(version=version, node__in=wanted).update(keep_until=database_now() + KEEP_FOR)
        record_audit(actor=actor, action="version.stage", target=str(version), after={"nodes": wanted})
    return wanted


def want_needed_copies() -> int:
    """Every version that may have to serve soon, on every node that can run it; returns how many copies were wanted anew.

    What failed for good is left until somebody asks (`stage_version`).
    """
    now, num_wanted = database_now(), 0
    for version in needed_versions(now):
        if any(is_fetched(uri) for uri in _uris(version)):
            num_wanted += _want(version, _nodes_for(version), again=(_S.EVICTED,))
    return num_wanted


def needed_versions(now: datetime) -> list[ModelVersion]:
    """Of wanted replicas; stable ones of pools that are to serve or may be asked to; both of open rollouts; new ones, which a
    rollout may bring."""
    of_replicas = Replica.objects.filter(is_wanted=True, state__in=LIVE_STATES).exclude(node="").values("version")
    open_pools = Pool.objects.filter(model__retired_at=None)
    serves = Q(desired_replicas__gt=0) | Q(is_autoscaled=True) | Q(min_replicas__gt=0) | Q(warm_replicas__gt=0)
    stable = open_pools.filter(serves).values("version")
    open_rollouts = Rollout.objects.exclude(state__in=ENDED)
    released = Q(pk__in=open_rollouts.values("to_version")) | Q(pk__in=open_rollouts.values("from_version"))
    is_new = Q(created_at__gte=now - NEW_FOR, number__gt=F("model__pool__version__number"), model__retired_at=None)
    found = ModelVersion.objects.filter(Q(pk__in=of_replicas) | Q(pk__in=stable) | released | is_new)
    return list(found.select_related("model__pool").order_by("pk").distinct())


def _args(version: ModelVersion) -> list[str]:
    return over(version.engine_args, version.model.pool.engine_args)


def _uris(version: ModelVersion) -> list[str]:
    return uris_of(version.weights_uri, _args(version))


def _nodes_for(version: ModelVersion) -> list[str]:
    """Live nodes that can run it and take new replicas."""
    alive = live_nodes().filter(is_cordoned=False).order_by("name")
    return [node.name for node in alive if not why_not(node, version.engine_environment)]


def _want(version: ModelVersion, nodes: list[str], *, again: Iterable[CopyState]) -> int:
    now = database_now()
    there = set(WeightCopy.objects.filter(version=version, node__in=nodes).values_list("node", flat=True))
    missing = [
        WeightCopy(version=version, node=node, keep_until=now + KEEP_FOR, changed_at=now) for node in nodes if node not in there
    ]
    WeightCopy.objects.bulk_create(missing, ignore_conflicts=True)  # another sweep may have been quicker
    renewed = WeightCopy.objects.filter(version=version, node__in=there, state__in=list(again)).update(
        state=_S.WANTED, reason="", is_final=False, bytes_done=0, changed_at=now
    )
    return len(missing) + renewed


# What a node's agent reads and tells.


def copies_of(node: str) -> NodeCopies:
    now = database_now()  # its agent's clock may be days off, and what must be kept follows from it
    rows = (
        WeightCopy.objects.filter(node=node)
        .exclude(state=_S.EVICTED)
        .select_related("version__model__pool")
        .order_by("created_at", "id")
    )
    needed = needed_versions(now) + [row.version for row in rows if row.keep_until > now]
    return NodeCopies(
        copies=[_wanted_copy(row) for row in rows],
        needed_uris=sorted({uri for version in needed for uri in _uris(version)}),
    )


def _wanted_copy(row: WeightCopy) -> WantedCopy:
    version = row.version
    return WantedCopy(
        version_id=version.pk,
        state=row.state,
        is_final=row.is_final,
        weights_uri=version.weights_uri,
        weights_digest=version.weights_digest,
        engine_environment=version.engine_environment,
        dtype=version.dtype,
        max_in_flight=version.model.pool.max_in_flight,
        engine_args=_args(version),
    )


def advance_copy(
    *,
    version_id: int,
    node: str,
    expected: CopyState,
    to: CopyState,
    reason: str = "",
    is_final: bool = False,
    size_bytes: int | None = None,
    digest: str = "",
) -> None:
    """Raises IllegalTransition, also when someone else moved it."""
    if to not in COPY_TRANSITIONS[expected]:
        raise IllegalTransition(f"a copy cannot go from {expected} to {to}")
    changes: dict[str, object] = {"state": to, "reason": reason[:MAX_REASON_CHARS], "is_final": is_final}
    if size_bytes is not None:
        changes |= {"bytes_done": size_bytes, "bytes_total": size_bytes}
    if digest:
        changes["digest"] = digest
    rows = WeightCopy.objects.filter(version=version_id, node=node, state=expected)
    if not rows.update(**changes, changed_at=database_now()):
        raise IllegalTransition(f"the copy of version {version_id} on {node} is not {expected}")


def note_copy(*, version_id: int, node: str, reason: str, bytes_done: int, bytes_total: int) -> None:
    """How far it is."""
    WeightCopy.objects.filter(version=version_id, node=node, state=_S.STAGING).update(
        reason=reason[:MAX_REASON_CHARS], bytes_done=bytes_done, bytes_total=bytes_total
    )


def record_use(*, version_id: int, node: str, size_bytes: int, digest: str) -> None:
    """A replica found it whole, or fetched it: it is there, whatever was known of it."""
    now = database_now()
    there = {"state": _S.STAGED, "reason": "", "is_final": False, "bytes_done": size_bytes, "bytes_total": size_bytes}
    changes = {**there, "digest": digest, "last_used_at": now}
    rows = WeightCopy.objects.filter(version=version_id, node=node)
    moved = rows.exclude(state=_S.STAGED).update(**changes, changed_at=now)
    if not moved and not rows.update(**changes):
        new = WeightCopy(version_id=version_id, node=node, keep_until=now, changed_at=now, **changes)
        WeightCopy.objects.bulk_create([new], ignore_conflicts=True)


def record_evicted(*, node: str, version_ids: list[int], reason: str) -> None:
    rows = WeightCopy.objects.filter(node=node, version__in=version_ids, state__in=(_S.STAGED, _S.WANTED, _S.FAILED))
    rows.update(state=_S.EVICTED, reason=reason[:MAX_REASON_CHARS], bytes_done=0, changed_at=database_now())

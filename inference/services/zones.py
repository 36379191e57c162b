"""Empty a zone: look first whether the others can carry it, ask for replacements there, drain, and prove what it did.

drain_zone -> nodes cordoned, every replica there gets a successor elsewhere (moving.py)
advance_drains (every sweep) -> its last replica has stopped -> LEDGER_LAG later the ledger is read -> the verdict
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import structlog
from django.db import transaction

from billing.services.replica_ends import replica_ends
from headway.errors import Conflict, InvalidInput
from inference.errors import NoNodeHasRoom, UnknownZone, ZoneCannotGo
from inference.fleet_models import ReplicaLoad, ZoneDrain
from inference.launchers.node_agents import room_on
from inference.models import NodeHeartbeat, Pool, Replica, ReplicaState
from inference.services.database_clock import database_now
from inference.services.heartbeats import live_nodes
from inference.services.holding import hold_pool
from inference.services.moving import keep_after_all, replace
from inference.services.wanted import AGENTS
from tenants.services.audit import record_audit

log = structlog.get_logger(__name__)
_S = ReplicaState
DRAIN_LIMIT_S = 900
MAX_DRAIN_LIMIT_S = 24 * 3600
LEDGER_LAG = timedelta(seconds=5)
"""How long after the last engine's end the ledger is read: gateways carry records there within a second."""


@dataclass(frozen=True)
class Capacity:
    """Ready replicas by model there and elsewhere; `needed` must find a place elsewhere, where `room` is (None: no bound)."""

    models: dict[str, dict[str, int]]
    needed: int
    room: int | None

    @property
    def problem(self) -> str:
        """Empty where the others can carry it."""
        if self.room is None or self.needed <= self.room:
            return ""
        return f"{self.needed} replicas need a place elsewhere, and live nodes there have room for {self.room}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def nodes_of(zone: str) -> list[NodeHeartbeat]:
    """Raises UnknownZone."""
    nodes = list(NodeHeartbeat.objects.filter(zone=zone).order_by("name")) if zone else []
    if not nodes:
        raise UnknownZone(f"there is no zone {zone!r}; `manage.py status` lists the nodes with theirs")
    return nodes


def capacity_without(zone: str) -> Capacity:
    """Raises UnknownZone."""
    names = {node.name for node in nodes_of(zone)}
    there = {held.id for held in AGENTS.list() if held.node in names and held.is_wanted}
    models: dict[str, dict[str, int]] = {}
    rows = Replica.objects.exclude(state=_S.STOPPED).filter(is_wanted=True).select_related("pool__model")
    for row in rows.order_by("pool__model__public_id"):
        counts = models.setdefault(row.pool.model.public_id, {"zone": 0, "elsewhere": 0})
        if row.state == _S.READY:
            counts["zone" if row.id in there else "elsewhere"] += 1
    elsewhere = [node for node in live_nodes() if node.zone != zone]
    needed = Replica.objects.filter(pk__in=there, replaced_by="").count()
    return Capacity(models, needed, room_on(elsewhere) if elsewhere else 0)


def drain_zone(*, zone: str, actor: str, is_forced: bool = False, limit_s: int = DRAIN_LIMIT_S) -> ZoneDrain:
    """Begin. Forced, what finds no place elsewhere is let go.

    Raises UnknownZone, ZoneCannotGo, Conflict (one runs), InvalidInput (the limit).
    """
    if not 1 <= limit_s <= MAX_DRAIN_LIMIT_S:
        raise InvalidInput(f"a zone is emptied within 1 to {MAX_DRAIN_LIMIT_S} s", param="within")
    with transaction.atomic():
        list(NodeHeartbeat.objects.select_for_update().order_by("name"))  # two zones at once would count on each other's room
        capacity = capacity_without(zone)
        if ZoneDrain.objects.filter(zone=zone, ended_at=None).exists():
            raise Conflict(f"zone {zone} is being drained already")
        if capacity.problem and not is_forced:
            raise ZoneCannotGo(f"zone {zone} is not drained: {capacity.problem}", **capacity.as_dict())
        names = [node.name for node in nodes_of(zone)]
        rows = Replica.objects.filter(node__in=names).exclude(state=_S.STOPPED).select_related("pool__model", "version")
        # All of them: a pool that has nothing there yet may be getting it just now.
        for pool_id in Pool.objects.order_by("pk").values_list("pk", flat=True):
            hold_pool(pool_id)
        drain = _record(zone, actor, is_forced, limit_s, names, list(rows), capacity)
        NodeHeartbeat.objects.filter(zone=zone).update(is_cordoned=True)
        _move_all([row for row in rows.order_by("created_at", "id") if row.is_wanted and not row.replaced_by], is_forced)
        record_audit(actor=actor, action="zone.drain", target=zone, after={"replicas": len(drain.replicas)})
    return drain


def _record(
    zone: str, by: str, is_forced: bool, limit_s: int, nodes: list[str], rows: Sequence[Replica], capacity: Capacity
) -> ZoneDrain:
    ids = [row.id for row in rows]
    loads = ReplicaLoad.objects.filter(pk__in=ids).values_list("running", "waiting")
    return ZoneDrain.objects.create(
        zone=zone,
        by=by[:200],
        is_forced=is_forced,
        started_at=database_now(),
        limit_s=limit_s,
        nodes=nodes,
        replicas=ids,
        before=capacity.as_dict(),
        streams_in_flight=sum(running + waiting for running, waiting in loads),
    )


def _move_all(rows: Sequence[Replica], is_forced: bool) -> None:
    """Raises ZoneCannotGo where the room is gone since it was counted."""
    for row in rows:
        try:
            with transaction.atomic():
                replace(row)
        except NoNodeHasRoom as error:
            if not is_forced:
                raise ZoneCannotGo(f"replica {row.id} finds no place elsewhere: {error.message}") from None
            AGENTS.drain([row])


def advance_drains() -> list[int]:
    """Take every drain under way as far as it has come. Returns the ids of those that ended. Anybody may call it."""
    return [drain.pk for drain in ZoneDrain.objects.filter(ended_at=None).order_by("id") if _advance(drain)]


def _advance(drain: ZoneDrain) -> bool:
    now = database_now()
    left = _still_there(drain)
    if left and now - drain.started_at >= timedelta(seconds=drain.limit_s):
        return _end(drain, ZoneDrain.Verdict.TIMED_OUT, f"after {drain.limit_s} s these have not stopped: {', '.join(left)}")
    if left:
        return False
    if drain.emptied_at is None:
        ZoneDrain.objects.filter(pk=drain.pk, emptied_at=None).update(emptied_at=now)
        return False
    return now - drain.emptied_at >= LEDGER_LAG and _end(drain, None, "")


def _still_there(drain: ZoneDrain) -> list[str]:
    """Those that have not stopped, or that failed and are not wanted any more."""
    rows = Replica.objects.filter(pk__in=drain.replicas).exclude(state=_S.STOPPED)
    return sorted(row.id for row in rows if row.is_wanted or row.state != _S.FAILED)


def _placed_meanwhile(drain: ZoneDrain) -> int:
    """Somebody has uncordoned a node."""
    rows = Replica.objects.filter(node__in=drain.nodes, is_wanted=True, replaced_by="").exclude(state=_S.STOPPED)
    return rows.exclude(pk__in=drain.replicas).count()


def _end(drain: ZoneDrain, verdict: ZoneDrain.Verdict | None, reason: str) -> bool:
    """`verdict` None: by what the ledger says."""
    now = database_now()
    seen = replica_ends(drain.replicas, since=drain.started_at, until=now)
    if verdict is None:
        verdict = ZoneDrain.Verdict.FAILED if seen.failed else ZoneDrain.Verdict.CLEAN
        later = _placed_meanwhile(drain)
        reason = "; ".join(
            [f"{seen.failed} requests failed"] * bool(seen.failed)
            + [f"{later} replicas were placed there meanwhile"] * bool(later)
        )
    changes: dict[str, Any] = {
        "ended_at": now,
        "verdict": verdict,
        "reason": reason[:1000],
        "ends": seen.ends,
        "moved": seen.moved,
        "failed": seen.failed,
        "after": capacity_without(drain.zone).as_dict(),
    }
    ended = bool(ZoneDrain.objects.filter(pk=drain.pk, ended_at=None).update(**changes))
    if ended:
        log.info("zone_drained", zone=drain.zone, verdict=verdict.value, failed=seen.failed)
    return ended


def undrain_zone(*, zone: str, actor: str) -> int:
    """New replicas may go there again; what has not left yet stays. Returns how many that are. Raises UnknownZone."""
    names = [node.name for node in nodes_of(zone)]
    with transaction.atomic():
        NodeHeartbeat.objects.filter(zone=zone).update(is_cordoned=False)
        leaving = Replica.objects.filter(node__in=names, is_wanted=True).exclude(replaced_by="")
        for pool_id in sorted(set(leaving.values_list("pool_id", flat=True))):
            hold_pool(pool_id)
        staying = list(leaving)
        for replica in staying:
            keep_after_all(replica)
        for drain in ZoneDrain.objects.filter(zone=zone, ended_at=None):
            _end(drain, ZoneDrain.Verdict.CANCELLED, f"by {actor}")
        record_audit(actor=actor, action="zone.undrain", target=zone, after={"staying": len(staying)})
    return len(staying)

"""Nodes that fell silent: what they had is placed elsewhere, and what they still run never serves again.

A replica of a lost node is `failed` in the registry, so the feed takes it away from gateways at once; another one is asked
for as soon as a live node has room, and then the old one is not wanted any more. An agent that comes back finds that and
kills its engine (inference/node/replica_run.py), before it does anything else with it.

Nobody is taken for lost
- before somebody has looked at heartbeats for as long as the limit without a gap (NodeWatch): after an outage of the
  database every heartbeat is old;
- while no other node is alive: there would be nowhere to go, and it is likelier that agents cannot reach the database.
  Their engines go on serving.
"""

import structlog
from django.db import transaction
from django.db.models import Case, F, When
from django.db.models.functions import Now

from headway.errors import Conflict
from inference.errors import NoNodeHasRoom, UnknownNode
from inference.fleet_models import NodeWatch
from inference.models import NodeHeartbeat, Replica, ReplicaState
from inference.services.heartbeats import live_nodes, lost_after, silent_nodes
from inference.services.holding import hold_pool_if_free, hold_replicas
from inference.services.moving import replace
from inference.services.replicas import MAX_REASON_CHARS, advance
from inference.services.wanted import AGENTS
from inference.weight_models import WeightCopy
from tenants.services.audit import record_audit

log = structlog.get_logger(__name__)
_S = ReplicaState
LOST = "its node is lost: no heartbeat for {:g} s"
UNPLACED = "; not placed again: "


def look_for_lost_nodes() -> list[str]:
    """Take from silent nodes what they had, and place it where there is room. Returns the nodes found lost now."""
    if not _has_watched() or not live_nodes().exists():
        return []
    found = [name for name in silent_nodes().values_list("name", flat=True).order_by("name") if _is_lost_now(name)]
    _place_again()
    return found


def _has_watched() -> bool:
    """Note that somebody looks; whether heartbeats have been looked at for as long as the limit."""
    is_gap = When(looked_at__lt=Now() - lost_after() / 2, then=Now())
    looked = NodeWatch.objects.filter(pk=1).update(since=Case(is_gap, default=F("since")), looked_at=Now())
    if not looked:
        NodeWatch.objects.bulk_create([NodeWatch(id=1, since=Now(), looked_at=Now())], ignore_conflicts=True)
    return NodeWatch.objects.filter(pk=1, since__lte=Now() - lost_after()).exists()


def _is_lost_now(name: str) -> bool:
    with transaction.atomic():
        node = silent_nodes().select_for_update(skip_locked=True).filter(pk=name).first()
        if node is None:
            return False  # it has beaten meanwhile, or another sweep is at it
        is_new = node.lost_at is None
        reason = LOST.format(lost_after().total_seconds())
        for replica in hold_replicas(Replica.objects.filter(node=name).exclude(state__in=(_S.STOPPED, _S.FAILED))):
            AGENTS.stop(replica, reason=reason)
        if is_new:
            NodeHeartbeat.objects.filter(pk=name).update(lost_at=Now())
            record_audit(actor="system", action="node.lost", target=name)
            log.warning("node_lost", node=name)
    return is_new


def _place_again() -> None:
    """Those of silent nodes that nobody has taken the place of."""
    silent = silent_nodes().exclude(lost_at=None).values_list("name", flat=True)
    waiting = Replica.objects.filter(node__in=list(silent), is_wanted=True, replaced_by="").exclude(state=_S.STOPPED)
    for replica in waiting.select_related("pool__model", "version").order_by("is_standby", "created_at", "id"):
        try:
            with transaction.atomic():
                if hold_pool_if_free(replica.pool_id) is None:
                    continue
                new = replace(replica)
                AGENTS.drain([replica])
        except NoNodeHasRoom as error:  # looked for again next time
            _say(replica, f"{replica.reason.partition(UNPLACED)[0]}{UNPLACED}{error.message}")
            continue
        except Conflict:  # another sweep has placed it meanwhile
            continue
        log.info("replica_placed_again", replica=replica.id, node=replica.node, replaced_by=new)


def _say(replica: Replica, reason: str) -> None:
    """For who looks at it while it is not placed."""
    if reason[:MAX_REASON_CHARS] != replica.reason:
        log.warning("no_room_for_lost_replica", replica=replica.id, reason=reason)
        Replica.objects.filter(pk=replica.pk, state=_S.FAILED).update(reason=reason[:MAX_REASON_CHARS])


def forget_node(*, node: str, actor: str) -> int:
    """Its machine is gone for good: what it had counts as stopped. Returns how many. Raises UnknownNode while it beats."""
    with transaction.atomic():
        if silent_nodes().select_for_update().filter(pk=node).first() is None:
            raise UnknownNode(f"there is no silent node {node!r}: one that beats is drained, not forgotten")
        rows = hold_replicas(Replica.objects.filter(node=node).exclude(state=_S.STOPPED))
        for replica in rows:
            AGENTS.stop(replica, reason="its node was forgotten")
        AGENTS.drain(rows)
        for replica in rows:
            advance(replica_id=replica.id, expected=_S.FAILED, to=_S.STOPPED, reason="its node was forgotten")
        NodeHeartbeat.objects.filter(pk=node).delete()
        WeightCopy.objects.filter(node=node).delete()
        record_audit(actor=actor, action="node.forget", target=node, after={"replicas": len(rows)})
    return len(rows)

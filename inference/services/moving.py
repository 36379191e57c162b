"""Give one replica's place to another: the new one first, and the old one goes once the new one serves.

`Replica.replaced_by` names the new one. The old one no longer counts as one of those that are wanted (wanted.py); it
serves until `settle_moves` sees that the other one does, or that nobody wants that one any more. Whoever is to come may be
replaced itself before it serves (its node is lost, it is moved on): then the old one waits for the last of them.
"""

from collections.abc import Iterator

from django.db import transaction

from headway.errors import Conflict, InvalidInput
from inference.errors import NoNodeHasRoom, UnknownReplica
from inference.models import Replica, ReplicaState
from inference.services.holding import hold_pool, hold_pool_if_free
from inference.services.wanted import AGENTS, request
from tenants.services.audit import record_audit

_S = ReplicaState
CERTIFIED = (_S.READY, _S.WARM)


def known_replica(replica_id: str) -> Replica:
    """A managed one that has not stopped. Raises UnknownReplica, InvalidInput (an external one)."""
    replica = Replica.objects.select_related("pool__model", "version").filter(pk=replica_id).first()
    if replica is None or replica.state == _S.STOPPED:
        raise UnknownReplica(f"there is no replica {replica_id!r}; `manage.py status` lists them")
    if not replica.node:
        raise InvalidInput(f"replica {replica_id} is an engine of somebody else's: no agent looks after it", param="replica")
    return replica


def _staying(replica_id: str) -> Replica:
    """Raises Conflict (it goes already), and what known_replica does."""
    replica = known_replica(replica_id)
    if not replica.is_wanted or replica.replaced_by:
        raise Conflict(f"replica {replica_id} is on its way out already")
    return replica


def replace(replica: Replica, *, not_on: str = "") -> str:
    """Ask for another one in its place, on its own node if that can take it (and is not `not_on`); returns that one's id.

    Raises NoNodeHasRoom; nothing is changed then.
    """
    assert replica.version is not None, "a managed replica has a version"
    with transaction.atomic():
        hold_pool(replica.pool_id)
        new = request(replica.pool, replica.version, is_standby=replica.is_standby, not_on=not_on, rather_on=replica.node)
        mine = Replica.objects.filter(pk=replica.pk, is_wanted=True, replaced_by="")
        if not mine.update(replaced_by=new):
            raise Conflict(f"replica {replica.id} is on its way out already")
    return new


def drain_replica(*, replica_id: str, actor: str) -> str:
    """Move it to another node. Returns who comes in its place. Raises UnknownReplica, NoNodeHasRoom, Conflict."""
    pool_id = known_replica(replica_id).pool_id
    with transaction.atomic():
        hold_pool(pool_id)
        replica = _staying(replica_id)
        new = replace(replica, not_on=replica.node)
        record_audit(actor=actor, action="replica.drain", target=replica_id, after={"replaced_by": new})
    return new


def restart_replica(*, replica_id: str, actor: str) -> tuple[str, bool]:
    """A new engine in its place: (its id, whether the old one serves until then).

    Where no node has room for a second one, the old one is drained at once. Raises UnknownReplica, Conflict.
    """
    pool_id = known_replica(replica_id).pool_id
    with transaction.atomic():
        hold_pool(pool_id)
        replica = _staying(replica_id)
        try:
            new, is_gapless = replace(replica), True
        except NoNodeHasRoom:
            AGENTS.drain([replica])
            new, is_gapless = in_its_place(replica), False
        record_audit(
            actor=actor, action="replica.restart", target=replica_id, after={"replaced_by": new, "gapless": is_gapless}
        )
    return new, is_gapless


def in_its_place(replica: Replica) -> str:
    """Of one that was just drained, whose room is free by that. Returns the new one's id."""
    assert replica.version is not None
    node = replica.node
    new = request(replica.pool, replica.version, is_standby=replica.is_standby, default_node=node, rather_on=node)
    Replica.objects.filter(pk=replica.pk).update(replaced_by=new)
    return new


def settle_moves() -> list[str]:
    """Let go those whose place is taken. Returns their ids. Anybody may call it, at any time."""
    leaving = Replica.objects.filter(is_wanted=True).exclude(replaced_by="").order_by("id")
    gone: list[Replica] = []
    for pool_id in sorted({replica.pool_id for replica in leaving if _may_go(replica)}):
        with transaction.atomic():
            if hold_pool_if_free(pool_id) is None:  # whoever keeps one after all must not find the other one gone, too
                continue
            going = [replica for replica in leaving.filter(pool=pool_id) if _may_go(replica)]
            AGENTS.drain(going)
        gone += going
    return [replica.id for replica in gone]


def _may_go(old: Replica) -> bool:
    """Nobody is to come any more (fewer are wanted by now), somebody serves in its place, or it has nothing to wait for."""
    if old.state not in CERTIFIED:
        return True
    coming = list(_successors(old))
    return not coming or not coming[-1].is_wanted or any(one.is_wanted and one.state in CERTIFIED for one in coming)


def _successors(replica: Replica) -> Iterator[Replica]:
    """Who is to come in its place, who in that one's, and so on. (Each is newer than the one before: there is an end.)"""
    following: Replica | None = replica
    while following is not None and following.replaced_by:
        following = Replica.objects.filter(pk=following.replaced_by).first()
        if following is not None:
            yield following


def keep_after_all(replica: Replica) -> None:
    """It stays, and whoever was to come in its place goes. Where it is let go by now, they stay."""
    with transaction.atomic():
        hold_pool(replica.pool_id)
        coming = list(_successors(replica))
        if Replica.objects.filter(pk=replica.pk, is_wanted=True).update(replaced_by=""):
            AGENTS.drain(coming)

"""Say how many replicas of one version should serve, and how many should stand by warm. Agents do the rest.

The one place that makes Replica rows, lets them go, and moves them between serving and standing by. Whoever decides calls
`want` (an operator's `scale`), or `want_what_fits` (the autoscaler, a rollout, a sweep): less than all, where there is no room.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.db import transaction

from headway.errors import InvalidInput
from inference.errors import NoNodeHasRoom
from inference.launchers.cell import CellLauncher
from inference.launchers.node_agents import NodeAgents
from inference.models import ModelVersion, Pool, Replica, ReplicaState, new_replica_id
from inference.services.database_clock import database_now
from inference.services.holding import hold_pool
from inference.services.replicas import LIVE_STATES, publish_replica

AGENTS: CellLauncher = NodeAgents()
MAX_REPLICAS = 1000
_NEAREST_TO_SERVING = {state: rank for rank, state in enumerate(LIVE_STATES)}


@dataclass(frozen=True)
class Change:
    """Ids of replicas that were asked for, let go, put into rotation and taken out of it."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    woken: list[str] = field(default_factory=list)
    rested: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.woken or self.rested)


def want(
    *,
    pool: Pool,
    version: ModelVersion,
    serving: int,
    warm: int = 0,
    node: str = "",
    in_flight: Mapping[str, int] | None = None,
) -> Change:
    """Make the version's managed replicas be `serving` in rotation and `warm` beside it. Raises InvalidInput.

    Warm ones go into rotation before new ones are asked for, and replicas are taken out of rotation before others are
    started to stand by. Those furthest from serving are let go first, of those alike the one with the fewest requests
    (`in_flight`, by replica, where it is known); every one that serves is drained. New ones go where the launcher places
    them, or to `node` where no agent has reported yet. One that leaves for
    another (services/moving.py) does not count: the other one does.
    """
    if serving < 0 or warm < 0 or serving + warm > MAX_REPLICAS:
        raise InvalidInput(f"replicas must lie between 0 and {MAX_REPLICAS}", param="replicas")
    with transaction.atomic():
        hold_pool(pool.pk)
        kept, removed = _split(_wanted_of(pool, version, in_flight), serving + warm)
        AGENTS.drain(removed)
        woken, rested = _place_in_rotation(kept, serving)
        num_serving = sum(1 for replica in kept if not replica.is_standby)
        missing = serving + warm - len(kept)
        AGENTS.check_room(missing, version=version, default_node=node)
        added = [
            request(pool, version, is_standby=num_serving + number >= serving, default_node=node) for number in range(missing)
        ]
    return Change(added, [replica.id for replica in removed], woken, rested)


@dataclass(frozen=True)
class Fitted:
    """What `want_what_fits` has asked for."""

    change: Change
    serving: int
    warm: int
    problem: str = ""
    """Why it is less than it was to be."""


def want_what_fits(
    *, pool: Pool, version: ModelVersion, serving: int, warm: int, in_flight: Mapping[str, int] | None = None
) -> Fitted:
    """As `want`, but as many as there is room for: those that serve before those that stand by. Raises nothing for it."""
    total, problem = min(serving + warm, MAX_REPLICAS), ""
    while True:
        in_rotation = min(serving, total)
        try:
            change = want(pool=pool, version=version, serving=in_rotation, warm=total - in_rotation, in_flight=in_flight)
        except NoNodeHasRoom as error:
            problem, total = problem or error.message, total - error.too_many
        else:
            return Fitted(change, in_rotation, total - in_rotation, problem)


def wanted_counts(pool: Pool, version: ModelVersion) -> tuple[int, int]:
    """How many of the version are wanted now: (serving, warm)."""
    replicas = _wanted_of(pool, version)
    warm = sum(1 for replica in replicas if replica.is_standby)
    return len(replicas) - warm, warm


def _wanted_of(pool: Pool, version: ModelVersion, in_flight: Mapping[str, int] | None = None) -> list[Replica]:
    """Nearest to serving first; among those alike in rotation before standing by, the busiest first, then the oldest."""
    busy = in_flight or {}
    rows = Replica.objects.filter(pool=pool, version=version, is_wanted=True, state__in=LIVE_STATES, replaced_by="")
    rows = rows.exclude(node="").select_related("pool__model", "version")
    key = {replica.id: _NEAREST_TO_SERVING[ReplicaState(replica.state)] for replica in rows}
    return sorted(rows, key=lambda row: (key[row.id], row.is_standby, -busy.get(row.id, 0), row.created_at, row.id))


def _split(replicas: list[Replica], count: int) -> tuple[list[Replica], list[Replica]]:
    return replicas[:count], replicas[count:]


def _place_in_rotation(kept: list[Replica], serving: int) -> tuple[list[str], list[str]]:
    """The first `serving` of them serve, the others stand by; returns who was moved in and out."""
    woken = [replica for replica in kept[:serving] if replica.is_standby]
    rested = [replica for replica in kept[serving:] if not replica.is_standby]
    for moved, is_standby in ((woken, False), (rested, True)):
        Replica.objects.filter(pk__in=[replica.pk for replica in moved]).update(is_standby=is_standby)
        for replica in moved:
            replica.is_standby = is_standby
            publish_replica(replica)  # nothing new for gateways; agents look at once
    return [replica.id for replica in woken], [replica.id for replica in rested]


def request(
    pool: Pool, version: ModelVersion, *, is_standby: bool, default_node: str = "", not_on: str = "", rather_on: str = ""
) -> str:
    """One more; returns its id. Raises NoNodeHasRoom."""
    place = AGENTS.place(version=version, default_node=default_node, not_on=not_on, rather_on=rather_on)
    now = database_now()  # what starts usually take is counted from it, and a machine's own clock may be days off
    replica = Replica(
        id=new_replica_id(),
        pool=pool,
        version=version,
        node=place.node,
        zone=place.zone,
        is_standby=is_standby,
        upstream_model=pool.model.public_id,
        changed_at=now,
    )
    AGENTS.start(replica)
    Replica.objects.filter(pk=replica.pk).update(created_at=now)
    return replica.id

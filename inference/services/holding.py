"""Who changes a pool, or which replicas it has, waits here for whoever does that now.

One order for all, so that nobody waits in a ring: nodes, tenants, pools with their replicas, then the feed (`control.publish`,
which is held until the end). An agent that tells of a move takes its replica, then the feed.
"""

from django.db import connection
from django.db.models import QuerySet

from inference.models import Pool, Replica, ReplicaState


def hold_pool(pool_id: int) -> Pool:
    """The pool as it is by then, with its replicas. Call it first in a transaction, and before anything is published: who
    publishes waits for others who do, and those must not wait for the pool or a replica of it.

    Agents tell of what their replicas do when it is over. Rows that name the pool may still be added meanwhile.
    """
    assert connection.in_atomic_block, "it is held until the transaction ends"
    Pool.objects.select_for_update(no_key=True).get(pk=pool_id)
    hold_replicas(Replica.objects.filter(pool=pool_id).exclude(state=ReplicaState.STOPPED))
    return Pool.objects.select_related("model", "version").get(pk=pool_id)


def hold_pool_if_free(pool_id: int) -> Pool | None:
    """The same for sweeps, which come by again: None where somebody holds it now. Every agent sweeps, and one that waits does
    not beat meanwhile."""
    assert connection.in_atomic_block, "it is held until the transaction ends"
    is_free = Pool.objects.select_for_update(no_key=True, skip_locked=True).filter(pk=pool_id).exists()
    return hold_pool(pool_id) if is_free else None


def hold_replicas(rows: "QuerySet[Replica]") -> list[Replica]:
    """In the one order in which all take them. Without their pools: of those who only fail or stop what is there."""
    assert connection.in_atomic_block, "they are held until the transaction ends"
    return list(rows.select_for_update(no_key=True).order_by("pool_id", "id"))

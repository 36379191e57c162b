"""Who changes a pool, or which replicas it has, waits here for whoever does that now.

There is one order of what is waited for: a node, pools, their replicas, and last the change feed, which who publishes holds
until its transaction ends. An agent that tells of a move has its replica's row and waits for the feed: so nobody who has
published may wait for such a row.
"""

from django.db import connection
from django.db.models import QuerySet

from inference.models import Pool, Replica, ReplicaState


def hold_pool(pool_id: int) -> Pool:
    """The pool as it is by then, with its replicas. Call it first in a transaction, and before anything is published.

    Rows that name the pool may still be added meanwhile.
    """
    assert connection.in_atomic_block, "it is held until the transaction ends"
    Pool.objects.select_for_update(no_key=True).get(pk=pool_id)
    hold_replicas(Replica.objects.filter(pool_id=pool_id))
    return Pool.objects.select_related("model", "version").get(pk=pool_id)


def hold_replicas(replicas: "QuerySet[Replica]") -> None:
    """Those of them that have not stopped; for who changes several without their pool: all before the first."""
    assert connection.in_atomic_block, "they are held until the transaction ends"
    left = replicas.exclude(state=ReplicaState.STOPPED)
    list(left.select_for_update(no_key=True).order_by("pk").values_list("pk"))

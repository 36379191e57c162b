"""Who changes a pool, or which replicas it has, waits here for whoever does that now."""

from django.db import connection

from inference.models import Pool


def hold_pool(pool_id: int) -> Pool:
    """The pool as it is by then. Call it first in a transaction, and before anything is published: who publishes waits for
    others who do, and those must not wait for the pool.

    Rows that name the pool may still be added meanwhile: an agent's move adds one, and publishes.
    """
    assert connection.in_atomic_block, "it is held until the transaction ends"
    Pool.objects.select_for_update(no_key=True).get(pk=pool_id)
    return Pool.objects.select_related("model", "version").get(pk=pool_id)

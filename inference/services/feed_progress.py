"""Who has applied the feed up to where: written by each gateway's feed thread, read by commands and the node agent."""

import time
from datetime import datetime, timedelta

from django.utils import timezone

from inference.models import GatewayFeed

# A gateway writes every two seconds; one that has not for this long is gone or cut off from the database.
SEEN_WITHIN = timedelta(seconds=10)
MAY_LIVE_WITHIN = timedelta(seconds=60)
DISPATCHER_PREFIX = "dispatcher:"
"""Of the names of dispatchers, which follow the feed as gateways do."""
_POLL_S = 0.1


def acknowledge(*, gateway: str, applied_change_id: int, now: datetime, process: int = 1, processes: int = 1) -> None:
    """Say how far a gateway process is, that it lives, and which of how many under one parent it is."""
    values = {"applied_change_id": applied_change_id, "seen_at": now, "process": process, "processes": processes}
    if not GatewayFeed.objects.filter(pk=gateway).update(**values):
        GatewayFeed.objects.update_or_create(gateway=gateway, defaults=values)


def forget_gateway(*, gateway: str) -> None:
    """A gateway has stopped: nobody need wait for it."""
    GatewayFeed.objects.filter(pk=gateway).delete()


def forget_dead_gateways(*, not_seen_since: datetime) -> int:
    """Those that could not sign off."""
    return GatewayFeed.objects.filter(seen_at__lt=not_seen_since).delete()[0]


def gateways_that_may_live(now: datetime) -> frozenset[str]:
    """Those that may hold grants, dispatchers left out. In doubt it lives: the database may just have come back."""
    rows = GatewayFeed.objects.filter(seen_at__gte=now - MAY_LIVE_WITHIN).exclude(gateway__startswith=DISPATCHER_PREFIX)
    return frozenset(rows.values_list("gateway", flat=True))


def acknowledgements(change_id: int, now: datetime) -> list[tuple[str, bool]]:
    """Each live gateway and whether it has applied this change, sorted by name."""
    rows = GatewayFeed.objects.filter(seen_at__gte=now - SEEN_WITHIN).order_by("gateway")
    return [(gateway, applied >= change_id) for gateway, applied in rows.values_list("gateway", "applied_change_id")]


def wait_for_acknowledgement(change_id: int, timeout_s: float) -> list[tuple[str, bool]]:
    """Wait until every live gateway has applied this change, or the time is up; who has, then. None alive: at once.

    Call it outside a transaction: inside one nothing would ever change.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        gateways = acknowledgements(change_id, timezone.now())
        if all(has_applied for _, has_applied in gateways) or time.monotonic() >= deadline_s:
            return gateways
        time.sleep(_POLL_S)

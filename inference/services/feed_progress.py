"""Who has applied the feed up to where: written by each gateway's feed thread, read by commands and the node agent."""

import time
from collections.abc import Collection
from datetime import datetime, timedelta

from django.utils import timezone

from inference.models import GatewayFeed, Lease

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
    """Those that could not sign off; not those for whom a new dispatcher still waits (forget_silent_gateways)."""
    waited_for = [name for lease in Lease.objects.filter(is_open=False) for name in lease.members]
    return GatewayFeed.objects.filter(seen_at__lt=not_seen_since).exclude(gateway__in=waited_for).delete()[0]


def forget_silent_gateways(*, now: datetime) -> list[str]:
    """An operator says that those which have not been seen for a minute are dead: no dispatcher waits for them any more."""
    rows = GatewayFeed.objects.filter(seen_at__lt=now - MAY_LIVE_WITHIN)
    names = sorted(rows.values_list("gateway", flat=True))
    rows.filter(gateway__in=names).delete()
    return names


def signed_off(gateways: Collection[str]) -> frozenset[str]:
    """Of these, the ones that have ended and said so, or are forgotten."""
    known = GatewayFeed.objects.filter(gateway__in=gateways).values_list("gateway", flat=True)
    return frozenset(gateways) - frozenset(known)


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

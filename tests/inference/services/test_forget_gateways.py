"""Gateways that are forgotten: those an operator says are dead, and never one that a new dispatcher waits for by itself."""

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.utils import timezone

from inference.models import GatewayFeed, Lease
from inference.services.feed_progress import acknowledge, forget_dead_gateways, signed_off

pytestmark = pytest.mark.django_db


def seen(name: str, s_ago: float) -> None:
    acknowledge(gateway=name, applied_change_id=0, now=timezone.now() - timedelta(seconds=s_ago))


def names() -> set[str]:
    return set(GatewayFeed.objects.values_list("gateway", flat=True))


def test_the_command_forgets_who_was_not_seen_for_a_minute_and_says_whom() -> None:
    seen("silent", 61)
    seen("quiet", 30)
    out = StringIO()
    call_command("forget_gateways", "--json", stdout=out)
    assert json.loads(out.getvalue()) == {"forgotten": ["silent"]}
    assert names() == {"quiet"}
    assert signed_off(["silent", "quiet"]) == {"silent"}


@pytest.mark.parametrize("is_open", [True, False])
def test_time_alone_forgets_nobody_a_new_dispatcher_waits_for(is_open: bool) -> None:
    Lease.objects.create(
        name="dispatcher", holder="b/d", epoch=2, renewed_at=timezone.now(), members=["member"], is_open=is_open
    )
    seen("member", 100_000)
    seen("other", 100_000)
    forget_dead_gateways(not_seen_since=timezone.now() - timedelta(days=1))
    assert names() == (set() if is_open else {"member"})

"""A zone is emptied: capacity first, replacements, and the proof of what it did to requests."""

from datetime import timedelta

import pytest
from django.utils import timezone

from headway.errors import Conflict, InvalidInput
from inference.errors import UnknownZone, ZoneCannotGo
from inference.fleet_models import ReplicaLoad, ZoneDrain
from inference.models import NodeHeartbeat, Pool, Replica
from inference.services.fleet_sweep import look_after_fleet
from inference.services.nodes import set_cordon
from inference.services.rollouts.ticking import tick
from inference.services.wanted import want
from inference.services.zones import LEDGER_LAG, advance_drains, capacity_without, drain_zone, undrain_zone
from tests.billing.records import attempt, usage_record
from tests.inference.services.fleet import node, now_serves, pool_of, serving, stable, stopped

pytestmark = pytest.mark.django_db
V = ZoneDrain.Verdict


@pytest.fixture
def pool() -> Pool:
    node("n1", zone="north")
    node("s1", zone="south")
    return pool_of()


def there(zone: str = "north") -> list[str]:
    return list(Replica.objects.filter(zone=zone, is_wanted=True).order_by("created_at").values_list("id", flat=True))


def ended(drain: ZoneDrain) -> ZoneDrain:
    """As it is after successors serve, the old ones have stopped, and the ledger has had its time."""
    for new in Replica.objects.exclude(zone=drain.zone).values_list("id", flat=True):
        now_serves(new)
    look_after_fleet()
    assert there() == []
    stopped(*drain.replicas)
    look_after_fleet()
    drain.refresh_from_db()
    assert (drain.verdict, drain.emptied_at is not None) == (V.RUNNING, True)
    ZoneDrain.objects.update(emptied_at=timezone.now() - LEDGER_LAG)
    look_after_fleet()
    drain.refresh_from_db()
    return drain


def test_replacements_come_first_and_what_was_there_serves_until_then(pool: Pool) -> None:
    serving(pool, 2)
    (old,) = there()
    ReplicaLoad.objects.create(replica=old, epoch=1, running=3, waiting=1, at=timezone.now())
    drain = drain_zone(zone="north", actor="test")
    assert (drain.replicas, drain.streams_in_flight, drain.nodes) == ([old], 4, ["n1"])
    assert drain.before == {"models": {"m": {"zone": 1, "elsewhere": 1}}, "needed": 1, "room": None}
    assert NodeHeartbeat.objects.get(name="n1").is_cordoned
    look_after_fleet()
    assert there() == [old]
    assert ended(drain).verdict == V.CLEAN
    assert drain.after["models"] == {"m": {"zone": 0, "elsewhere": 2}}


def test_without_room_elsewhere_it_is_refused_with_the_numbers_and_nothing_changes(pool: Pool) -> None:
    serving(pool, 4)
    NodeHeartbeat.objects.filter(name="s1").update(max_replicas=3)
    with pytest.raises(
        ZoneCannotGo, match="2 replicas need a place elsewhere, and live nodes there have room for 1"
    ) as refusal:
        drain_zone(zone="north", actor="test")
    assert refusal.value.data["models"] == {"m": {"zone": 2, "elsewhere": 2}}
    assert not NodeHeartbeat.objects.filter(is_cordoned=True).exists()
    assert (len(there()), ZoneDrain.objects.count()) == (2, 0)


def test_forced_what_finds_no_place_is_let_go(pool: Pool) -> None:
    serving(pool, 4)
    NodeHeartbeat.objects.filter(name="s1").update(max_replicas=3)
    drain = drain_zone(zone="north", actor="test", is_forced=True)
    assert (drain.is_forced, len(drain.replicas), len(there())) == (True, 2, 1)
    assert ended(drain).verdict == V.CLEAN


def test_without_another_live_node_it_is_refused(pool: Pool) -> None:
    serving(pool, 2)
    NodeHeartbeat.objects.filter(name="s1").update(seen_at=timezone.now() - timedelta(minutes=5))
    assert capacity_without("north").room == 0
    with pytest.raises(ZoneCannotGo):
        drain_zone(zone="north", actor="test")


def test_a_request_that_failed_is_counted_and_named_in_the_verdict(pool: Pool) -> None:
    serving(pool, 2)
    (old,) = there()
    usage_record(replica=old, end_state="engine_died", ended_at=timezone.now() - timedelta(minutes=1))
    drain = drain_zone(zone="north", actor="test")
    usage_record(replica=old, end_state="done")
    usage_record(replica=old, end_state="client_gone_after_first_token")
    usage_record(replica=old, end_state="engine_died")
    moved = usage_record(replica="rep-elsewhere", end_state="done")
    attempt(moved, replica=old, ending="engine_died")
    attempt(moved, replica="rep-elsewhere", number=2, ending="done")
    usage_record(replica="rep-elsewhere", end_state="engine_died")
    ended(drain)
    assert (drain.verdict, drain.reason, drain.failed, drain.moved) == (V.FAILED, "1 requests failed", 1, 1)
    assert drain.ends == {"done": 2, "client_gone_after_first_token": 1, "engine_died": 1}


def test_one_that_takes_too_long_says_who_did_not_stop(pool: Pool) -> None:
    serving(pool, 2)
    drain = drain_zone(zone="north", actor="test", limit_s=60)
    ZoneDrain.objects.update(started_at=timezone.now() - timedelta(seconds=61))
    assert advance_drains() == [drain.pk]
    drain.refresh_from_db()
    assert (drain.verdict, drain.replicas[0] in drain.reason) == (V.TIMED_OUT, True)


def test_taken_back_what_has_not_left_yet_stays(pool: Pool) -> None:
    serving(pool, 2)
    (old,) = there()
    drain = drain_zone(zone="north", actor="test")
    assert undrain_zone(zone="north", actor="test") == 1
    drain.refresh_from_db()
    assert (drain.verdict, there(), len(there("south"))) == (V.CANCELLED, [old], 1)
    assert not NodeHeartbeat.objects.filter(is_cordoned=True).exists()
    look_after_fleet()
    assert there() == [old]
    drain_zone(zone="north", actor="test")  # and it may be tried again


def test_it_is_drained_once_at_a_time(pool: Pool) -> None:
    serving(pool, 2)
    drain_zone(zone="north", actor="test")
    with pytest.raises(Conflict, match="being drained already"):
        drain_zone(zone="north", actor="test")
    assert len(there("south")) == 2


def test_an_empty_zone_is_clean_and_one_that_is_not_there_is_unknown(pool: Pool) -> None:
    drain = drain_zone(zone="north", actor="test")
    assert ended(drain).verdict == V.CLEAN
    for zone in ("", "nowhere"):
        with pytest.raises(UnknownZone):
            drain_zone(zone=zone, actor="test")


@pytest.mark.parametrize("limit_s", [0, -5, 10**30])
def test_a_limit_that_means_nothing_is_refused(pool: Pool, limit_s: int) -> None:
    with pytest.raises(InvalidInput, match="within 1 to"):
        drain_zone(zone="north", actor="test", limit_s=limit_s)
    assert not ZoneDrain.objects.exists()


def test_two_zones_do_not_count_on_each_others_room(pool: Pool) -> None:
    serving(pool, 2)
    drain_zone(zone="north", actor="test")
    with pytest.raises(ZoneCannotGo, match="room for 0"):
        drain_zone(zone="south", actor="another")
    assert NodeHeartbeat.objects.filter(is_cordoned=False).get().zone == "south"


def test_what_was_let_go_by_force_is_asked_for_again_where_there_is_room(pool: Pool) -> None:
    serving(pool, 4)
    Pool.objects.update(desired_replicas=4)
    NodeHeartbeat.objects.filter(name="s1").update(max_replicas=3)
    drain_zone(zone="north", actor="test", is_forced=True)
    tick()
    assert len(there("south")) == 3
    NodeHeartbeat.objects.filter(name="s1").update(max_replicas=9)
    tick()
    tick()
    assert len(there("south")) == 4


def test_what_came_back_while_it_was_drained_is_in_the_report(pool: Pool) -> None:
    serving(pool, 2)
    drain = drain_zone(zone="north", actor="test")
    set_cordon(node="n1", is_cordoned=False, actor="another")
    want(pool=pool, version=stable(pool), serving=3)
    assert len(there()) == 2
    for new in Replica.objects.exclude(pk__in=drain.replicas).values_list("id", flat=True):
        now_serves(new)
    look_after_fleet()
    stopped(*drain.replicas)
    look_after_fleet()
    ZoneDrain.objects.update(emptied_at=timezone.now() - LEDGER_LAG)
    look_after_fleet()
    drain.refresh_from_db()
    assert (drain.verdict, drain.reason) == (V.CLEAN, "1 replicas were placed there meanwhile")
    assert drain.after["models"] == {"m": {"zone": 1, "elsewhere": 2}}

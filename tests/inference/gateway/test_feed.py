import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from headway.clock import SystemClock
from inference.gateway.feed import Feed, FeedTunables
from inference.gateway.snapshot import load_snapshot
from inference.gateway.state import ControlState, KeyRefused
from inference.models import ControlChange, GatewayFeed
from inference.services import control, feed_progress
from tenants.models import Tenant
from tenants.services.keys import IssuedKey, issue_api_key, revoke_api_key
from tenants.services.tenants import create_tenant
from tests.inference.gateway.control_rows import model_row, replica_row
from tests.inference.gateway.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)

TUNABLES = FeedTunables(poll_s=0.01, max_backoff_s=0.05, heartbeat_s=0.05, snapshot_s=0.02)

Make = Callable[..., tuple[Feed, ControlState]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Feed] = []

    def build(gateway: str = "g1", tunables: FeedTunables = TUNABLES) -> tuple[Feed, ControlState]:
        state = ControlState()
        feed = Feed(state, gateway=gateway, snapshot_path=tmp_path / "control", tunables=tunables, clock=SystemClock())
        made.append(feed)
        feed.start()
        return feed, state

    yield build
    for feed in made:
        feed.stop()


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """The database as the feed sees it: away or there. What it does with it goes through two functions."""
    is_away = {"now": False}

    def unless_away(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_away["now"]:
                raise OperationalError("could not connect to server")
            return function(*args, **kwargs)

        return call

    for name in ("has_rows_after", "rows_after", "newest_rows"):
        monkeypatch.setattr(control, name, unless_away(getattr(control, name)))
    yield lambda value: is_away.update(now=value)


def acme_with_key() -> tuple[Tenant, IssuedKey]:
    tenant = create_tenant(name="acme", actor="test")
    return tenant, issue_api_key(tenant=tenant, name="ci", actor="test")


def is_accepted(state: ControlState, key: IssuedKey) -> bool:
    try:
        return state.authenticate(key.text, now_s=time.time()).key_id == key.key.id
    except KeyRefused:
        return False


def publish(row: Any) -> None:
    control.publish_now(kind=row.kind, key=row.key, payload=row.payload)


def test_a_fresh_gateway_loads_what_is_there_and_is_ready_when_it_has_it(make: Make) -> None:
    _, key = acme_with_key()
    publish(model_row(0))
    feed, state = make()
    assert feed.wait_ready(10)
    assert is_accepted(state, key)
    assert state.model("m") is not None
    assert feed.why_not_ready() == ""


def test_an_empty_database_is_a_state_too(make: Make) -> None:
    feed, state = make()
    assert feed.wait_ready(10)
    assert state.models() == []
    _, key = acme_with_key()
    eventually(lambda: is_accepted(state, key))


def test_a_key_made_or_revoked_later_is_known_within_a_second(make: Make) -> None:
    feed, state = make(tunables=FeedTunables())
    assert feed.wait_ready(10)
    _, key = acme_with_key()
    started_s = time.monotonic()
    eventually(lambda: is_accepted(state, key), within_s=1.0)
    revoke_api_key(key_id=key.key.id, actor="test")
    revoked_s = time.monotonic()
    eventually(lambda: not is_accepted(state, key), within_s=1.0)
    assert revoked_s - started_s < 2.0


def test_more_changes_than_one_look_reads_are_all_applied(make: Make) -> None:
    for number in range(25):
        publish(model_row(0, f"m{number}"))
    feed, state = make(tunables=FeedTunables(poll_s=0.01, rows_a_poll=4))
    assert feed.wait_ready(10)
    for number in range(25, 50):
        publish(model_row(0, f"m{number}"))
    eventually(lambda: len(state.models()) == 50)


def test_the_feed_says_how_far_it_is_and_signs_off(make: Make) -> None:
    feed, _ = make()
    assert feed.wait_ready(10)
    _, key = acme_with_key()
    change_id = revoke_api_key(key_id=key.key.id, actor="test").change_id
    assert feed_progress.wait_for_acknowledgement(change_id, 5.0) == [("g1", True)]
    seen_at = GatewayFeed.objects.get().seen_at
    eventually(lambda: GatewayFeed.objects.get().seen_at > seen_at, what="the heartbeat")
    feed.stop()
    assert not GatewayFeed.objects.exists()


def test_with_the_database_away_and_no_snapshot_a_gateway_is_not_ready_and_keeps_trying(
    make: Make, away: Callable[[bool], None]
) -> None:
    away(True)
    feed, state = make()
    eventually(lambda: "no snapshot" in feed.why_not_ready())
    assert not feed.wait_ready(0.1)
    _, key = acme_with_key()
    away(False)
    assert feed.wait_ready(10)
    assert is_accepted(state, key)


def test_with_the_database_away_a_snapshot_is_enough_to_serve_from(
    make: Make, away: Callable[[bool], None], tmp_path: Path
) -> None:
    _, key = acme_with_key()
    _, other = Tenant.objects.get(), issue_api_key(tenant=Tenant.objects.get(), name="other", actor="test")
    revoke_api_key(key_id=other.key.id, actor="test")
    publish(model_row(0))
    publish(replica_row(0))
    first, _ = make()
    assert first.wait_ready(10)
    first.stop()

    away(True)
    second, state = make("g2")
    assert second.wait_ready(10)
    assert is_accepted(state, key)
    assert not is_accepted(state, other)
    assert [replica.id for replica in state.replicas("m")] == ["r1"]

    publish(model_row(0, "later"))
    away(False)
    eventually(lambda: state.model("later") is not None, what="catching up")


def test_a_running_gateway_serves_on_while_the_database_is_away_and_its_age_tells(
    make: Make, away: Callable[[bool], None]
) -> None:
    _, key = acme_with_key()
    feed, state = make()
    assert feed.wait_ready(10)
    eventually(lambda: feed.age_s() < 0.05)
    away(True)
    eventually(lambda: feed.age_s() > 0.3, what="ageing")
    assert feed.is_ready
    assert is_accepted(state, key)
    revoke_api_key(key_id=key.key.id, actor="test")
    away(False)
    eventually(lambda: not is_accepted(state, key))
    assert feed.age_s() < 0.3


def test_the_snapshot_follows_changes_and_is_not_written_without(make: Make, tmp_path: Path) -> None:
    feed, _ = make()
    assert feed.wait_ready(10)
    publish(model_row(0))
    path = tmp_path / "control"
    eventually(lambda: (snapshot := load_snapshot(path)) and [row.key for row in snapshot.rows] == ["m"])
    written_at = path.stat().st_mtime_ns
    time.sleep(0.1)
    assert path.stat().st_mtime_ns == written_at
    publish(model_row(0, "m2"))
    eventually(lambda: path.stat().st_mtime_ns > written_at)


def test_a_snapshot_that_cannot_be_read_or_written_is_no_reason_to_fail(make: Make, tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    _, key = acme_with_key()
    feed, state = make()
    assert feed.wait_ready(10)
    assert is_accepted(state, key)


def test_another_database_than_the_snapshot_s_is_loaded_afresh(make: Make) -> None:
    _, key = acme_with_key()
    for number in range(10):
        publish(model_row(0, f"old{number}"))
    first, _ = make()
    assert first.wait_ready(10)
    first.stop()

    ControlChange.objects.all().delete()
    ControlChange.objects.create(id=1, kind="model", key="new", payload=model_row(0, "new").payload)
    second, state = make("g2")
    assert second.wait_ready(10)
    assert [model.public_id for model in state.models()] == ["new"]
    assert not is_accepted(state, key)


def test_another_database_whose_ids_are_as_high_is_noticed_too(make: Make) -> None:
    publish(model_row(0, "old"))
    last_id = ControlChange.objects.get().id
    feed, state = make()
    assert feed.wait_ready(10)
    ControlChange.objects.all().delete()
    ControlChange.objects.create(id=last_id, kind="model", key="new", payload=model_row(0, "new").payload)
    eventually(lambda: [model.public_id for model in state.models()] == ["new"], what="the reload by a running gateway")


def test_an_unexpected_failure_does_not_end_the_thread(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, state = make()
    assert feed.wait_ready(10)
    calls = {"left": 2}
    original = control.has_rows_after

    def fails_twice(*args: Any, **kwargs: Any) -> Any:
        if calls["left"]:
            calls["left"] -= 1
            raise RuntimeError("a mistake of ours")
        return original(*args, **kwargs)

    monkeypatch.setattr(control, "has_rows_after", fails_twice)
    publish(model_row(0))
    eventually(lambda: state.model("m") is not None)
    assert calls["left"] == 0


def test_the_feed_is_compacted_now_and_then(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.gateway.feed._FIRST_COMPACTION_S", 0.0)
    for _ in range(3):
        publish(model_row(0))
    two_days_ago = timezone.now() - timedelta(days=2)
    ControlChange.objects.update(at=two_days_ago)
    feed_progress.acknowledge(gateway="dead", applied_change_id=1, now=two_days_ago)
    feed, state = make()
    eventually(lambda: ControlChange.objects.count() == 1)
    eventually(lambda: [row.gateway for row in GatewayFeed.objects.all()] == ["g1"])
    assert feed.wait_ready(10)
    assert state.model("m") is not None

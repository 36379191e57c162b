"""The agent's link to a real database, which goes away and comes back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.utils import timezone

from headway.clock import FakeClock
from headway.home import Home
from inference.errors import NodeNameTaken
from inference.fleet_models import ReplicaLoad
from inference.models import ControlChange, GoldenReference, ModelVersion, NodeHeartbeat, Replica, ReplicaState
from inference.node.control_link import RETRY_S, ControlLink
from inference.node.node_files import NodeFiles
from inference.services.control import publish_now
from inference.services.heartbeats import Beat, Load, check_name
from inference.services.node import ReferenceKey, mark_stopped
from inference.services.registry import register_model, scale
from inference.services.replicas import advance
from inference.services.version_spec import VersionSpec

pytestmark = pytest.mark.django_db
S = ReplicaState


@contextmanager
def database_away() -> Iterator[None]:
    """The connection is lost and cannot be made again. (For tests without a transaction around them.)"""

    def refuse(*_args: Any) -> None:
        raise OperationalError("connection refused")

    connections["default"].close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections["default"], "connect", refuse)
        yield


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def link(clock: FakeClock) -> ControlLink:
    return ControlLink("here", clock)


@pytest.fixture
def replica() -> Replica:
    spec = VersionSpec(weights_uri="/w", engine_environment="vllm-cpu-1", engine_args=["--x"], dtype="float32")
    register_model(public_id="m", actor="test", version=spec)
    scale(public_id="m", replicas=1, actor="test", node="here")
    return Replica.objects.get()


def state_of(replica: Replica) -> str:
    return Replica.objects.get(pk=replica.pk).state


def test_it_reads_this_nodes_replicas_only(link: ControlLink, replica: Replica) -> None:
    rows = link.poll()
    assert rows is not None
    (row,) = rows
    assert (row.replica_id, row.weights_uri, row.engine_args, row.served_name) == (replica.id, "/w", ["--x"], "m")
    Replica.objects.update(node="elsewhere")
    assert link.poll() == []


def test_stopped_and_external_replicas_are_no_business_of_an_agent(link: ControlLink, replica: Replica) -> None:
    Replica.objects.update(state=S.STOPPED)
    assert link.poll() == []
    Replica.objects.update(state=S.REQUESTED, version=None)
    assert link.poll() == []


@pytest.mark.django_db(transaction=True)
def test_reports_made_while_the_database_is_away_are_told_in_order_when_it_is_back(
    link: ControlLink, clock: FakeClock, replica: Replica
) -> None:
    before = ControlChange.objects.count()
    with database_away():
        link.move(replica.id, expected=S.REQUESTED, to=S.STAGING)
        link.move(replica.id, expected=S.STAGING, to=S.STARTING, epoch=1, url="unix:/s")
        link.move(replica.id, expected=S.STARTING, to=S.CERTIFYING)
        assert link.is_away
        assert link.poll() is None
    assert state_of(replica) == S.REQUESTED
    clock.advance(RETRY_S)
    rows = link.poll()
    assert rows is not None
    assert (rows[0].state, rows[0].epoch, rows[0].url) == (S.CERTIFYING, 1, "unix:/s")
    told = [change.payload["state"] for change in ControlChange.objects.order_by("id")[before:] if change.payload]
    assert told == [S.STAGING, S.STARTING, S.CERTIFYING]
    assert not link.is_away


@pytest.mark.django_db(transaction=True)
def test_an_absent_database_is_not_asked_at_every_turn(link: ControlLink, clock: FakeClock, replica: Replica) -> None:
    with database_away():
        assert link.poll() is None
    assert link.poll() is None, "not asked yet"
    clock.advance(RETRY_S)
    assert link.poll() is not None


def test_a_report_that_someone_forestalled_is_dropped_and_the_rest_goes_on(link: ControlLink, replica: Replica) -> None:
    advance(replica_id=replica.id, expected=S.REQUESTED, to=S.FAILED, reason="an operator's")
    link.move(replica.id, expected=S.REQUESTED, to=S.STAGING)
    assert link.num_reports_waiting == 0
    rows = link.poll()
    assert rows is not None
    assert rows[0].state == S.FAILED


def test_a_reason_is_shown_but_only_in_the_state_it_belongs_to(link: ControlLink, replica: Replica) -> None:
    link.note(replica.id, S.STAGING, "late")
    assert Replica.objects.get().reason == ""
    link.note(replica.id, S.REQUESTED, "downloading 40 of 93 MB")
    assert Replica.objects.get().reason == "downloading 40 of 93 MB"


def test_a_digest_is_filled_in_once(link: ControlLink, replica: Replica) -> None:
    assert replica.version_id is not None
    link.record_digest(replica.version_id, "first")
    link.record_digest(replica.version_id, "second")
    assert ModelVersion.objects.get().weights_digest == "first"


def test_the_first_reference_is_kept(link: ControlLink, clock: FakeClock, replica: Replica) -> None:
    assert replica.version_id is not None
    key = ReferenceKey(version_id=replica.version_id, engine_environment="e", dtype="float32", machine_kind="cpu")
    assert link.reference(key) is None
    assert link.record_reference(key, [[-1.0]], replica.id) == [[-1.0]]
    another_agent = ControlLink("there", clock)
    assert another_agent.record_reference(key, [[-2.0]], "rep-x") == [[-1.0]]
    assert another_agent.reference(key) == [[-1.0]]
    assert GoldenReference.objects.get().recorded_from == replica.id


@pytest.mark.django_db(transaction=True)
def test_a_reference_made_while_the_database_is_away_holds_for_the_next_replica(
    link: ControlLink, clock: FakeClock, replica: Replica
) -> None:
    assert replica.version_id is not None
    key = ReferenceKey(version_id=replica.version_id, engine_environment="e", dtype="float32", machine_kind="cpu")
    with database_away():
        assert link.reference(key) is None
        assert link.record_reference(key, [[-1.0]], replica.id) == [[-1.0]]
        assert link.reference(key) == [[-1.0]]
    clock.advance(RETRY_S)
    assert link.flush()
    assert GoldenReference.objects.get().logprobs == [[-1.0]]


def test_a_node_that_lives_says_so(link: ControlLink) -> None:
    load = Load(epoch=2, running=1, waiting=0, kv_used_ratio=0.5, tokens_per_s=30.0)
    link.beat(Beat("cpu-a", zone="", max_replicas=0, loads={"rep-1": load}))
    NodeHeartbeat.objects.update(is_cordoned=True, lost_at=timezone.now())
    link.beat(Beat("cpu-b", zone="north", max_replicas=2, loads={"rep-1": replace(load, running=3), "rep-2": load}))
    row = NodeHeartbeat.objects.get()
    assert (row.name, row.machine_kind, row.zone, row.max_replicas) == ("here", "cpu-b", "north", 2)
    assert (row.is_cordoned, row.lost_at) == (True, None)
    assert dict(ReplicaLoad.objects.values_list("replica", "running")) == {"rep-1": 3, "rep-2": 1}


def test_the_newest_change_is_the_last_thing_the_feed_said(link: ControlLink, replica: Replica) -> None:
    link.move(replica.id, expected=S.REQUESTED, to=S.STAGING)
    assert link.newest_change_of(replica.id) == ControlChange.objects.latest("id").id
    assert link.newest_change_of("rep-none") == 0


@pytest.mark.parametrize("state", [S.STAGING, S.STARTING, S.CERTIFYING, S.READY, S.DRAINING])
def test_stopping_all_engines_leaves_rows_that_the_next_agent_starts_again_or_forgets(
    replica: Replica, state: ReplicaState
) -> None:
    Replica.objects.update(state=state)
    mark_stopped(nodes=["elsewhere"], reason="no")
    assert state_of(replica) == state
    mark_stopped(nodes=["here"], reason="stopped by make down")
    row = Replica.objects.get()
    assert (row.state, row.reason) == (S.FAILED, "stopped by make down")
    Replica.objects.update(state=state, is_wanted=False)
    mark_stopped(nodes=["here"], reason="stopped by make down")
    assert state_of(replica) == S.STOPPED


def beaten(link: ControlLink) -> None:
    link.beat(Beat("cpu-b", "", 0, {}))


def test_of_two_agents_with_one_name_only_the_first_is_told_of_its_replicas(clock: FakeClock, replica: Replica) -> None:
    """Both would start engines for the same rows, and each take the other's moves for somebody's interference."""
    first, second = ControlLink("here", clock, agent="one"), ControlLink("here", clock, agent="two")
    beaten(first)
    beaten(second)
    assert NodeHeartbeat.objects.get().agent == "one"
    assert (len(first.poll() or []), second.poll(), second.poll_copies()) == (1, [], None)
    with pytest.raises(NodeNameTaken, match="HEADWAY_NODE_NAME"):
        check_name(node="here", agent="two")


def test_reports_of_an_agent_whose_name_was_taken_are_not_told(clock: FakeClock, replica: Replica) -> None:
    late = ControlLink("here", clock, agent="two")
    late._reports.append(lambda: pytest.fail("it told what it had seen"))
    beaten(ControlLink("here", clock, agent="one"))
    assert (late.poll(), late.num_reports_waiting) == ([], 0)


@pytest.mark.parametrize("way", ["lost", "silent for a minute", "forgotten"])
def test_a_name_is_free_again_once_its_machine_is_gone(clock: FakeClock, replica: Replica, way: str) -> None:
    beaten(ControlLink("here", clock, agent="one"))
    if way == "lost":
        NodeHeartbeat.objects.update(lost_at=timezone.now())
    elif way == "forgotten":
        NodeHeartbeat.objects.all().delete()
    else:
        NodeHeartbeat.objects.update(seen_at=timezone.now() - timedelta(seconds=61))
    second = ControlLink("here", clock, agent="two")
    beaten(second)
    assert (NodeHeartbeat.objects.get().agent, len(second.poll() or [])) == ("two", 1)
    assert ControlLink("here", clock, agent="one").poll() == [], "its engines go, should it come back"


def test_a_row_of_the_release_before_is_the_first_agents_that_beats(clock: FakeClock, replica: Replica) -> None:
    NodeHeartbeat.objects.create(name="here", machine_kind="cpu-b", seen_at=timezone.now())
    beaten(ControlLink("here", clock, agent="one"))
    assert NodeHeartbeat.objects.get().agent == "one"


def test_news_is_what_was_published_of_a_replica_since_it_was_asked_for_last(link: ControlLink, replica: Replica) -> None:
    assert link.has_news(), "nothing is known yet"
    assert not link.has_news()
    publish_now(kind="tenant", key="t", payload={})
    assert not link.has_news()
    advance(replica_id=replica.id, expected=S.REQUESTED, to=S.STAGING)
    publish_now(kind="tenant", key="t", payload={})
    assert link.has_news()
    assert not link.has_news()


@pytest.mark.django_db(transaction=True)
def test_after_the_database_was_away_everything_is_news(link: ControlLink, clock: FakeClock) -> None:
    link.has_news()
    with database_away():
        assert not link.has_news()
    clock.advance(RETRY_S)
    assert link.has_news()


def test_an_agents_id_is_kept_and_another_homes_is_another(tmp_path: Path) -> None:
    here, there = (NodeFiles(Home(tmp_path / name), "n") for name in ("here", "there"))
    first = here.agent_id()
    assert (len(first), NodeFiles(Home(tmp_path / "here"), "n").agent_id()) == (32, first)
    assert there.agent_id() != first
    assert not list(here.folder.glob(".agent_id-*"))

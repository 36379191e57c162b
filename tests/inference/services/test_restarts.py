"""All replicas of a model restarted, one after the other."""

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from headway.errors import Conflict, InvalidInput
from inference.errors import UnknownModel
from inference.fleet_models import RollingRestart
from inference.models import Pool, Replica, ReplicaKind, ReplicaState
from inference.services import fleet_sweep, zones
from inference.services.fleet_sweep import look_after_fleet
from inference.services.nodes import set_cordon
from inference.services.registry import register_replica, register_version
from inference.services.replicas import HELD
from inference.services.restarts import cancel_restart, restart_model
from inference.services.wanted import want
from tenants.models import AuditEntry
from tests.inference.services.fleet import (
    SPEC,
    falls_silent,
    node,
    now_serves,
    pool_of,
    serving,
    stable,
    stopped,
    watched_for,
)

pytestmark = pytest.mark.django_db
S = ReplicaState


def begin() -> RollingRestart:
    found = restart_model(public_id="m", actor="test")
    look_after_fleet()
    return fresh(found)


def fresh(restart: RollingRestart) -> RollingRestart:
    return RollingRestart.objects.get(pk=restart.pk)


def ready() -> set[str]:
    return set(Replica.objects.filter(state=S.READY, is_wanted=True).values_list("id", flat=True))


def agents_work() -> None:
    """One look of everybody: new ones come up, those let go stop."""
    Replica.objects.filter(is_wanted=False).exclude(state=S.STOPPED).update(state=S.STOPPED)
    for replica in Replica.objects.filter(state=S.REQUESTED):
        now_serves(replica.id)


def until_over(restart: RollingRestart, *, at_least: int) -> RollingRestart:
    for _ in range(20):
        assert len(ready()) >= at_least
        agents_work()
        assert len(ready()) >= at_least
        look_after_fleet()
        if fresh(restart).ended_at:
            return fresh(restart)
    raise AssertionError(f"it does not end: {fresh(restart).reason}")


def test_b126_with_room_for_one_more_the_pool_is_never_short() -> None:
    node("a", max_replicas=4)
    old = {replica.id for replica in serving(pool_of(), 3)}
    over = until_over(begin(), at_least=3)
    assert (over.verdict, set(over.done), over.waiting, over.replica) == ("done", old, [], "")
    assert len(ready()) == 3 and not ready() & old
    assert AuditEntry.objects.filter(action="model.restart", target="m").count() == 1


def test_each_new_one_comes_where_the_old_one_was() -> None:
    for zone in ("north", "south"):
        node(f"{zone}-1", zone=zone)
    serving(pool_of(), 2)
    until_over(begin(), at_least=2)
    assert sorted(Replica.objects.filter(state=S.READY, is_wanted=True).values_list("zone", flat=True)) == ["north", "south"]


def test_b126_without_room_for_two_it_is_never_more_than_one_short() -> None:
    node("a", max_replicas=3)
    old = {replica.id for replica in serving(pool_of(), 3)}
    over = until_over(begin(), at_least=2)
    assert (over.verdict, set(over.done)) == ("done", old)
    assert len(ready()) == 3 and not ready() & old


def test_without_room_the_next_waits_until_every_other_one_serves() -> None:
    node("a", max_replicas=2)
    first, second = serving(pool_of(), 2)
    Replica.objects.filter(pk=second.id).update(state=S.CERTIFYING)
    restart = begin()
    assert (restart.replica, ready()) == ("", {first.id})
    assert second.id in restart.reason and "do not serve" in restart.reason
    now_serves(second.id)
    look_after_fleet()
    assert (fresh(restart).replica, ready()) == (first.id, {second.id})


def test_b126_without_room_the_only_one_of_its_version_serves_until_there_is_room() -> None:
    """The candidate of a rollout would be rolled back, tenants pinned to it refused."""
    node("a", max_replicas=3)
    pool = pool_of()
    serving(pool, 2)
    candidate = register_version(public_id="m", spec=SPEC, actor="test")
    (alone,) = want(pool=pool, version=candidate, serving=1).added
    now_serves(alone)
    restart = begin()
    for _ in range(20):
        assert alone in ready()
        agents_work()
        look_after_fleet()
    assert (fresh(restart).verdict, fresh(restart).waiting, len(fresh(restart).done)) == ("running", [alone], 2)
    assert f"{alone} is the only one of m v2 that serves" in fresh(restart).reason
    node("b")
    over = until_over(restart, at_least=3)
    assert (over.verdict, len(over.done), alone in ready()) == ("done", 3, False)


@pytest.mark.parametrize("trouble", ["lost", "cordoned"])
def test_one_whose_node_takes_nothing_waits_and_keeps_nobody_else_from_their_turn(trouble: str) -> None:
    node("a", max_replicas=1)
    node("b", max_replicas=1)
    old = serving(pool_of(), 2)
    found = restart_model(public_id="m", actor="test")
    first = Replica.objects.get(pk=found.waiting[0])
    if trouble == "lost":
        falls_silent(first.node)
        watched_for()
    else:
        set_cordon(node=first.node, is_cordoned=True, actor="test")
    settled = zones.advance_drains
    with pytest.MonkeyPatch.context() as patch:
        turns = list[object]()
        patch.setattr(fleet_sweep, "STEPS", (*fleet_sweep.STEPS[:-1], lambda: turns.append(settled())))
        look_after_fleet()
        look_after_fleet()
        assert turns == [[], []]
    waits = fresh(found)
    assert (waits.ended_at, waits.replica) == (None, "")
    assert f"nothing can come in the place of {first.id}: no node" in waits.reason
    assert {row.id for row in Replica.objects.filter(is_wanted=True)} == {row.id for row in old}, (
        "it was not drained for nothing"
    )
    node("c", max_replicas=2)
    until_over(found, at_least=1)
    assert len(ready()) == 2


def test_a_fault_in_one_step_of_the_sweep_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = list[str]()

    def fails() -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(fleet_sweep, "STEPS", (fails, lambda: turns.append("next")))
    look_after_fleet()
    assert turns == ["next"]

    def database_is_away() -> None:
        raise OperationalError

    monkeypatch.setattr(fleet_sweep, "STEPS", (database_is_away,))
    with pytest.raises(OperationalError):
        look_after_fleet()


def test_the_next_is_begun_once_the_one_before_it_has_stopped() -> None:
    node("a")
    first, second = serving(pool_of(), 2)
    restart = begin()
    now_serves(restart.replaced_by)
    look_after_fleet()
    look_after_fleet()
    assert (fresh(restart).replica, "finishes its requests" in fresh(restart).reason) == (first.id, True)
    stopped(first.id)
    look_after_fleet()
    assert (fresh(restart).replica, fresh(restart).done) == (second.id, [first.id])


def test_those_that_stand_by_are_restarted_first_and_stand_by_again() -> None:
    node("a")
    replicas = serving(pool_of(), 1, warm=1)
    warm = next(replica for replica in replicas if replica.is_standby)
    restart = begin()
    assert restart.replica == warm.id
    over = until_over(restart, at_least=1)
    assert sorted(Replica.objects.exclude(state=S.STOPPED).values_list("state", "is_standby")) == [
        ("ready", False),
        ("warm", True),
    ]
    assert over.verdict == "done"


def test_a_new_one_that_cannot_come_up_ends_it_and_the_old_one_serves_on() -> None:
    node("a")
    first, second = serving(pool_of(), 2)
    restart = begin()
    Replica.objects.filter(pk=restart.replaced_by).update(state=S.FAILED, reason=f"bad weights{HELD}")
    look_after_fleet()
    over = fresh(restart)
    assert (over.verdict, "bad weights" in over.reason, over.waiting) == ("failed", True, [second.id])
    assert ready() == {first.id, second.id}
    assert not Replica.objects.get(pk=restart.replaced_by).is_wanted
    assert Replica.objects.get(pk=first.id).replaced_by == ""


def test_one_that_failed_but_is_tried_again_is_waited_for() -> None:
    node("a")
    serving(pool_of(), 1)
    restart = begin()
    Replica.objects.filter(pk=restart.replaced_by).update(state=S.FAILED, reason="its process ended")
    look_after_fleet()
    assert fresh(restart).verdict == "running"


def test_scaled_down_meanwhile_it_goes_on_with_what_is_left() -> None:
    node("a")
    pool = pool_of()
    serving(pool, 3)
    restart = begin()
    want(pool=pool, version=stable(pool), serving=1)
    over = until_over(restart, at_least=1)
    assert (over.verdict, len(ready())) == ("done", 1)


def test_it_is_cancelled_and_the_one_under_way_is_finished() -> None:
    node("a")
    first, second = serving(pool_of(), 2)
    restart = begin()
    cancel_restart(public_id="m", actor="test")
    for _ in range(3):
        agents_work()
        look_after_fleet()
    assert fresh(restart).verdict == "cancelled"
    assert ready() == {restart.replaced_by, second.id}
    assert Replica.objects.get(pk=first.id).state == S.STOPPED
    with pytest.raises(Conflict, match="no restart"):
        cancel_restart(public_id="m", actor="test")


def test_one_at_a_time_of_what_an_agent_looks_after() -> None:
    node("a")
    pool_of()
    register_replica(public_id="m", url="http://127.0.0.1:1", kind=ReplicaKind.VLLM, actor="test")
    with pytest.raises(InvalidInput, match="no replica to restart"):
        restart_model(public_id="m", actor="test")
    with pytest.raises(UnknownModel):
        restart_model(public_id="nothing", actor="test")
    serving(Pool.objects.get(), 1)
    restart_model(public_id="m", actor="test")
    with pytest.raises(Conflict, match="already"):
        restart_model(public_id="m", actor="test")
    assert RollingRestart.objects.count() == 1


def test_the_command_says_how_far_it_came(capsys: Any) -> None:
    node("a")
    serving(pool_of(), 2)
    call_command("restart", "m", no_wait=True)
    call_command("restart", "m", cancel=True)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "m: running; 0 of 2 restarted"
    assert said[1].startswith("m: cancelled (by ") and said[1].endswith("; 0 of 2 restarted")


def test_who_waits_for_the_end_is_told_by_the_exit_code_that_another_has_cancelled_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node("a")
    serving(pool_of(), 2)
    monkeypatch.setattr("time.sleep", lambda _s: cancel_restart(public_id="m", actor="another"))
    with pytest.raises(SystemExit) as ended:
        call_command("restart", "m")
    assert ended.value.code == 1


def test_who_stops_waiting_is_told_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    node("a")
    serving(pool_of(), 2)

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    with pytest.raises(CommandError, match="the restart goes on") as ended:
        call_command("restart", "m")
    assert ended.value.returncode == 130
    assert RollingRestart.objects.get().ended_at is None

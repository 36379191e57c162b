"""From a request for a pool at zero to one start, whoever asks and however often."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from django.db import connection
from django.utils import timezone

from inference.models import ControlChange, NodeHeartbeat, Pool, Replica, ReplicaState
from inference.policy.autoscale import Why
from inference.scaling_models import ScaleDecision, WakeUp
from inference.services import wake_ups
from inference.services.autoscaling import autoscale_pools
from inference.services.pools import set_pool
from inference.services.registry import register_model
from inference.services.replicas import HELD
from inference.services.wake_ups import WOKEN, WakeView, ask_for_wake_up, wake_pools
from inference.services.wanted import Fitted, want_what_fits
from tests.inference.services.scaled_pool import SPEC, node, pool, scaled_pool, serving, shown

pytestmark = pytest.mark.django_db
T = TypeVar("T")


def ask(model: str = "m") -> WakeView:
    return ask_for_wake_up(model=model, asked_by="dispatcher-1")


def on_threads(count: int, work: Callable[[], T]) -> list[T]:
    def one(_: int) -> T:
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(one, range(count)))


def test_one_row_one_start_one_decision_and_the_row_goes_once_it_serves() -> None:
    scaled_pool()
    assert not ask().is_taken and not ask().is_taken
    assert (WakeUp.objects.count(), wake_pools(), wake_pools()) == (1, 1, 0)
    assert ask().is_taken and serving() == 1 and pool().desired_replicas == 1
    assert list(ScaleDecision.objects.values_list("reason", "before", "desired")) == [(WOKEN, 0, 1)]
    wake_pools()
    assert WakeUp.objects.exists(), "nothing serves yet"
    Replica.objects.update(state=ReplicaState.READY)
    wake_pools()
    assert not WakeUp.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_b127_a_hundred_who_ask_at_once_and_workers_that_sweep_at_once_make_one_start() -> None:
    scaled_pool()
    views = on_threads(100, ask)
    assert len(views) == 100 and not any(view.refused for view in views)
    assert WakeUp.objects.count() == 1
    assert sum(on_threads(8, wake_pools)) == 1
    assert Replica.objects.count() == 1
    assert ScaleDecision.objects.filter(reason=WOKEN).count() == 1


def test_a_warm_one_is_put_into_rotation_and_none_is_started() -> None:
    scaled_pool()
    set_pool(public_id="m", changes={"warm_replicas": 1}, actor="test")
    warm = Replica.objects.get()
    Replica.objects.update(state=ReplicaState.WARM)
    set_pool(public_id="m", changes={"warm_replicas": 0}, actor="test")
    Replica.objects.update(is_wanted=True)
    ask()
    wake_pools()
    assert Replica.objects.count() == 1 and not Replica.objects.get(pk=warm.pk).is_standby


def test_one_that_is_wanted_already_is_not_asked_for_again() -> None:
    scaled_pool()
    ask()
    wake_pools()
    Replica.objects.update(state=ReplicaState.STARTING)
    WakeUp.objects.all().delete()
    ask()
    wake_pools()
    assert Replica.objects.count() == 1


def test_the_autoscaler_does_not_put_it_to_sleep_for_what_was_before() -> None:
    scaled_pool(idle_before_zero_s=60)
    now = timezone.now()
    for second in range(0, 100, 5):
        autoscale_pools(shown=shown(second=second), now=now + timedelta(seconds=second))
    ask()
    wake_pools(now=now + timedelta(seconds=101))
    autoscale_pools(shown=shown(second=105), now=now + timedelta(seconds=105))
    assert serving() == 1
    assert not ScaleDecision.objects.filter(reason=Why.IDLE, before=1).exists()


def test_without_room_it_is_refused_with_the_reason_and_may_be_asked_for_again() -> None:
    scaled_pool()
    node(max_replicas=1)
    Replica.objects.create(id="rep-x", pool=pool(), node="n1", is_standby=True, changed_at=timezone.now())
    ask()
    wake_pools()
    view = ask()
    assert "no node has room" in view.refused and not view.is_taken and serving() == 0
    wake_pools(now=timezone.now() + timedelta(seconds=6))
    assert not WakeUp.objects.exists()
    node(max_replicas=2)
    ask()
    assert wake_pools() == 1 and serving() == 1


@pytest.mark.parametrize("trouble", ["its node n1 is silent", "the weights are damaged"])
def test_while_what_is_wanted_cannot_come_up_callers_are_refused_and_not_held(trouble: str) -> None:
    scaled_pool()
    ask()
    assert wake_pools() == 1
    if "silent" in trouble:
        NodeHeartbeat.objects.update(seen_at=timezone.now() - timedelta(seconds=60))
    else:
        Replica.objects.update(state=ReplicaState.FAILED, reason=trouble + HELD)
    wake_pools()
    assert trouble in ask().refused
    wake_pools(now=timezone.now() + timedelta(seconds=6))
    assert not WakeUp.objects.exists()
    ask()
    wake_pools()
    assert trouble in ask().refused, "asked for again: refused at once"
    assert Replica.objects.count() == 1
    node()
    Replica.objects.update(state=ReplicaState.REQUESTED, reason="")
    wake_pools(now=timezone.now() + timedelta(seconds=12))
    ask()
    wake_pools()
    assert ask().is_taken and not ask().refused and Replica.objects.count() == 1


def test_a_pool_set_by_hand_or_unknown_is_not_woken() -> None:
    scaled_pool()
    set_pool(public_id="m", changes={"is_autoscaled": False}, actor="test")
    assert ask().refused and ask("nobody").refused
    assert not WakeUp.objects.exists()


def test_one_that_was_scaled_to_zero_again_may_be_woken_again() -> None:
    scaled_pool()
    ask()
    wake_pools()
    Replica.objects.update(is_wanted=False)
    wake_pools()
    assert not WakeUp.objects.exists()
    ask()
    assert wake_pools() == 1


def test_the_data_plane_is_told_how_long_it_may_hold_and_what_a_start_takes() -> None:
    scaled_pool(hold_limit_s=45)
    told = ControlChange.objects.filter(kind="model").order_by("-id").first()
    assert told is not None and told.payload is not None
    assert (told.payload["hold_limit_s"], told.payload["start_s"]) == (45, 30.0)
    set_pool(public_id="m", changes={"is_autoscaled": False}, actor="test")
    told = ControlChange.objects.filter(kind="model").order_by("-id").first()
    assert told is not None and told.payload is not None and told.payload["hold_limit_s"] == 0


def test_autoscaling_that_is_switched_off_while_pools_are_woken_stays_off(monkeypatch: pytest.MonkeyPatch) -> None:
    scaled_pool()
    register_model(public_id="n", actor="test", version=SPEC)
    set_pool(public_id="n", changes={"is_autoscaled": True, "max_replicas": 5}, actor="test")
    ask("m")
    ask("n")

    def meanwhile(*, pool: Pool, **wanted: Any) -> Fitted:
        other = "n" if pool.model.public_id == "m" else "m"
        set_pool(public_id=other, changes={"is_autoscaled": False}, actor="test")
        return want_what_fits(pool=pool, **wanted)

    monkeypatch.setattr(wake_ups, "want_what_fits", meanwhile)
    assert wake_pools() == 1
    off = Pool.objects.get(is_autoscaled=False)
    assert not Replica.objects.filter(pool=off).exists()
    told = ControlChange.objects.filter(kind="model", key=off.model.public_id).order_by("-id")[0].payload
    assert told is not None and told["hold_limit_s"] == 0

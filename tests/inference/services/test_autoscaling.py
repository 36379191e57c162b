"""The autoscaler's tick on real rows: who decides, what becomes of it, what is written down."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from inference.models import Pool, Replica, ReplicaState
from inference.policy.autoscale import Memory, Sample, Why
from inference.scaling_models import ScaleDecision, ScaleMemory
from inference.services.autoscale_memory import as_row, memory_of
from inference.services.autoscaling import autoscale_pools
from inference.services.pools import set_pool
from inference.services.registry import register_model, register_version, scale
from inference.services.scale_decisions import forget_old_scaling
from inference.services.wanted import want
from tests.inference.services.scaled_pool import SPEC, all_ready, have, node, pool, scaled_pool, serving, shown

pytestmark = pytest.mark.django_db
START = timezone.now()


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def looks(seconds: range, tokens: float, **more: Any) -> int:
    """How many looks changed anything."""
    changes = 0
    for second in seconds:
        changes += autoscale_pools(shown=shown(second=second, tokens=tokens, **more), now=at(second))
        all_ready()
    return changes


def test_load_brings_replicas_and_each_change_is_written_with_its_reason_and_evidence() -> None:
    scaled_pool()
    have(1)
    all_ready()
    changes = looks(range(0, 60, 5), 3000.0)
    assert (serving(), pool().desired_replicas) == (4, 4)
    changed = ScaleDecision.objects.exclude(before=F("desired"))
    assert changes == changed.count() <= 2
    decision = changed.order_by("-id")[0]
    assert decision.reason in set(Why) and decision.evidence["wanted"] == decision.desired == 4
    assert decision.decided_by == "autoscaler"


def test_what_stays_as_it_is_for_the_same_reason_is_written_once() -> None:
    scaled_pool(min_replicas=1)
    looks(range(0, 300, 10), 0.0)
    reasons = list(ScaleDecision.objects.order_by("id").values_list("desired", "reason"))
    assert len(reasons) == len(set(reasons)) <= 3


def test_b122_two_beats_and_a_constant_light_load_make_one_change_at_most() -> None:
    scaled_pool(min_replicas=0)
    have(1)
    all_ready()
    changes = 0
    for second in range(0, 600, 10):
        for beat in range(2):  # each has its own beat, and no lease between them
            seen = shown(second=second, tokens=200.0, in_flight={Replica.objects.get().id: 1})
            changes += autoscale_pools(shown=seen, now=at(second + beat * 0.3))
    assert changes <= 1 and serving() == 1
    assert ScaleMemory.objects.get().looks == 60, "of two at once one decides"


def test_b120_a_dispatcher_that_does_not_answer_changes_nothing() -> None:
    scaled_pool(idle_before_zero_s=10)
    have(2)
    all_ready()
    for second in range(0, 300, 10):
        assert not autoscale_pools(shown=None, now=at(second))
        assert not autoscale_pools(shown=shown(second=second, seen_s_ago=60.0), now=at(second + 2.5))
    assert serving() == 2


def test_b124_those_that_start_go_before_those_that_are_busy() -> None:
    scaled_pool(max_replicas=4)
    have(4)
    busy = list(Replica.objects.order_by("created_at", "id").values_list("id", flat=True))[2:]
    Replica.objects.filter(pk__in=busy).update(state=ReplicaState.READY)
    Replica.objects.exclude(pk__in=busy).update(state=ReplicaState.STARTING)
    set_pool(public_id="m", changes={"max_replicas": 2}, actor="test")
    autoscale_pools(shown=shown(in_flight=dict.fromkeys(busy, 5)), now=at(0))
    assert set(Replica.objects.filter(is_wanted=True).values_list("id", flat=True)) == set(busy)


def test_b124_of_those_that_serve_the_idle_one_goes_then_the_one_with_the_fewest() -> None:
    scaled_pool(max_replicas=4)
    have(4)
    all_ready()
    ids = list(Replica.objects.order_by("created_at", "id").values_list("id", flat=True))
    in_flight = {ids[0]: 0, ids[1]: 2, ids[2]: 9, ids[3]: 5}
    gone = []
    for most in (3, 2, 1):
        set_pool(public_id="m", changes={"max_replicas": most}, actor="test")
        before = set(Replica.objects.filter(is_wanted=True).values_list("id", flat=True))
        autoscale_pools(shown=shown(in_flight=in_flight), now=at(most * -10 + 100))
        gone += list(before - set(Replica.objects.filter(is_wanted=True).values_list("id", flat=True)))
    assert gone == [ids[0], ids[1], ids[3]]
    assert set(Replica.objects.filter(pk__in=gone).values_list("state", flat=True)) == {ReplicaState.READY}, "drained first"


def test_warm_ones_are_woken_before_others_are_started_and_replaced() -> None:
    scaled_pool(warm_replicas=1)
    have(1, warm=1)
    warm = Replica.objects.get(is_standby=True)
    Replica.objects.filter(pk=warm.pk).update(state=ReplicaState.WARM)
    all_ready()
    for second in range(0, 20, 5):
        autoscale_pools(shown=shown(second=second, tokens=1500.0), now=at(second))
    warm.refresh_from_db()
    assert not warm.is_standby
    assert Replica.objects.filter(is_standby=True, is_wanted=True).count() == 1


def test_during_a_rollout_the_load_of_both_versions_counts_and_the_way_back_is_kept() -> None:
    scaled_pool(min_replicas=0, idle_before_zero_s=10)
    have(1)
    candidate = register_version(public_id="m", spec=SPEC, actor="test")
    want(pool=pool(), version=candidate, serving=2)
    all_ready()
    looks(range(0, 60, 5), 3000.0)
    of_candidate = Replica.objects.filter(version=candidate, is_wanted=True)
    of_stable = Replica.objects.filter(version=pool().version, is_wanted=True)
    assert (of_stable.count(), of_candidate.count(), pool().desired_replicas) == (4, 2, 4)
    looks(range(60, 1200, 20), 0.0)
    assert of_candidate.count() == 2, "the rollout's, not the autoscaler's"
    assert of_stable.count() == 1, "its requests may come back"


def test_to_zero_after_its_time_without_a_request() -> None:
    scaled_pool(idle_before_zero_s=60)
    have(2)
    all_ready()
    looks(range(0, 55, 5), 0.0)
    assert serving() > 0
    looks(range(55, 75, 5), 0.0)
    assert (serving(), pool().desired_replicas) == (0, 0)
    assert ScaleDecision.objects.filter(desired=0, before__gt=0).get().reason == Why.IDLE


def test_where_there_is_no_room_for_all_there_are_as_many_as_fit_and_it_is_said() -> None:
    scaled_pool()
    have(1)
    all_ready()
    node(max_replicas=2)
    looks(range(0, 30, 5), 4000.0)
    assert (serving(), pool().desired_replicas) == (2, 2)
    assert all("no node has room" in row.problem for row in ScaleDecision.objects.filter(desired=2))


def test_a_pool_set_by_hand_is_left_alone() -> None:
    scaled_pool()
    set_pool(public_id="m", changes={"is_autoscaled": False}, actor="test")
    assert looks(range(0, 60, 5), 9000.0) == 0 and not Replica.objects.exists()
    assert not ScaleDecision.objects.exists()


def test_what_is_remembered_comes_back_and_what_cannot_be_read_is_nothing() -> None:
    memory = Memory("c", 7, (1.0, 2.0), (Sample(1.5, 0.25, 0.5, 3),), up_s=4.0, busy_s=9.0)
    assert memory_of(as_row(memory)) == memory
    assert memory_of({"samples": [[1, 2]], "clock": "x"}) == Memory()


def test_old_decisions_go() -> None:
    scaled_pool(min_replicas=1)
    autoscale_pools(shown=shown(), now=at(0))
    assert ScaleDecision.objects.count() == 1
    assert forget_old_scaling(now=at(13 * 86_400)) == 0
    assert forget_old_scaling(now=at(15 * 86_400)) == 1
    assert Pool.objects.exists()


class Shown(dict[str, Any]):
    """What a dispatcher shows, asked for in the middle of a look."""

    def __init__(self, shown: dict[str, Any], meanwhile: Callable[[], object]) -> None:
        super().__init__(shown)
        self._meanwhile = meanwhile

    def get(self, *asked: Any) -> Any:
        self._meanwhile()
        return super().get(*asked)


def test_what_an_operator_sets_while_pools_are_looked_at_holds() -> None:
    scaled_pool(min_replicas=1)
    register_model(public_id="n", actor="test", version=SPEC)
    set_pool(public_id="n", changes={"is_autoscaled": True, "max_replicas": 5, "min_replicas": 1}, actor="test")

    def meanwhile() -> None:
        set_pool(public_id="n", changes={"is_autoscaled": False}, actor="test")
        scale(public_id="n", replicas=3, actor="test", node="n1")

    autoscale_pools(shown=Shown(shown(), meanwhile), now=at(0))
    other = Pool.objects.get(model__public_id="n")
    assert other.desired_replicas == 3
    assert Replica.objects.filter(pool=other, is_wanted=True).count() == 3

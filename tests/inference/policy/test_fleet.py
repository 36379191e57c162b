import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.policy.decisions import ReplicaSpec
from inference.policy.fleet import Fleet, Group, Replica, level_of


def replicas(*caps: int) -> list[Replica]:
    fleet = Fleet(fade_s=60.0, pace_fade_s=5.0)
    for number, cap in enumerate(caps):
        fleet.update(ReplicaSpec(f"r{number}", cap))
    fleet.regroup()
    for replica in fleet.replicas.values():
        replica.s_per_token = 0.001
        fleet.place(replica, load_s=0.0, is_ejected=False)
    fleet.check_invariants()
    return list(fleet.replicas.values())


def queued_s(replica: Replica, now_s: float) -> float:
    return replica.queued_s(0.25, now_s)


def test_the_prefill_queue_is_worked_off_by_time_and_by_first_tokens() -> None:
    (it,) = replicas(8)
    it.add_pending("a", 1000, 10.0)
    it.add_pending("b", 2000, 10.0)
    assert queued_s(it, 10.0) == pytest.approx(3.0)
    assert queued_s(it, 10.5) == pytest.approx(2.5)
    assert it.drop_pending("a", 11.0) == (1000, 1.0)
    assert queued_s(it, 11.0) == pytest.approx(2.0)
    assert it.drop_pending("b", 13.0) == (2000, 2.0)
    assert queued_s(it, 13.0) == 0.0
    assert it.drop_pending("b", 14.0) == (0, 0.0)


def test_a_replica_that_is_stuck_does_not_look_free() -> None:
    (it,) = replicas(8)
    for name in "abcde":
        it.add_pending(name, 1000, 0.0)
    assert queued_s(it, 100.0) == pytest.approx(5.0 - 1.0 - 0.25), "the first, and what one report may be late for"


def test_a_first_token_that_comes_sooner_than_thought_is_believed() -> None:
    (it,) = replicas(8)
    it.add_pending("a", 5000, 0.0)
    it.add_pending("b", 1000, 0.0)
    it.drop_pending("a", 1.0)
    assert queued_s(it, 1.0) == pytest.approx(1.0)


def test_what_was_worked_off_of_one_that_ends_is_not_taken_from_the_next() -> None:
    (it,) = replicas(8)
    it.add_pending("a", 3000, 0.0)
    it.add_pending("b", 3000, 0.0)
    it.drop_pending("a", 2.0)  # its client has gone: two seconds were for it
    assert queued_s(it, 2.0) == pytest.approx(3.0)


def test_load_is_told_apart_on_a_log_scale() -> None:
    levels = [level_of(load_s) for load_s in (0.0, 0.004, 0.02, 0.1, 0.5, 2.0, 10.0, 100.0, 10_000.0)]
    assert levels == sorted(set(levels))
    assert levels[0] == 0


def test_an_index_of_a_thousand_gives_the_least_loaded_and_equals_take_turns() -> None:
    all_of_them = replicas(*[8] * 1000)
    group = all_of_them[0].groups[0]
    assert isinstance(group, Group)
    fleet_order = [replica.id for replica in group.least_loaded(3)]
    assert fleet_order == ["r0", "r1", "r2"]
    group.moves(all_of_them[0], 0)
    assert [replica.id for replica in group.least_loaded(3)] == ["r1", "r2", "r3"]


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 20.0)), max_size=60), st.integers(1, 12))
def test_the_index_agrees_with_sorting(moves: list[tuple[int, float]], limit: int) -> None:
    fleet = Fleet(fade_s=60.0, pace_fade_s=5.0)
    for number in range(10):
        fleet.update(ReplicaSpec(f"r{number}", 1 + number % 3, zone=f"z{number % 2}"))
    fleet.regroup()
    loads = dict.fromkeys(fleet.replicas, 0.0)
    for replica in fleet.replicas.values():
        fleet.place(replica, load_s=0.0, is_ejected=False)
    for number, load_s in moves:
        loads[f"r{number}"] = load_s
        fleet.place(fleet.replicas[f"r{number}"], load_s=load_s, is_ejected=load_s > 15.0)
        fleet.check_invariants()
    well = [name for name, load_s in loads.items() if load_s <= 15.0]
    listed = [level_of(loads[replica.id]) for replica in fleet.well.least_loaded(limit)]
    assert listed == sorted(level_of(loads[name]) for name in well)[:limit]

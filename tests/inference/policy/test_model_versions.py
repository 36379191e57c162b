"""Several versions of one model in the brain: who is served by which, and what becomes of them when versions come and go."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from inference.policy.brain_tunables import BrainTunables
from inference.policy.decisions import (
    Ask,
    Decision,
    Ending,
    Granted,
    Queued,
    Reason,
    Refused,
    ReplicaSpec,
    Tier,
    Usage,
)
from inference.policy.split import MILLION, Versions, choose
from tests.inference.policy.test_brain import TUNABLES, Cell, ids

V1 = Versions("v1")
CANARY = Versions("v1", candidate="v2", candidate_share_ppm=MILLION // 2, salt="r1")


def spec(name: str, version: str, slots: int = 2) -> ReplicaSpec:
    return ReplicaSpec(name, slots, version=version)


A, B = spec("a", "v1"), spec("b", "v2")


class Release(Cell):
    """A cell whose versions change."""

    def __init__(self, versions: Versions | None, *specs: ReplicaSpec, tunables: BrainTunables = TUNABLES, **more: Any) -> None:
        super().__init__(tunables=tunables, **more)
        self.turn(versions, *specs)

    def turn(self, versions: Versions | None, *specs: ReplicaSpec) -> list[Decision]:
        return self.take(self.brain.set_replicas("m", specs, self.now_s, versions))

    def of(self, version: str, **more: Any) -> Decision:
        """Ask in a conversation that is split to this version."""
        return self.ask(conversation=conversation_of(version), **more)


def conversation_of(version: str, versions: Versions = CANARY, tenant: str = "acme") -> bytes:
    names = (b"c%d" % number for number in range(10_000))
    return next(name for name in names if choose(versions, tenant=tenant, conversation=name) == version)


def replica_of(decision: Decision) -> str:
    assert isinstance(decision, Granted), decision
    return decision.replica


def test_b129_the_version_is_chosen_before_the_replica_so_that_a_cached_prompt_does_not_defeat_the_split() -> None:
    """All share a long beginning, which only the stable version's replica has read."""
    cell = Release(replace(CANARY, candidate_share_ppm=MILLION // 5), spec("a", "v1", 64), spec("b", "v2", 64))
    blocks = tuple(range(1, 40))
    shared: dict[str, Any] = {"blocks": blocks, "prompt_tokens": 5_000}
    assert replica_of(cell.ask(**shared)) == "a"
    cell.brain.first_token("acme-1", 0.0)
    cell.end_oldest()
    seen: Counter[str] = Counter()
    for number in range(2_000):
        granted = cell.ask(conversation=b"%d" % number, **shared)
        seen[replica_of(granted)] += 1
        cell.brain.first_token(granted.id, 0.0)
        cell.end_oldest()
    assert abs(seen["b"] - 400) <= 3 * 18, seen


def test_b129_one_conversation_stays_with_its_version() -> None:
    cell = Release(CANARY, spec("a", "v1", 50), spec("a2", "v1", 50), spec("b", "v2", 50), spec("b2", "v2", 50))
    for version, replicas in (("v1", {"a", "a2"}), ("v2", {"b", "b2"})):
        assert {replica_of(cell.of(version)) for _ in range(20)} <= replicas


def test_while_nobody_tells_of_versions_all_replicas_serve_and_no_conversation_is_split() -> None:
    cell = Release(None, A, B)
    assert {replica_of(cell.of("v1")) for _ in range(4)} == {"a", "b"}
    assert cell.brain.snapshot(0.0).pools["m"].versions == {}


def test_replicas_of_no_version_serve_with_the_stable_one() -> None:
    cell = Release(CANARY, ReplicaSpec("ext", 2), B)
    assert replica_of(cell.of("v1")) == "ext"
    assert replica_of(cell.of("v2")) == "b"


def test_b128_after_a_rollback_and_another_rollout_only_the_stable_version_and_the_new_candidate_serve() -> None:
    replicas = [spec("a", "v1", 40), spec("b", "v2", 40), spec("c", "v3", 40)]
    cell = Release(replace(CANARY, candidate_share_ppm=MILLION // 5), *replicas)
    cell.turn(V1, *replicas)
    cell.turn(Versions("v1", candidate="v3", candidate_share_ppm=MILLION // 5, salt="r2"), *replicas)
    seen: Counter[str] = Counter()
    for number in range(1_000):
        seen[replica_of(cell.ask(conversation=b"%d" % number))] += 1
        cell.end_oldest()
    assert seen.keys() == {"a", "c"}
    assert abs(seen["c"] - 200) <= 3 * 13, seen


def test_a_candidate_without_a_replica_has_its_share_served_by_the_stable_version_at_once() -> None:
    cell = Release(CANARY, A)
    assert replica_of(cell.of("v2")) == "a"


def test_those_who_wait_for_a_candidate_whose_last_replica_goes_are_served_by_the_stable_version() -> None:
    cell = Release(CANARY, A, spec("b", "v2", 1))
    running = cell.of("v2")
    waiting = cell.of("v2")
    assert isinstance(waiting, Queued)
    assert ids(cell.turn(CANARY, A)) == [waiting.id]
    assert cell.running[waiting.id] == "a"
    assert cell.running[running.id] == "b", "what runs there runs on"


def test_what_the_candidates_full_queue_would_refuse_the_stable_version_takes() -> None:
    cell = Release(CANARY, A, spec("b", "v2", 1), max_queued=1)
    assert replica_of(cell.of("v2")) == "b"
    assert isinstance(cell.of("v2"), Queued)
    assert replica_of(cell.of("v2")) == "a"


def test_so_many_wait_as_may_for_the_model_whatever_their_versions() -> None:
    cell = Release(replace(CANARY, pinned=frozenset({"v0"})), spec("a", "v1", 1), spec("b", "v2", 1), max_queued=4)
    for version in ("v1", "v2"):
        cell.of(version)
    waiting = [cell.of("v2"), cell.of("v2"), cell.of("v1"), cell.of("v1")]
    assert all(isinstance(each, Queued) for each in waiting)
    for refused in (cell.of("v1"), cell.of("v2"), cell.ask(version="v2")):
        assert isinstance(refused, Refused) and refused.reason is Reason.QUEUE_FULL
    assert cell.brain.snapshot(0.0).queued == 4


def test_half_of_those_who_wait_are_the_stable_versions_alone_and_the_candidates_go_there_then() -> None:
    cell = Release(CANARY, A, spec("b", "v2", 1), max_queued=4)
    assert replica_of(cell.of("v2")) == "b"
    assert [type(cell.of("v2")) for _ in range(2)] == [Queued, Queued]
    assert replica_of(cell.of("v2")) == "a", "two wait for the candidate: the next is served by the stable version"
    refused = cell.ask(version="v2")
    assert isinstance(refused, Refused) and refused.reason is Reason.QUEUE_FULL
    assert replica_of(cell.of("v1")) == "a"
    assert [type(cell.of("v1")) for _ in range(3)] == [Queued, Queued, Refused]


def test_patient_work_of_another_version_keeps_no_urgent_request_out() -> None:
    cell = Release(CANARY, spec("a", "v1", 1), spec("b", "v2", 1), max_queued=2)
    for version in ("v1", "v2"):
        cell.of(version)
    assert [type(cell.of(version, tier=Tier.BATCH)) for version in ("v1", "v2", "v1")] == [Queued, Queued, Refused]
    assert isinstance(cell.of("v1", tier=Tier.INTERACTIVE), Queued)


def test_what_waits_too_long_for_the_candidate_is_served_by_the_stable_version_if_that_can() -> None:
    cell = Release(CANARY, A, spec("b", "v2", 1), tunables=replace(TUNABLES, queue_timeout_s=5.0))
    cell.of("v2")
    waiting = cell.of("v2")
    decisions = cell.at(6.0)
    assert ids(decisions) == [waiting.id] and not ids(decisions, Refused)
    assert cell.running[waiting.id] == "a"


def test_a_request_that_must_have_its_version_waits_for_it_and_is_refused_by_the_usual_rule() -> None:
    cell = Release(replace(CANARY, pinned=frozenset({"v0"})), A, B, spec("z", "v0", 1), max_queued=1)
    assert replica_of(cell.ask(version="v0")) == "z"
    assert isinstance(cell.ask(version="v0"), Queued)
    refused = cell.ask(version="v0")
    assert isinstance(refused, Refused) and refused.reason is Reason.QUEUE_FULL
    assert replica_of(cell.ask(version="v2")) == "b"
    assert replica_of(cell.ask(version="v1", conversation=conversation_of("v2"))) == "a"


def test_one_that_may_change_its_version_does_so_when_nobody_of_it_is_left_to_try() -> None:
    cell = Release(CANARY, A, B)
    assert replica_of(cell.ask(version="v2", may_change_version=True)) == "b"
    assert replica_of(cell.ask(version="v2", may_change_version=True, excluded=frozenset({"b"}))) == "a"
    refused = cell.ask(version="v2", excluded=frozenset({"b"}))
    assert isinstance(refused, Refused) and refused.reason is Reason.ALL_TRIED


def test_a_request_that_the_candidate_has_failed_is_served_by_the_stable_version_under_the_same_reservation() -> None:
    cell = Release(CANARY, A, B)
    failed = cell.of("v2")
    assert replica_of(failed) == "b"
    cell.end(failed.id, Ending.FAILED, is_final=False)
    again = replace(cell.asks[failed.id], conversation=b"", excluded=frozenset({"b"}))
    (granted,) = cell.take(cell.brain.submit(again, 0.0))
    assert replica_of(granted) == "a"
    cell.end(failed.id)
    assert cell.brain.snapshot(0.0).limits.open == 0


@pytest.mark.parametrize("turned", [V1, replace(CANARY, candidate_share_ppm=0), Versions("v1", "v3", MILLION // 2, "r2")])
def test_a_rollback_serves_those_who_wait_for_the_candidate_by_the_stable_version_in_the_order_they_came(
    turned: Versions,
) -> None:
    cell = Release(CANARY, spec("a", "v1", 1), spec("b", "v2", 1))
    first_of_stable, first_of_candidate = cell.of("v1"), cell.of("v2")
    cell.at(1.0)
    waiting = [cell.of("v2"), cell.of("v1"), cell.of("v2"), cell.of("v1")]
    assert all(isinstance(one, Queued) for one in waiting)
    cell.at(2.0)
    told = cell.turn(turned, spec("a", "v1", 1), spec("b", "v2", 1))
    assert not ids(told, Refused) and not ids(told)
    served: list[str] = []
    for _ in waiting:
        served += ids(cell.end(first_of_stable.id if not served else served[-1]))
    assert served == [one.id for one in waiting]
    assert cell.running[first_of_candidate.id] == "b", "what runs on the candidate ends there"
    assert {cell.running[name] for name in served[-1:]} == {"a"}


def test_a_promotion_serves_those_who_wait_for_the_old_version_by_the_new_one() -> None:
    cell = Release(CANARY, spec("a", "v1", 1), spec("b", "v2", 1))
    old, new = cell.of("v1"), cell.of("v2")
    waiting = [cell.of("v1"), cell.of("v2"), cell.of("v1")]
    told = cell.turn(Versions("v2"), spec("a", "v1", 1), spec("b", "v2", 3))
    assert not ids(told, Refused)
    assert ids(told) == [one.id for one in waiting[:2]] and {cell.running[name] for name in ids(told)} == {"b"}
    assert cell.running[old.id] == "a" and "v1" in cell.brain.snapshot(0.0).pools["m"].versions
    assert cell.end(old.id) == [], "its slot is no longer given to anybody"
    assert cell.brain.snapshot(0.0).pools["m"].versions.keys() == {"v2"}
    assert ids(cell.end(new.id)) == [waiting[2].id]


def test_nobody_notices_when_versions_are_told_of_for_the_first_time_or_no_longer() -> None:
    cell = Release(None, spec("a", "v1", 1))
    running, waiting = cell.ask(), cell.ask()
    for versions in (V1, CANARY, V1, None, V1):
        assert cell.turn(versions, spec("a", "v1", 1)) == []
    assert ids(cell.end(running.id)) == [waiting.id]


def test_the_first_version_of_a_model_with_external_replicas_takes_them_along() -> None:
    cell = Release(Versions(""), ReplicaSpec("ext", 1))
    running, waiting = cell.ask(), cell.ask()
    assert ids(cell.turn(V1, ReplicaSpec("ext", 1), spec("a", "v1", 1))) == [waiting.id]
    assert cell.running == {running.id: "ext", waiting.id: "a"}


def test_a_tenants_slots_are_of_all_versions_together_and_free_up_across_them() -> None:
    from inference.policy.decisions import Limit, LimitKind, Scope, ScopeKind, TenantTerms

    cell = Release(CANARY, A, B)
    limit = Limit(Scope(ScopeKind.TENANT, "acme"), LimitKind.CONCURRENCY, 1)
    cell.take(cell.brain.set_terms(TenantTerms("acme", limits=(limit,)), 0.0))
    running, waiting = cell.of("v1"), cell.of("v2")
    assert isinstance(waiting, Queued) and waiting.reason is Reason.CONCURRENCY
    assert ids(cell.end(running.id)) == [waiting.id]
    assert cell.running[waiting.id] == "b"


def test_a_snapshot_sums_the_versions_and_names_each() -> None:
    cell = Release(CANARY, A, spec("b", "v2", 1))
    cell.of("v1"), cell.of("v2"), cell.of("v2")
    pool = cell.brain.snapshot(0.0).pools["m"]
    assert (pool.in_flight, pool.queued, pool.capacity) == (2, 1, 3)
    assert pool.in_flight_by_replica == {"a": 1, "b": 1}
    assert {label: (seen.in_flight, seen.queued, seen.capacity) for label, seen in pool.versions.items()} == {
        "v1": (1, 0, 2),
        "v2": (1, 1, 1),
    }


def test_what_is_parked_waits_for_its_own_version() -> None:
    cell = Release(CANARY, A, spec("b", "v2", 1))
    parked = cell.of("v2")
    other = cell.of("v2")
    cell.brain.first_token(parked.id, 0.0)
    cell.running.pop(parked.id)
    left = replace(cell.asks[parked.id], conversation=b"", version="v2", max_tokens=10)
    told = cell.take(cell.brain.parked(parked.id, left, 0.0))
    assert ids(told) == [parked.id] or ids(told) == [other.id]
    assert all(cell.running[name] == "b" for name in ids(told))


def test_after_a_takeover_what_runs_is_counted_where_it_runs_and_may_end_while_it_is_away() -> None:
    cell = Release(CANARY, A, spec("b", "v2", 1))
    ask = Ask("x", "m", "acme", "k", prompt_tokens=5, max_tokens=5)  # it was split otherwise then
    cell.brain.restore_running(ask, "b", age_s=1.0, now_s=0.0)
    assert isinstance(cell.of("v2"), Queued)
    away = replace(ask, id="y", version="v2")
    cell.brain.restore_away(away, age_s=1.0, now_s=0.0)
    cell.take(cell.brain.end("y", Ending.NEUTRAL, Usage(), 0.0))
    assert cell.brain.snapshot(0.0).pools["m"].versions["v2"].in_flight == 1


def test_a_model_that_is_dropped_refuses_those_who_wait_for_any_version() -> None:
    cell = Release(CANARY, spec("a", "v1", 1), spec("b", "v2", 1))
    running = [cell.of("v1"), cell.of("v2")]
    waiting = [cell.of("v1"), cell.of("v2")]
    assert sorted(ids(cell.take(cell.brain.drop_pool("m", 0.0)), Refused)) == sorted(one.id for one in waiting)
    for one in running:
        cell.end(one.id)
    assert cell.brain.snapshot(0.0).pools == {}

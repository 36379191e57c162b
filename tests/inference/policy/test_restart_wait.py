"""A request whose only replica has gone waits for its restart: for a stated time, and not where nothing is restarted."""

from dataclasses import replace
from typing import Any

import pytest

from inference.policy.decisions import Decision, Ending, Granted, Queued, Reason, Refused, ReplicaSpec
from tests.inference.policy.test_brain import TUNABLES, Cell, concurrency, ids

NEWS_S, RESTART_S = TUNABLES.failure_news_s, TUNABLES.restart_wait_s
AGAIN = ReplicaSpec("a", 1, epoch=2)


def fallen(*specs: ReplicaSpec, has_begun: bool = False, **fields: Any) -> tuple[Cell, Decision]:
    """Its replica is gone at 10 s, and it asks again."""
    cell = Cell(*(specs or (ReplicaSpec("a", 1, epoch=1),)))
    name = cell.ask(can_park=True).id
    cell.now_s = 10.0
    if has_begun:
        cell.brain.first_token(name, cell.now_s)
        cell.brain.progress(name, 5, cell.now_s)
    cell.end(name, Ending.FAILED, is_final=False)
    more = {"waits_for_restart": True, **fields}
    ask = cell.asks[name] = replace(cell.asks[name], excluded=frozenset({"a"}), **more)
    return cell, cell.take(cell.brain.submit(ask, cell.now_s))[-1]


def goes(cell: Cell, at_s: float, *specs: ReplicaSpec) -> list[Decision]:
    decisions = cell.at(at_s)
    return decisions + cell.take(cell.brain.set_replicas("m", specs, at_s))


@pytest.mark.parametrize("has_begun", [False, True])
def test_it_is_granted_the_engine_that_was_started_anew(has_begun: bool) -> None:
    cell, waiting = fallen(has_begun=has_begun)
    assert isinstance(waiting, Queued)
    assert goes(cell, 10.5) == []
    (granted,) = goes(cell, 10.0 + RESTART_S - 1.0, AGAIN)
    assert isinstance(granted, Granted)
    assert (granted.id, granted.replica) == (waiting.id, "a")


def test_where_its_end_is_no_news_the_same_engine_still_serves_and_the_failure_is_told() -> None:
    cell, waiting = fallen()
    assert cell.at(10.0 + NEWS_S - 0.01) == []
    (refused,) = cell.at(10.0 + NEWS_S)
    assert isinstance(refused, Refused)
    assert (refused.id, refused.reason) == (waiting.id, Reason.ALL_TRIED)


def test_it_waits_no_longer_than_stated() -> None:
    cell, waiting = fallen()
    goes(cell, 10.2)
    assert cell.at(10.0 + RESTART_S - 0.1) == []
    (refused,) = cell.at(10.0 + RESTART_S)
    assert isinstance(refused, Refused)
    assert (refused.id, refused.reason) == (waiting.id, Reason.NO_REPLICA)
    assert cell.brain.snapshot(cell.now_s).limits.open == 0


def test_nor_than_its_deadline_where_nothing_was_sent() -> None:
    cell, waiting = fallen(deadline_s=25.0)
    goes(cell, 10.2)
    assert ids(cell.at(25.0), Refused) == [waiting.id]


def test_one_that_does_not_wait_for_it_is_refused_at_once() -> None:
    _, refused = fallen(waits_for_restart=False)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.ALL_TRIED


def test_with_the_model_gone_nobody_waits() -> None:
    cell, waiting = fallen()
    goes(cell, 10.2)
    assert ids(cell.take(cell.brain.drop_pool("m", 10.2)), Refused) == [waiting.id]


def test_behind_others_it_has_its_time_in_the_queue_anew() -> None:
    cell, waiting = fallen()
    cell.take(cell.brain.set_terms(concurrency("acme", 0), 10.0))
    goes(cell, 10.5)
    assert goes(cell, 100.0, AGAIN) == []
    assert cell.at(129.9) == []
    (granted,) = cell.take(cell.brain.set_terms(concurrency("acme", 1), 129.9))
    assert granted.id == waiting.id


def test_a_new_engine_is_free_to_all_who_had_tried_the_one_before() -> None:
    cell = Cell(ReplicaSpec("a", 1, epoch=1), ReplicaSpec("b", 1))
    runs = [cell.ask().id for _ in range(2)]
    tried = cell.ask(excluded=frozenset({"a"}))
    assert isinstance(tried, Queued)
    assert ids(goes(cell, 1.0, ReplicaSpec("a", 2, epoch=2), ReplicaSpec("b", 1))) == [tried.id]
    assert len(runs) == 2

"""The faults of other people's routers (/work/shared/faults.md), at the level of the policy; named after their rows."""

import random
from dataclasses import replace

import pytest

from inference.policy.decisions import Ending, Reason, StateFrame, Usage
from tests.inference.policy.routing_cast import TUNABLES, Desk, chain, prompt, spec


def test_b104_a_draining_replica_gets_nothing_new_and_keeps_what_it_has() -> None:
    desk = Desk([spec("a"), spec("b")])
    name, first = desk.send(prompt("chat", 5))
    others = [other for other in ("a", "b") if other != first.replica]
    desk.router.set_replicas([spec(first.replica, is_draining=True), spec(others[0])], 1.0)
    assert {desk.serve(prompt("chat", 5), now_s=1.0).replica for _ in range(20)} == set(others)
    assert desk.router.replica_of(name) == first.replica
    desk.router.set_replicas([spec(first.replica, is_draining=True)], 2.0)
    assert not desk.router.has_room(2.0)
    assert desk.router.choose(desk.ask(), 2.0) is None
    assert desk.router.hopeless(desk.ask()) is Reason.NO_REPLICA
    desk.router.check_invariants(2.0)


def test_b106_a_conversation_whose_replica_goes_away_settles_on_one_other() -> None:
    desk = Desk([spec(name) for name in "abcd"])
    turns = [prompt("chat", length) for length in (2, 4, 6, 8, 10)]
    home = desk.serve(turns[0]).replica
    assert desk.serve(turns[1], now_s=1.0).replica == home
    desk.router.set_replicas([spec(name) for name in "abcd" if name != home], 2.0)
    third, fourth, fifth = (desk.serve(turn, now_s=3.0 + at) for at, turn in enumerate(turns[2:]))
    assert third.reason is Reason.FASTEST and third.replica != home
    assert fourth.replica == fifth.replica == third.replica
    assert fourth.reason is fifth.reason is Reason.PREFIX


def test_b107_new_prompts_go_to_the_idle_replica_however_large_its_index_is() -> None:
    desk = Desk([spec("a", 64), spec("b", 64)])
    for at in range(200):
        desk.serve(prompt(f"old{at}", 8), excluded=frozenset({"a"}))
    for at in range(5):
        desk.send(prompt(f"long{at}", 100), now_s=100.0, excluded=frozenset({"b"}))
    desk.chosen.clear()
    for at in range(50):
        desk.serve(prompt(f"new{at}", 3), now_s=100.0)
    assert desk.chosen["b"] >= 45


@pytest.mark.parametrize("shared_blocks", [1, 3])
def test_b108_affinity_yields_beyond_the_bound_on_imbalance(shared_blocks: int) -> None:
    desk = Desk([spec(f"r{n}", 64) for n in range(8)])
    rng = random.Random(1)
    running: list[str] = []
    worst = 0.0
    for at in range(2000):
        now_s = 0.01 * at
        name, _ = desk.send((*prompt("system", shared_blocks), rng.getrandbits(60), rng.getrandbits(60)), now_s)
        running.append(name)
        if len(running) > 80:
            done = running.pop(rng.randrange(20))
            desk.router.first_token(done, now_s)
            desk.router.end(done, Ending.WELL, None, now_s)
        if len(running) == 80:
            views = desk.router.snapshot(now_s).replicas.values()
            worst = max(worst, max(view.in_flight for view in views) / 10)
    assert worst <= 1.3 + 0.2, "1.3 times the mean of ten, and two requests in any case"
    assert max(desk.chosen.values()) <= 1.3 * 2000 / 8


def test_b109_counters_survive_probes_and_registrations_and_requests_spill() -> None:
    specs = [spec("a", 64), spec("b", 64)]
    desk = Desk(specs)
    for _ in range(40):
        name, _ = desk.send(prompt("p", 10), excluded=frozenset({"b"}))
        desk.router.first_token(name, 0.1)
    for cycle in range(10):
        desk.router.set_replicas(specs, 1.0 + cycle)
        desk.router.frame("a", StateFrame(running=40, waiting=0), 1.0 + cycle)
    desk.router.set_replicas([spec("b", 64)], 12.0)  # a flap: not ready for a moment
    desk.router.set_replicas(specs, 13.0)
    assert desk.router.snapshot(13.0).replicas["a"].in_flight == 40
    desk.router.check_invariants(13.0)
    desk.chosen.clear()
    for _ in range(10):
        desk.send(prompt("p", 10), now_s=13.0)
    assert desk.chosen["b"] == 10


def test_b109_a_holder_that_decodes_a_lot_is_passed_over_although_its_queue_is_empty() -> None:
    desk = Desk([spec("a", 64), spec("b", 64)])
    for _ in range(40):
        name, _ = desk.send(prompt("p", 10), excluded=frozenset({"b"}))
        desk.router.first_token(name, 0.1)
    name, choice = desk.send(prompt("p", 10), now_s=1.0)
    assert (choice.replica, choice.reason) == ("b", Reason.SPILLED)


def test_b111_a_replica_on_long_jobs_does_not_look_free() -> None:
    desk = Desk([spec("a", 64), spec("b", 64)])
    for _ in range(30):
        name, _ = desk.send(tokens=100, excluded=frozenset({"b"}))
        desk.router.first_token(name, 0.1)
    desk.chosen.clear()
    for at in range(100):
        desk.serve(tokens=50, now_s=60.0 + at)
    assert desk.chosen["b"] == 100


def test_b113_a_replica_that_fails_everything_gets_less_than_one_in_a_hundred_and_recovers() -> None:
    desk = Desk([spec("a", 64), spec("b", 64), spec("broken", 64)])
    now_s = 0.0
    for _ in range(6000):  # 50 a second for two minutes, those of the broken one fail at once
        now_s += 0.02
        name, choice = desk.send(tokens=200, now_s=now_s)
        if choice.replica != "broken":
            desk.router.first_token(name, now_s)
        desk.router.end(name, Ending.FAILED if choice.replica == "broken" else Ending.WELL, None, now_s)
    assert 3 <= desk.chosen["broken"] < 60
    assert desk.chosen["broken"] <= 3 + desk.reasons[Reason.PROBE]
    well_since_s, back_s = now_s, None
    while back_s is None and now_s < well_since_s + 100.0:
        now_s += 0.02
        choice = desk.serve(tokens=200, now_s=now_s)
        if choice.replica == "broken" and choice.reason is not Reason.PROBE:
            back_s = now_s
    assert back_s is not None and back_s - well_since_s <= TUNABLES.health.max_cool_down_s + 1.0
    desk.chosen.clear()
    for _ in range(300):
        now_s += 0.02
        desk.serve(tokens=200, now_s=now_s)
    assert desk.chosen["broken"] >= 80, "and then it gets its share"


def test_b113_when_all_are_ejected_the_last_resort_is_spread_and_one_good_answer_brings_a_replica_back() -> None:
    desk = Desk([spec("a", 64), spec("b", 64)])
    while desk.router.capacity() and desk.reasons[Reason.LAST_RESORT] < 20:
        desk.fail(tokens=10, now_s=0.0)
    assert desk.chosen["a"] > 5 and desk.chosen["b"] > 5
    assert desk.router.has_room(0.0), "someone is asked, for nothing else is left"
    name, choice = desk.send(tokens=10, now_s=0.1)
    assert choice.reason is Reason.LAST_RESORT
    desk.router.first_token(name, 0.2)
    assert not desk.router.snapshot(0.2).replicas[choice.replica].is_ejected
    assert desk.send(tokens=10, now_s=0.3)[1].reason is Reason.FASTEST
    desk.router.check_invariants(0.3)


def test_b113_a_probe_is_sent_when_the_announced_time_has_come_and_one_at_a_time() -> None:
    desk = Desk([spec("a", 1), spec("broken", 64)])
    desk.send(tokens=10)
    while not desk.router.snapshot(0.0).replicas["broken"].is_ejected:
        desk.fail(tokens=10)
    assert not desk.router.has_room(0.0)
    at_s = desk.router.next_event_s(0.0)
    assert at_s == TUNABLES.health.cool_down_s
    assert desk.router.choose(desk.ask(), at_s - 0.01) is None
    assert desk.router.has_room(at_s)
    assert desk.send(tokens=10, now_s=at_s)[1].reason is Reason.PROBE
    assert not desk.router.has_room(at_s)
    assert desk.router.choose(desk.ask(), at_s) is None


def test_b114_refusals_full_replicas_and_clients_that_leave_open_no_breaker() -> None:
    desk = Desk([spec(f"r{n}", 64) for n in range(4)])
    running = []
    refused = 0
    for at in range(2048):
        ask = desk.ask(tokens=100)
        choice = desk.router.choose(ask, 0.001 * at)
        if choice is None:
            refused += 1
            continue
        desk.router.begin(ask, choice, 0.001 * at)
        running.append(ask.id)
    assert (len(running), refused) == (256, 2048 - 256)
    for name in running:
        desk.router.end(name, Ending.NEUTRAL, None, 3.0)
    views = desk.router.snapshot(3.0).replicas.values()
    assert not any(view.is_ejected for view in views)
    assert desk.serve(tokens=100, now_s=3.0).reason is Reason.FASTEST


def test_b115_a_new_address_under_the_same_name_begins_anew_at_once() -> None:
    desk = Desk([spec("a", address="http://h:1"), spec("b", address="http://h:2")])
    while not desk.router.snapshot(0.0).replicas["a"].is_ejected:
        desk.fail(prompt("p", 5), excluded=frozenset({"b"}))
    old, _ = desk.send(prompt("p", 5), excluded=frozenset({"b"}))
    desk.router.set_replicas([spec("a", address="http://h:9"), spec("b", address="http://h:2")], 1.0)
    desk.router.end(old, Ending.FAILED, None, 1.1)
    views = desk.router.snapshot(1.1).replicas
    assert not views["a"].is_ejected and views["a"].cached_blocks == 0
    assert "a" in {desk.serve(tokens=50, now_s=1.2).replica for _ in range(4)}
    desk.router.check_invariants(1.2)


@pytest.mark.parametrize("frame", [None, StateFrame(), StateFrame(running=0)])
def test_b117_a_replica_without_metrics_gets_its_share(frame: StateFrame | None) -> None:
    desk = Desk([spec("a", 64), spec("b", 64), spec("silent", 64)])
    for at in range(900):
        now_s = 0.02 * at
        for known in ("a", "b"):
            desk.router.frame(known, StateFrame(running=3, waiting=0, kv_used_ratio=0.3, iteration_s=0.02), now_s)
        if frame is not None:
            desk.router.frame("silent", frame, now_s)
        desk.serve(prompt(f"p{at}", 2), now_s=now_s)
    assert 0.8 * 300 <= desk.chosen["silent"] <= 1.2 * 300


def test_b117_a_newcomer_whose_speed_is_not_known_counts_as_an_ordinary_one() -> None:
    desk = Desk([spec("a", 64), spec("b", 64)])
    now_s = 0.0
    for _ in range(100):
        name, _ = desk.send(tokens=1000, now_s=now_s)
        now_s += 1.0  # a thousand a second: ten times slower than assumed
        desk.router.first_token(name, now_s)
        desk.router.end(name, Ending.WELL, None, now_s)
    desk.router.set_replicas([spec("a", 64), spec("b", 64), spec("new", 64)], now_s)
    views = desk.router.snapshot(now_s).replicas
    assert views["new"].prefill_tokens_per_s == pytest.approx(views["a"].prefill_tokens_per_s, rel=0.1)


def spill_point(gateways: int) -> int:
    """How many requests for one prefix its holder gets before one spills; they come through so many gateways."""
    desk = Desk([spec("a", 64), spec("b", 64)])
    desk.serve(prompt("p", 10))
    for number in range(100):
        ask = replace(desk.ask(prompt("p", 10)), id=f"gateway{number % gateways}-{number}")
        choice = desk.router.choose(ask, 1.0)
        assert choice is not None
        if choice.reason is Reason.SPILLED:
            return number
        desk.router.begin(ask, choice, 1.0)
    raise AssertionError("it never spills")


def test_b118_the_spill_point_does_not_depend_on_how_many_gateways_ask() -> None:
    assert spill_point(1) == spill_point(4) >= 3


def test_x15_a_common_first_block_alone_draws_nobody_to_one_replica() -> None:
    desk = Desk([spec(f"r{n}", 64) for n in range(8)], replace(TUNABLES, block_tokens=512))
    for at in range(800):
        blocks = (chain("common")[0], *prompt(f"user{at}", 12))
        name, choice = desk.send(blocks, now_s=0.1 * at)
        desk.router.first_token(name, 0.1 * at + 0.05)
        desk.router.end(name, Ending.WELL, Usage(cached_tokens=choice.cached_tokens), 0.1 * at + 0.09)
    assert max(desk.chosen.values()) <= 1.3 * 100

import pytest

from inference.policy.decisions import Ending, Reason, StateFrame, Usage
from inference.policy.routing import Router, RoutingTunables
from tests.inference.policy.routing_cast import TUNABLES, Desk, chain, prompt, spec


def test_equals_take_turns_even_when_every_request_ends_before_the_next_comes() -> None:
    desk = Desk([spec("a"), spec("b"), spec("c")])
    chosen = [desk.serve(tokens=50, now_s=0.1 * at).replica for at in range(9)]
    assert sorted(chosen[:3]) == sorted(chosen[3:6]) == sorted(chosen[6:]) == ["a", "b", "c"]


def test_the_holder_of_the_prompts_beginning_is_chosen_and_says_so() -> None:
    desk = Desk([spec("a"), spec("b"), spec("c")])
    first = desk.serve(prompt("chat", 16))
    assert first.reason is Reason.FASTEST and first.cached_tokens == 0
    again = desk.serve(prompt("chat", 16), now_s=1.0)
    assert (again.replica, again.reason, again.cached_tokens) == (first.replica, Reason.PREFIX, 1600)


def test_the_predicted_time_counts_the_queue_and_the_own_uncached_tokens() -> None:
    desk = Desk([spec("a")])
    overhead_s = TUNABLES.overhead_s
    _, first = desk.send(prompt("p", 16), tokens=2000)
    assert first.predicted_ttft_s == pytest.approx(overhead_s + 0.2)
    _, second = desk.send(prompt("p", 16), tokens=2600)
    assert second.predicted_ttft_s == pytest.approx(overhead_s + 0.2 + 0.1)
    assert second.cached_tokens == 1600
    _, third = desk.send(now_s=0.1, tokens=1000)
    assert third.predicted_ttft_s == pytest.approx(overhead_s + 0.2 + 0.1 - 0.1 + 0.1)


def test_a_whole_prompt_in_the_cache_leaves_one_token_to_compute() -> None:
    desk = Desk([spec("a")])
    desk.serve(prompt("p", 4), tokens=400)
    assert desk.serve(prompt("p", 4), tokens=400, now_s=1.0).cached_tokens == 399


def test_it_sticks_to_the_holder_until_its_queue_outweighs_the_cache_and_then_spills() -> None:
    desk = Desk([spec("a", 64), spec("b", 64)], RoutingTunables(block_tokens=100, prefill_tokens_per_s=10_000.0))
    holder = desk.serve(prompt("p", 12)).replica
    reasons = []
    for number in range(12):
        reasons.append(desk.send((*prompt("p", 12), number), now_s=1.0, tokens=1500)[1].reason)
    assert reasons[:4] == [Reason.PREFIX] * 4
    assert Reason.SPILLED in reasons
    assert desk.chosen[holder] > 6, "and after a spill both hold it"


def test_the_prefill_rate_is_learnt_per_replica_and_the_slow_one_gets_less() -> None:
    desk = Desk([spec("fast", 64), spec("slow", 64)])
    rate = {"fast": 10_000.0, "slow": 1_000.0}
    now_s = 0.0
    busy_until_s = {"fast": 0.0, "slow": 0.0}
    open_: list[tuple[float, str]] = []
    for _ in range(600):
        now_s += 0.15
        for done_s, name in [one for one in open_ if one[0] <= now_s]:
            desk.router.first_token(name, done_s)
            desk.router.end(name, Ending.WELL, None, done_s)
            open_.remove((done_s, name))
        name, choice = desk.send(now_s=now_s, tokens=1000)
        start_s = max(now_s, busy_until_s[choice.replica])
        busy_until_s[choice.replica] = start_s + 0.02 + 1000 / rate[choice.replica]
        open_.append((busy_until_s[choice.replica], name))
        open_.sort()
    views = desk.router.snapshot(now_s).replicas
    assert views["fast"].prefill_tokens_per_s == pytest.approx(10_000.0, rel=0.15)
    assert views["slow"].prefill_tokens_per_s < 5_000.0, "of late it has had few: what is not used is forgotten"
    assert desk.chosen["slow"] < desk.chosen["fast"] / 4


def test_nothing_new_goes_to_a_full_replica_and_caps_may_fall_below_what_runs() -> None:
    desk = Desk([spec("a", 2)])
    names = [desk.send(tokens=10)[0] for _ in range(2)]
    assert not desk.router.has_room(0.0)
    assert desk.router.choose(desk.ask(tokens=10), 0.0) is None
    desk.router.set_cap("a", 1)
    desk.router.end(names[0], Ending.WELL, None, 1.0)
    assert desk.router.choose(desk.ask(tokens=10), 1.0) is None
    desk.router.end(names[1], Ending.WELL, None, 1.0)
    assert desk.router.has_room(1.0)
    assert desk.router.cap_of("a") == 1
    desk.router.set_cap("a", 100)
    assert desk.router.cap_of("a") == 2, "never beyond the replica's own"
    desk.router.check_invariants(1.0)


def test_excluded_replicas_are_never_chosen_and_none_left_is_said() -> None:
    desk = Desk([spec("a"), spec("b")])
    desk.serve(prompt("p", 5))
    for _ in range(4):
        assert desk.serve(prompt("p", 5), excluded=frozenset({"a"})).replica == "b"
    all_tried = desk.ask(excluded=frozenset({"a", "b", "gone"}))
    assert desk.router.choose(all_tried, 0.0) is None
    assert desk.router.hopeless(all_tried) is Reason.ALL_TRIED
    assert desk.router.hopeless(desk.ask()) is None
    desk.router.set_replicas([], 0.0)
    assert desk.router.hopeless(desk.ask()) is Reason.NO_REPLICA


def test_zone_local_comes_first_until_another_zone_is_sooner_by_the_penalty() -> None:
    desk = Desk([spec("near1", zone="x"), spec("near2", zone="x"), *(spec(f"far{n}", zone="y") for n in range(20))])
    for _ in range(6):
        assert desk.send(tokens=2000, zone="x")[1].replica.startswith("near")
    chosen = [desk.send(tokens=5000, zone="x")[1].replica for _ in range(6)]
    assert any(name.startswith("far") for name in chosen), "two full queues are worth more than a zone"
    assert desk.send(tokens=100, zone="nowhere")[1].replica.startswith("far")
    desk.router.check_invariants(0.0)


def test_who_has_tried_all_of_its_zone_goes_to_another_one() -> None:
    tunables = RoutingTunables(num_least_loaded=1)
    desk = Desk([spec("a", zone="x"), spec("b", zone="x"), spec("far", zone="y")], tunables)
    desk.send(tokens=5000, zone="y")
    assert desk.send(tokens=10, zone="x", excluded=frozenset({"a", "b"}))[1].replica == "far"


def test_cached_tokens_are_not_taken_from_another_zone_for_less_than_the_penalty() -> None:
    desk = Desk([spec("near", zone="x"), spec("far", zone="y")])
    desk.serve(prompt("p", 20), zone="y")
    assert desk.serve(prompt("p", 20), zone="x", now_s=1.0).replica == "near"


def test_an_engine_that_others_use_too_is_seen_by_its_queue_and_its_full_cache() -> None:
    desk = Desk([spec("a", 64), spec("b", 64)])
    desk.router.frame("a", StateFrame(running=10, waiting=5), 0.0)
    assert {desk.serve(tokens=100, now_s=0.1).replica for _ in range(3)} == {"b"}
    desk.router.frame("a", StateFrame(kv_used_ratio=1.0), 1.0)
    assert {desk.serve(tokens=100, now_s=1.1).replica for _ in range(3)} == {"b"}
    assert desk.serve(tokens=100, now_s=10.0).replica == "a", "an old frame says nothing"
    desk.router.frame("nobody", StateFrame(), 1.0)


def test_the_inter_token_latency_is_measured_from_reports() -> None:
    desk = Desk([spec("a"), spec("b")])
    assert desk.router.inter_token_s("a", 0.0) is None
    name, choice = desk.send(tokens=100)
    desk.router.first_token(name, 1.0)
    for report in range(1, 20):
        desk.router.progress(name, 1 + 10 * report, 1.0 + 0.25 * report)
    assert desk.router.inter_token_s(choice.replica, 6.0) == pytest.approx(0.025)
    assert desk.router.inter_token_s(choice.replica, 7.0) is None, "old news"
    other = "b" if choice.replica == "a" else "a"
    desk.router.frame(other, StateFrame(iteration_s=0.04), 6.0)
    assert desk.router.inter_token_s(other, 6.0) is None, "a step's time, chunks of prompts included"
    desk.router.check_invariants(6.0)


@pytest.mark.parametrize("leaves", ["first token", "end"])
def test_while_a_prompt_is_read_reports_say_nothing_of_the_inter_token_latency(leaves: str) -> None:
    desk = Desk([spec("a")])
    name, _ = desk.send(tokens=100)
    desk.router.first_token(name, 0.0)
    desk.router.progress(name, 11, 0.25)
    other, _ = desk.send(tokens=5000, now_s=0.3)
    desk.router.progress(name, 12, 0.5)
    assert desk.router.inter_token_s("a", 0.5) == pytest.approx(0.025)
    if leaves == "end":
        desk.router.end(other, Ending.NEUTRAL, None, 0.6)
    else:
        desk.router.first_token(other, 0.6)
    desk.router.progress(name, 13, 0.75)
    assert desk.router.inter_token_s("a", 0.75) == pytest.approx(0.025), "it was read in a part of this report's time"
    desk.router.progress(name, 14, 1.0)
    assert desk.router.inter_token_s("a", 1.0) == pytest.approx(0.05, rel=0.3)


def test_progress_that_comes_before_the_first_token_is_one() -> None:
    desk = Desk([spec("a")])
    name, _ = desk.send(tokens=5000)
    desk.router.progress(name, 3, 0.5)
    assert desk.router.snapshot(0.5).replicas["a"].queued_prefill_tokens == 0.0
    desk.router.progress(name, 13, 0.75)
    assert desk.router.inter_token_s("a", 0.75) == pytest.approx(0.025)


def test_what_is_restored_counts_beyond_any_cap_and_not_as_prefill() -> None:
    desk = Desk([spec("a", 1)])
    assert desk.router.restore(desk.ask(prompt("p", 9)), "a", 0.0)
    again = desk.ask(prompt("p", 9))
    assert desk.router.restore(again, "a", 0.0)
    assert not desk.router.restore(desk.ask(), "gone", 0.0)
    assert (desk.router.in_flight(), desk.router.capacity()) == (2, 1)
    assert desk.router.snapshot(0.0).replicas["a"].queued_prefill_tokens == 0.0
    assert set(desk.router.running_on("a")) == {"q1", "q2"}
    assert desk.router.replica_of(again.id) == "a"
    for name in ("q1", "q2", "q2", "never"):
        desk.router.end(name, Ending.NEUTRAL, None, 1.0)
    desk.router.check_invariants(1.0)
    assert desk.serve(prompt("p", 9), now_s=1.0).reason is Reason.PREFIX, "its cache holds what ran there"


def test_a_new_epoch_forgets_prefix_and_health_and_what_the_old_one_ran_says_nothing() -> None:
    desk = Desk([spec("a", epoch=1)])
    old, _ = desk.send(prompt("p", 9))
    desk.router.set_replicas([spec("a", epoch=2)], 1.0)
    desk.router.check_invariants(1.0)
    assert desk.router.in_flight() == 1
    assert desk.send(prompt("p", 9), now_s=1.0)[1].reason is Reason.FASTEST
    for _ in range(5):
        desk.router.end(old, Ending.FAILED, Usage(cached_tokens=0), 2.0)
    assert not desk.router.snapshot(2.0).replicas["a"].is_ejected


def test_the_predicted_wait_is_for_slots_or_for_prefill_whichever_is_longer() -> None:
    desk = Desk([spec("a", 2), spec("b", 2)])
    assert desk.router.predicted_wait_s(0, 0, 0.0) == 0.0
    assert desk.router.predicted_wait_s(20_000, 0, 0.0) == pytest.approx(1.0)
    for _ in range(4):
        desk.send(tokens=10)
    assert desk.router.predicted_wait_s(0, 3, 0.0) == pytest.approx(1.0), "four have to go, at a second each"


def test_a_router_without_replicas_waits() -> None:
    router = Router(TUNABLES)
    assert not router.has_room(0.0)
    assert router.next_event_s(0.0) is None
    assert router.capacity() == 0
    assert router.predicted_wait_s(100, 5, 0.0) > 0.0
    assert list(router.running_on("a")) == []
    assert router.replica_of("q") is None
    router.set_cap("a", 5)
    router.first_token("q", 0.0)
    router.progress("q", 3, 0.0)
    router.end("q", Ending.WELL, None, 0.0)


def test_prompts_that_share_a_beginning_and_then_differ_are_spread_and_stay_where_they_are() -> None:
    desk = Desk([spec(name, 64) for name in "abcd"])
    tails = [chain("system", tail, 1, 2, 3, 4, 5) for tail in range(200)]
    homes = [desk.serve(tail, now_s=0.1 * at).replica for at, tail in enumerate(tails)]
    assert max(desk.chosen.values()) < 1.3 * 200 / 4
    again = [desk.serve(tail, now_s=30.0 + 0.1 * at).replica for at, tail in enumerate(tails)]
    assert again == homes


def test_a_full_holder_is_passed_over_however_much_it_holds() -> None:
    desk = Desk([spec("a", 1), spec("b", 1)])
    name, first = desk.send(prompt("p", 64))
    desk.router.first_token(name, 1.0)
    _, second = desk.send(prompt("p", 64), now_s=1.0)
    assert second.replica != first.replica
    assert second.reason is Reason.SPILLED


def test_a_small_match_draws_nobody_but_is_predicted() -> None:
    desk = Desk([spec(name, 64) for name in "abcd"])
    choices = [desk.serve((*chain("system"), *prompt(f"user{at}", 11)), now_s=1.0 * at) for at in range(8)]
    assert set(desk.chosen.values()) == {2}
    assert {choice.reason for choice in choices} == {Reason.FASTEST}
    assert [choice.cached_tokens for choice in choices] == [0] * 4 + [100] * 4


def test_what_ran_under_another_epoch_teaches_nothing_about_this_one() -> None:
    desk = Desk([spec("a", epoch=1)])
    begun, _ = desk.send(prompt("p", 8))
    answering, _ = desk.send(prompt("q", 8))
    desk.router.first_token(answering, 1.0)
    desk.router.set_replicas([spec("a", epoch=2)], 2.0)
    before = desk.router.snapshot(1000.0).replicas["a"].prefill_tokens_per_s
    desk.router.first_token(begun, 1000.0)
    desk.router.end(begun, Ending.WELL, Usage(completion_tokens=5000), 1000.0)
    desk.router.end(answering, Ending.WELL, Usage(completion_tokens=5000), 1000.0)
    view = desk.router.snapshot(1000.0).replicas["a"]
    assert view.cached_blocks == 0
    assert view.prefill_tokens_per_s == pytest.approx(before)


def test_a_probe_whose_client_leaves_is_followed_by_another() -> None:
    desk = Desk([spec("a"), spec("broken")])
    while not desk.router.snapshot(0.0).replicas["broken"].is_ejected:
        desk.fail(tokens=10, excluded=frozenset({"a"}))
    name, probe = desk.send(tokens=10, now_s=2.0)
    assert probe.reason is Reason.PROBE
    desk.router.end(name, Ending.NEUTRAL, None, 2.1)
    assert desk.send(tokens=10, now_s=2.2)[1].reason is Reason.PROBE
    desk.router.check_invariants(2.2)


def test_answers_push_prompts_out_of_the_cache() -> None:
    desk = Desk([spec("a", kv_tokens=2000)])
    desk.serve(prompt("p", 4))
    name, _ = desk.send(prompt("q", 4), now_s=1.0)
    desk.router.first_token(name, 1.1)
    desk.router.end(name, Ending.WELL, Usage(completion_tokens=1500), 2.0)
    assert desk.serve(prompt("p", 4), now_s=3.0).cached_tokens < 400


def test_an_engine_that_caches_nothing_is_believed() -> None:
    desk = Desk([spec("a", kv_tokens=1_000_000)], RoutingTunables(block_tokens=100, max_depth_blocks=8))
    for at in range(150):
        for _ in range(2):
            name, _ = desk.send(prompt(f"p{at}", 8), now_s=float(at))
            desk.router.first_token(name, at + 0.1)
            desk.router.end(name, Ending.WELL, Usage(cached_tokens=0), at + 0.2)
    assert desk.router.snapshot(200.0).replicas["a"].cached_blocks < 50

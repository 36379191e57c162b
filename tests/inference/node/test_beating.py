"""What the heartbeat says of engines, and what the agent answers operators who ask for logs."""

from dataclasses import replace
from pathlib import Path

import pytest

from inference.engines.vllm import parse_metrics
from inference.node.agent import Agent
from inference.node.beating import Loads, Scraped
from inference.node.machine import accelerator
from inference.services.heartbeats import beat_every_s
from tests.inference.node.fakes import IDLE, Workshop, desired

METRICS = """
vllm:num_requests_running{engine="0"} 3.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:generation_tokens_total{engine="0"} 100.0
vllm:prefix_cache_queries_total{engine="0"} 80.0
vllm:prefix_cache_hits_total{engine="0"} 20.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 10.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 7.0
"""


def test_speed_is_of_the_time_since_the_heartbeat_before_and_of_the_same_engine() -> None:
    loads, seen = Loads(), Scraped("rep-1", 1, replace(IDLE, completion_tokens=100))
    assert loads.of([seen], now_s=10.0)["rep-1"].tokens_per_s == 0.0
    later = replace(seen, load=replace(IDLE, completion_tokens=160))
    assert loads.of([later], now_s=12.0)["rep-1"].tokens_per_s == 30.0
    restarted = Scraped("rep-1", 2, replace(IDLE, completion_tokens=5))
    assert loads.of([restarted], now_s=14.0)["rep-1"].tokens_per_s == 0.0


def test_hits_and_acceptance_come_from_the_engines_own_counters() -> None:
    load = Loads().of([Scraped("rep-1", 1, parse_metrics(METRICS))], now_s=1.0)["rep-1"]
    assert (load.running, load.kv_used_ratio, load.prefix_hit_ratio, load.accepted_ratio) == (3, 0.25, 0.25, 0.7)


def test_an_engine_that_neither_looks_up_nor_drafts_has_no_such_share() -> None:
    load = Loads().of([Scraped("rep-1", 1, IDLE)], now_s=1.0)["rep-1"]
    assert (load.prefix_hit_ratio, load.accepted_ratio) == (None, None)


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(folder=tmp_path)


def test_an_agent_says_where_it_is_what_it_has_room_for_and_what_its_engines_do(shop: Workshop) -> None:
    shop.settings = replace(shop.settings, max_replicas=4)
    shop.link.rows = [desired()]
    agent = Agent(shop.tools())
    agent.start()
    for _ in range(20):
        shop.clock.advance(1.0)
        agent.tick()
    beat = shop.link.beats[-1]
    assert (beat.zone, beat.max_replicas, list(beat.loads)) == ("north", 4, ["rep-1"])
    assert (beat.accelerator, beat.environments) == (accelerator(), ["vllm-cpu-1"])
    assert len(shop.link.beats) == shop.link.num_fleet_looks == 20 / beat_every_s()


def test_a_fault_in_looking_after_others_keeps_no_engine_from_being_watched(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(shop.link, "look_after_fleet", fail)
    shop.link.rows = [desired()]
    agent = Agent(shop.tools())
    agent.start()
    for _ in range(8):
        shop.clock.advance(1.0)
        agent.tick()
    assert shop.link.states[-1] == "ready"


def test_the_log_that_was_asked_for_is_told_without_colours(shop: Workshop) -> None:
    agent = Agent(shop.tools())
    (agent.tools.logs / "rep-1.log").write_text("".join(f"\x1b[31mline {number}\x1b[0m\n" for number in range(300)))
    shop.link.asked_logs = ["rep-1", "rep-2"]
    agent.start()
    agent.tick()
    assert shop.link.logs["rep-1"].splitlines() == [f"line {number}" for number in range(100, 300)]
    assert shop.link.logs["rep-2"] == ""

"""Replicas that come and go in the simulator, and the autoscaler that makes them."""

from random import Random

from inference.policy.autoscale_tunables import AutoscaleTunables, ScaleBounds
from inference.sim.engine_profile import LLAMA_8B_H100
from inference.sim.generators import like_code
from inference.sim.scaled import Autoscaled, Planned, ScaledOutcome, ScaledSimulation, ScaleSetup, run_scaled
from inference.sim.simulation import Setup
from inference.sim.workload import Workload
from tests.inference.sim.casts import steady

TUNABLES = AutoscaleTunables()


def bursty(seconds: float = 240.0) -> Workload:
    return like_code(requests_per_s=25.0, seconds=seconds, rng=Random(5))


def autoscaled(workload: Workload, *, replicas: int = 1, scale: ScaleSetup | None = None) -> ScaledOutcome:
    planner = Autoscaled(ScaleBounds(1, 20, 900.0), TUNABLES)
    return run_scaled(workload, Setup(LLAMA_8B_H100, replicas), scale or ScaleSetup(start_s=10.0), planner)


def test_a_plan_is_kept_to_the_second_and_paid_for() -> None:
    found = run_scaled(steady(seconds=90.0), Setup(LLAMA_8B_H100, 2), ScaleSetup(start_s=10.0), Planned((2, 3, 1), 30.0))
    assert [(step.at_s, step.before, step.after) for step in found.steps] == [(20.0, 2, 3), (60.0, 3, 1)]
    end_s = max(record.end_s or 0.0 for record in found.outcome.records)
    assert 2 * 60 + 40 + (end_s - 60) <= found.replica_s <= 2 * 60 + 40 + (end_s - 60) + 10
    assert not any(record.is_refused for record in found.outcome.records)


def test_every_request_is_answered_while_replicas_come_and_go() -> None:
    workload = bursty(60.0)
    found = run_scaled(workload, Setup(LLAMA_8B_H100, 6), ScaleSetup(start_s=3.0), Planned((6, 2, 8, 1, 5, 2), 10.0))
    records = found.outcome.records
    assert len(records) == len(workload.arrivals)
    assert all(record.completion_tokens == record.arrival.output_tokens for record in records)
    assert {step.after for step in found.steps} == {1, 2, 5, 8}


def test_a_warm_replica_serves_sooner_than_one_that_is_started() -> None:
    served: dict[int, float] = {}
    for warm in (0, 1):
        seen: list[float] = []

        def plan(simulation: ScaledSimulation, seen: list[float] = seen) -> None:
            simulation.loop.at(20.0, lambda: simulation.want(2))
            simulation.loop.at(22.0, lambda: seen.append(simulation.front.brain.snapshot(22.0).pools["model"].capacity))

        run_scaled(steady(seconds=40.0), Setup(LLAMA_8B_H100, 1), ScaleSetup(start_s=10.0, warm=warm), plan)
        served[warm] = seen[0]
    assert served == {0: LLAMA_8B_H100.max_sequences, 1: 2 * LLAMA_8B_H100.max_sequences}


def test_b123_bursts_make_no_step_back_within_a_pause() -> None:
    found = autoscaled(bursty())
    assert found.reversals(TUNABLES.reversal_pause_s) == 0
    ups = [step for step in found.steps if step.after > step.before]
    assert ups and max(step.after for step in found.steps) >= 5, "it followed the bursts at all"
    assert all(step.before - step.after == 1 for step in found.steps if step not in ups)
    decisions = [decision.desired for _, decision in found.decisions]
    assert len(decisions) > 40, "it looked all the time"


def test_what_it_costs_and_what_comes_late_once_it_knows_the_bursts() -> None:
    lap = bursty()
    found = autoscaled(lap.laps(2))
    later = found.outcome.records[len(lap.arrivals) :]
    late = sum(record.ttft_s is None or record.ttft_s > 2.0 for record in later)
    assert late <= 0.05 * len(later)
    assert found.reversals(TUNABLES.reversal_pause_s) == 0


def test_two_runs_decide_the_same() -> None:
    first, second = (autoscaled(bursty(120.0)) for _ in range(2))
    assert first.decisions == second.decisions and first.replica_s == second.replica_s

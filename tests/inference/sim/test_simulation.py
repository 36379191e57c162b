from dataclasses import replace
from random import Random

import pytest

from inference.policy.decisions import Limit, LimitKind, Reason, Scope, ScopeKind, TenantTerms, Tier, TierTargets
from inference.sim.fronts import BASELINES, FrontContext, MakeFront
from inference.sim.generators import TenantLoad, poisson, shared_prefixes
from inference.sim.ours import BrainFront, RouterFront
from inference.sim.results import jain, max_to_mean, summarise
from inference.sim.simulation import Outcome, Setup, Simulation, simulate
from inference.sim.sustainable import Target, sustainable_rate
from inference.sim.workload import Arrival, Workload, best_cached_share, merge
from tests.inference.sim.casts import QUICK, at_once, shared, steady

FRONTS: dict[str, MakeFront] = {**BASELINES, "router": RouterFront, "brain": BrainFront}
SETUP = Setup(QUICK, replicas=3)
every_front = pytest.mark.parametrize("make_front", FRONTS.values(), ids=FRONTS)


def fingerprint(outcome: Outcome) -> list[tuple[str, str, float | None, float | None]]:
    return [(one.id, one.replica, one.first_token_s, one.end_s) for one in outcome.records]


@every_front
def test_every_request_ends_once_with_all_its_tokens(make_front: MakeFront) -> None:
    workload = merge(steady(seconds=6.0), shared(seconds=6.0))
    simulation = Simulation(workload, make_front, SETUP)
    outcome = simulation.run()
    assert len(outcome.records) == len(workload.arrivals)
    for record in outcome.records:
        assert record.is_refused or record.completion_tokens == record.arrival.output_tokens
        assert record.end_s is not None and record.end_s >= record.arrival.at_s
    served = [record for record in outcome.records if not record.is_refused]
    made = sum(replica.generated_tokens for replica in simulation.replicas.values())
    assert made == sum(record.completion_tokens for record in served)
    assert sum(load.requests for load in outcome.loads.values()) == len(served)
    assert sum(gaps.count for gaps in outcome.gaps.values()) == made - len(served)
    assert all(load.in_flight == 0 for load in outcome.loads.values())
    for replica in simulation.replicas.values():
        replica.check_invariants()
        assert replica.cache.used_blocks == 0


@every_front
def test_the_same_seed_gives_the_same_run(make_front: MakeFront) -> None:
    workload = shared(requests_per_s=40.0, seconds=5.0)
    first, again = (simulate(workload, make_front, SETUP) for _ in range(2))
    assert fingerprint(first) == fingerprint(again)


def thirty_tenants(requests_per_s: float) -> Workload:
    """1,280 tokens of prefix each, of which all share the first block; no replica can hold more than half of them."""
    return shared_prefixes(
        tenants=30,
        prefix_tokens=1280,
        suffix_tokens=100,
        output_tokens=60,
        requests_per_s=requests_per_s,
        seconds=90.0,
        rng=Random(1),
        content_block_tokens=128,
    )


FOUR = Setup(replace(QUICK, kv_tokens=16_384, step_budget_tokens=1024), replicas=4)


def test_b108_x15_a_first_block_that_all_share_sends_all_to_one_replica_by_prefix_alone() -> None:
    """The baseline that shows what to avoid."""
    collapsed = summarise(simulate(thirty_tenants(8.0), BASELINES["prefix only"], FOUR))
    assert collapsed.load_max_to_mean == pytest.approx(4.0)


@pytest.mark.parametrize("make_front", [RouterFront, BrainFront])
def test_b108_x15_ours_keeps_prefixes_together_and_loads_even(make_front: MakeFront) -> None:
    workload = thirty_tenants(8.0)
    ours = summarise(simulate(workload, make_front, FOUR))
    assert ours.all.cached_share >= 0.9 * best_cached_share(workload)
    assert ours.load_max_to_mean <= 1.3
    assert ours.work_max_to_mean <= 1.3


def test_knowing_the_caches_beats_being_blind_to_them() -> None:
    workload, setup = shared(requests_per_s=25.0, tenants=24), Setup(replace(QUICK, kv_tokens=8192), replicas=3)
    blind = summarise(simulate(workload, BASELINES["least loaded"], setup)).all
    ours = summarise(simulate(workload, RouterFront, setup)).all
    assert ours.cached_share > blind.cached_share + 0.1
    assert ours.ttft_s.p50 < blind.ttft_s.p50


def test_late_reports_of_first_tokens_harm_nobody() -> None:
    late = replace(SETUP, first_token_report_s=0.25)
    figures = summarise(simulate(steady(seconds=6.0), BrainFront, late)).all
    assert figures.refused == 0 and figures.ttft_s.p99 < 1.0


def test_what_can_never_be_served_is_refused() -> None:
    workload = at_once((5000, 10), (100, 10))
    outcome = simulate(workload, BASELINES["round robin"], SETUP)
    assert [record.is_refused for record in outcome.records] == [True, False]


def test_a_limit_of_the_brain_refuses_in_the_simulator_too() -> None:
    terms = TenantTerms("acme", limits=(Limit(Scope(ScopeKind.TENANT, "acme"), LimitKind.REQUESTS, 60),))

    def make(context: FrontContext) -> BrainFront:
        return BrainFront(context, terms=[terms])

    outcome = simulate(steady(requests_per_s=20.0, seconds=10.0), make, SETUP)
    refused = [record for record in outcome.records if record.is_refused]
    assert len(outcome.records) - len(refused) == 60
    assert {record.reason for record in refused} == {Reason.LIMIT}


def test_batch_work_is_parked_for_an_interactive_request_and_ends_with_all_its_tokens() -> None:
    one_slot = replace(QUICK, max_sequences=1)
    long, urgent = Arrival(0.0, 100, 2000, tier=Tier.BATCH, can_park=True), Arrival(5.0, 16, 5, tier=Tier.INTERACTIVE)
    targets = {tier: TierTargets(ttft_s=0.5 + tier, inter_token_s=0.1) for tier in Tier}

    def make(context: FrontContext) -> BrainFront:
        return BrainFront(context, targets=targets)

    outcome = simulate(Workload((long, urgent), 64), make, Setup(one_slot, replicas=1))
    parked, served = outcome.records
    assert (parked.parks, parked.attempts, parked.completion_tokens) == (1, 2, 2000)
    assert served.ttft_s is not None and served.ttft_s < 1.0
    pauses = outcome.gaps[int(Tier.BATCH), "tenant"]
    assert pauses.count == 1999 + 1  # the step in which it was aborted counts, though its token is lost
    assert pauses.quantile(1.0) > 0.05


def test_a_pool_that_mostly_reads_prompts_is_not_starved_by_its_batch_cap() -> None:
    """Decoding takes 12 ms a step, steps that carry a chunk of a prompt 40 ms: fewer at once would not change that."""
    load = TenantLoad("acme", 8.0, prompt_tokens=2000, output_tokens=40)
    workload = poisson(load, seconds=60.0, rng=Random(9), content_block_tokens=64)
    setup = Setup(replace(QUICK, kv_tokens=65_536), replicas=3)
    targets = dict.fromkeys(Tier, TierTargets(ttft_s=2.0, inter_token_s=0.03))

    def make(context: FrontContext) -> BrainFront:
        return BrainFront(context, targets=targets)

    brain, router = (summarise(simulate(workload, front, setup)).all for front in (make, RouterFront))
    assert router.bad_share == 0.0 == brain.bad_share
    assert brain.ttft_s.p50 < 1.2 * router.ttft_s.p50


def test_figures_are_kept_by_tier_and_tenant() -> None:
    rng = Random(5)
    loads = [
        TenantLoad("acme", 5, 100, 20, Tier.INTERACTIVE),
        TenantLoad("globex", 10, 300, 40, Tier.BATCH),
    ]
    workload = merge(*(poisson(load, seconds=20, rng=rng, content_block_tokens=64) for load in loads))
    summary = summarise(simulate(workload, BrainFront, SETUP), weights={"acme": 1.0, "globex": 1.0})
    assert set(summary.by_tier) == {Tier.INTERACTIVE, Tier.BATCH} and set(summary.by_tenant) == {"acme", "globex"}
    assert summary.by_tenant["acme"].requests == summary.by_tier[Tier.INTERACTIVE].requests
    assert sum(figures.requests for figures in summary.by_tenant.values()) == summary.all.requests
    ttft = summary.all.ttft_s
    assert 0 < ttft.p50 <= ttft.p90 <= ttft.p99
    assert 0 < summary.jain <= 1 and summary.tokens_per_s > 0


def test_two_flooding_tenants_are_served_by_weight() -> None:
    rng = Random(7)
    weights = {"acme": 1.0, "globex": 2.0}
    loads = [TenantLoad(tenant, 20, 100, 40, Tier.BATCH) for tenant in weights]
    workload = merge(*(poisson(load, seconds=40, rng=rng, content_block_tokens=64) for load in loads))

    def make(context: FrontContext) -> BrainFront:
        return BrainFront(context, terms=[TenantTerms(tenant, weight) for tenant, weight in weights.items()])

    setup = Setup(replace(QUICK, max_sequences=4), replicas=1)
    fair = summarise(simulate(workload, make, setup), weights)
    blind = summarise(simulate(workload, BASELINES["round robin"], setup), weights)
    assert fair.jain > 0.95 > blind.jain


def test_a_run_is_given_up_once_too_much_is_late() -> None:
    setup = replace(SETUP, give_up_share=0.01, late_ttft_s=0.2)
    summary = summarise(simulate(steady(requests_per_s=400.0), BASELINES["round robin"], setup))
    assert summary.gave_up and summary.all.requests < 8000


def test_the_search_finds_a_rate_that_holds_below_one_that_does_not() -> None:
    workload, setup, target = (
        steady(seconds=15.0),
        replace(SETUP, late_ttft_s=2.0),
        Target(ttft_p50_s=0.2, inter_token_p50_s=0.1),
    )
    found = sustainable_rate(workload, BASELINES["least loaded"], setup, target=target, guess_per_s=10.0, tolerance=0.1)
    assert found.summary is not None and target.is_met(found.summary)
    assert found.limited_by in {"TTFT", "inter-token", "refused or late"}
    above = summarise(simulate(workload.at_rate(found.rate_per_s * 1.25), BASELINES["least loaded"], setup))
    assert not target.is_met(above)


def test_a_search_that_finds_nothing_ends() -> None:
    impossible = Target(ttft_p50_s=0.0)
    found = sustainable_rate(
        at_once((10, 1), (10, 1)).first(2), BASELINES["round robin"], SETUP, target=impossible, guess_per_s=1.0
    )
    assert found.rate_per_s == 0.0 and found.summary is None


def test_shares_and_ratios() -> None:
    assert jain([1, 1, 1, 1]) == 1.0
    assert jain([1, 0, 0, 0]) == 0.25
    assert max_to_mean([3, 1, 2]) == 1.5
    assert max_to_mean([0, 0]) == 1.0

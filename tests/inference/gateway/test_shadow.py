"""What is mirrored to a candidate, and what never is: on a real socket, with scripted replicas."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from django.db import OperationalError

from inference.gateway.shadow import Shadower, ShadowScores, ShadowTunables
from inference.gateway.shadow_budget import ShadowBudget
from inference.gateway.state import Change
from inference.policy.decisions import PICOS_A_MICRO
from inference.services.shadow_scores import Mirrored
from tests.fakes.gateway import ACME, CACHE_SALT, GLOBEX, GatewayUnderTest, basic, running_gateway, until
from tests.fakes.replica import ScriptedReplica, refused
from tests.fakes.token_engine import TokenEngine
from tests.inference.gateway.released_model import operator_terms, released
from tests.inference.gateway.resumed_answers import CHAT, body_for, read

SHADOW: dict[str, Any] = {
    "stable": "v1",
    "candidate": "v2",
    "shadow_share_ppm": 1_000_000,
    "shadow_max_usd_micros_left": 1_000_000,
    "salt": "rollout-1",
}
TUNABLES = ShadowTunables(wait_s=0.2)
TEXT = "The answer is forty two."
PRICE = Change(
    950,
    "price",
    "m",
    {
        "prices": [
            {
                "tier": "",
                "version": 1,
                "input_micros": 1_000_000,
                "cached_micros": 0,
                "output_micros": 1_000_000,
                "effective_from": 0.0,
            }
        ]
    },
)


class Mirroring:
    def __init__(
        self,
        gateway: GatewayUnderTest,
        replicas: dict[str, ScriptedReplica],
        versions: dict[str, Any],
        tunables: ShadowTunables,
    ) -> None:
        self.gateway, self.replicas = gateway, replicas
        self.scores: list[Mirrored] = []
        self.carried = ShadowScores(write=self.scores.extend)
        self.left_micros: int = versions["shadow_max_usd_micros_left"]
        self.budget = ShadowBudget(self.fetch, self.give_back)
        self.shadower = gateway.parts.shadow = Shadower(gateway.parts, self.carried, self.budget, tunables)
        # What the first request would only have wished for is there before it comes.
        self.budget.take(versions["salt"], self.left_micros * PICOS_A_MICRO, left_micros=self.left_micros)
        self.budget.refill()

    def fetch(self, *, rollout: str, micros: int) -> int:
        given = min(micros, self.left_micros)
        self.left_micros -= given
        return given

    def give_back(self, *, rollout: str, micros: int) -> None:
        self.left_micros += micros

    @property
    def mirrored(self) -> list[Any]:
        """What the candidate was asked."""
        return self.replicas["v2"].requests

    async def settled(self) -> None:
        """All that was to be mirrored has been."""
        await until(lambda: not self.gateway.parts.running)
        await asyncio.sleep(0)  # it is considered in the next turn of the loop
        await until(lambda: not self.shadower._tasks)
        self.carried.flush()


@contextlib.asynccontextmanager
async def mirroring(
    *more: Change,
    versions: dict[str, Any] = SHADOW,
    candidate: TokenEngine | None = None,
    tunables: ShadowTunables = TUNABLES,
) -> AsyncIterator[Mirroring]:
    """Our own account is globex, the customer acme."""
    async with contextlib.AsyncExitStack() as stack:
        engines = {"v1": TokenEngine(TEXT), "v2": candidate or TokenEngine(TEXT)}
        replicas = {
            label: await stack.enter_async_context(ScriptedReplica(default=engine.answer)) for label, engine in engines.items()
        }
        rows = released(versions, {label: [replica.url] for label, replica in replicas.items()})
        ours = Change(901, "terms", GLOBEX, {**(operator_terms().payload or {}), "is_operator": True})
        gateway = await stack.enter_async_context(running_gateway([*rows, ours, *more]))
        yield Mirroring(gateway, replicas, versions, tunables)


async def test_a_request_is_mirrored_after_its_answer_and_the_two_answers_are_compared() -> None:
    async with mirroring(PRICE) as cell:
        told = read(await cell.gateway.post(CHAT, body_for(CHAT, stream=True)))
        await cell.settled()
        assert told.text == TEXT
        (seen,) = cell.mirrored
        assert seen.json["messages"] == cell.replicas["v1"].requests[0].json["messages"]
        assert seen.json["cache_salt"] == CACHE_SALT, "nobody else's prompt is found by it"
        assert seen.headers["x-request-id"].startswith("shadow-")
        (score,) = cell.scores
        assert (score.rollout, score.model, score.stable, score.candidate) == ("rollout-1", "m", "v1", "v2")
        assert (score.error, score.of_stable.text, score.of_candidate.text) == ("", TEXT, TEXT)
        for answer in (score.of_stable, score.of_candidate):
            assert answer.ttft_ms is not None and answer.inter_token_ms is not None
            assert answer.completion_tokens > 1 and answer.finish_reason == "stop"
        assert score.cost_picos > 0


async def test_it_is_batch_work_of_our_own_account_and_the_customers_record_says_nothing_of_it() -> None:
    async with mirroring(PRICE) as cell:
        await cell.gateway.post(body=basic(priority="interactive"))
        await cell.settled()
        customers, ours = cell.gateway.journal.closed
        assert (customers.tenant_id, customers.version, customers.attempts) == (ACME, "v1", 1)
        assert (ours.tenant_id, ours.key_id, ours.route, ours.tier) == (GLOBEX, "shadow", "shadow", "batch")
        assert (ours.version, ours.member_id, ours.end_state) == ("v2", None, "done")
        assert ours.completion_tokens == customers.completion_tokens, "its engine's work is explained"
        counted = cell.gateway.parts.metrics.registry.get_sample_value
        assert counted("headway_tokens_total", {"kind": "completion"}) == customers.completion_tokens
        assert cell.gateway.in_flight() == 0


async def nobody_is_mirrored(cell: Mirroring, **body: Any) -> None:
    assert (await cell.gateway.post(body=basic(**body))).status_code == 200
    await cell.settled()
    assert not cell.mirrored and not cell.scores
    assert len(cell.gateway.journal.closed) == 1


@pytest.mark.parametrize(
    "terms",
    [{"no_shadow": True}, {"is_operator": True}],
    ids=["its tenant forbids it", "it is ours"],
)
async def test_some_tenants_requests_are_never_mirrored(terms: dict[str, Any]) -> None:
    async with mirroring(operator_terms(902, **terms)) as cell:
        await nobody_is_mirrored(cell)


@pytest.mark.parametrize(
    "versions",
    [
        {**SHADOW, "shadow_share_ppm": 0},
        {**SHADOW, "candidate": None},
        {**SHADOW, "stable": "v2", "candidate": "v1", "candidate_share_ppm": 1_000_000},
    ],
    ids=["no share", "no candidate", "the candidate has answered it"],
)
async def test_nothing_is_mirrored_without_a_share_or_of_what_the_candidate_has_answered(versions: dict[str, Any]) -> None:
    async with mirroring(versions=versions) as cell:
        await cell.gateway.post()
        await cell.settled()
        assert not cell.scores and len(cell.gateway.journal.closed) == 1


@pytest.mark.parametrize("body", [{"tools": [{"type": "function", "function": {"name": "f"}}]}, {"n": 2}], ids=str)
async def test_what_cannot_be_compared_is_not_mirrored(body: dict[str, Any]) -> None:
    async with mirroring() as cell:
        await cell.gateway.post(body=basic(**body))
        await cell.settled()
        assert not cell.mirrored and not cell.scores


async def test_the_share_of_requests_that_was_asked_for_is_mirrored() -> None:
    async with mirroring(versions={**SHADOW, "shadow_share_ppm": 250_000}) as cell:
        for _ in range(200):
            await cell.gateway.post()
            await cell.settled()
        assert abs(len(cell.scores) - 50) <= 6 * 6.2, "ids are drawn anew in each run"


async def test_no_more_than_a_few_are_mirrored_at_once() -> None:
    held = asyncio.Event()
    async with mirroring(tunables=ShadowTunables(max_at_once=2)) as cell:
        cell.replicas["v2"].script([held], [held])
        for _ in range(5):
            await cell.gateway.post()
        await until(lambda: len(cell.mirrored) == 2)
        assert len(cell.shadower._tasks) == 2
        held.set()


async def test_no_more_is_mirrored_than_may_be_spent() -> None:
    """2 tokens may be spent, and a request may cost more."""
    async with mirroring(PRICE, versions={**SHADOW, "shadow_max_usd_micros_left": 2}) as cell:
        await nobody_is_mirrored(cell)


async def test_what_was_spent_is_taken_off_what_may_be_and_the_rest_is_given_back_by_a_drain() -> None:
    async with mirroring(PRICE, versions={**SHADOW, "shadow_max_usd_micros_left": 400}) as cell:
        for _ in range(20):
            await cell.gateway.post(body=basic(max_tokens=100))
            await cell.settled()
            cell.budget.refill()
        assert 0 < len(cell.scores) < 20
        spent = sum(score.cost_picos for score in cell.scores)
        assert spent <= 400 * PICOS_A_MICRO
        cell.gateway.parts.begin_drain()
        cell.budget.refill()
        assert cell.left_micros * PICOS_A_MICRO <= 400 * PICOS_A_MICRO - spent < (cell.left_micros + 1) * PICOS_A_MICRO


async def test_what_an_engine_that_died_has_done_counts_as_the_most_it_can_be() -> None:
    async with mirroring(PRICE) as cell:
        cell.replicas["v2"].script(refused(500, "failed"))
        await cell.gateway.post(body=basic(max_tokens=100))
        await cell.settled()
        (score,) = cell.scores
        assert score.error and score.cost_picos > 100 * PICOS_A_MICRO


async def test_a_candidate_that_fails_is_scored_and_its_customer_has_long_been_answered() -> None:
    async with mirroring() as cell:
        cell.replicas["v2"].script(refused(500, "failed"))
        assert (await cell.gateway.post()).status_code == 200
        await cell.settled()
        (score,) = cell.scores
        assert (score.error, score.of_candidate.ttft_ms) == ("engine_error", None)
        assert len(cell.mirrored) == 1, "it is not tried again"


async def test_without_a_slot_of_the_candidate_it_is_dropped_and_never_goes_to_the_stable_version() -> None:
    async with mirroring() as cell:
        urls = {"v1": [cell.replicas["v1"].url]}
        state = cell.gateway.state
        state.apply([Change(3000, "replica", "v2-0", None), *released(SHADOW, urls, first_id=3001)[:1]])
        await cell.gateway.post()
        await cell.settled()
        assert not cell.scores and len(cell.replicas["v1"].requests) == 1


async def test_a_drain_waits_for_no_mirrored_request() -> None:
    held = asyncio.Event()
    async with mirroring() as cell:
        cell.replicas["v2"].script([held])
        await cell.gateway.post()
        await until(lambda: len(cell.mirrored) == 1)
        assert not cell.gateway.parts.running
        cell.gateway.parts.begin_drain()
        await cell.settled()
        assert not cell.scores
        assert (await cell.gateway.post()).status_code == 200
        await cell.settled()
        assert len(cell.mirrored) == 1


async def test_whatever_is_wrong_with_mirroring_is_nothing_to_its_customer() -> None:
    class Broken:
        def consider(self, exchange: Any, request: Any) -> None:
            raise RuntimeError("mirroring is broken")

    async with mirroring() as cell:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        cell.gateway.parts.shadow = Broken()
        for _ in range(3):
            assert read(await cell.gateway.post(CHAT, body_for(CHAT, stream=True))).text == TEXT
        assert {record.end_state for record in cell.gateway.journal.closed} == {"done"}


def test_scores_that_cannot_be_written_are_lost_and_no_more_are_kept_than_stated() -> None:
    written: list[Mirrored] = []

    def refuse(_scores: list[Mirrored]) -> None:
        raise OperationalError("away")

    one: Any = object()
    scores = ShadowScores(2, write=refuse)
    scores.put(one)
    scores.flush()
    scores._write = written.extend
    for _ in range(5):
        scores.put(one)
    scores.flush()
    scores.flush()
    assert written == [one, one]

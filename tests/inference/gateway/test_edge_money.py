"""Budgets, salts, bad keys and dead replicas at the edge."""

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from headway.money import PICOS_A_MICRO
from headway.months import month_of
from inference.gateway.bad_keys import BadKeys, TooManyBadKeys, client_address
from inference.gateway.parts import GatewayTunables
from inference.gateway.prompt_blocks import blocks_of
from inference.gateway.state import Change
from inference.gateway.upstream import UpstreamTunables
from tenants.services.key_format import new_key
from tests.fakes.gateway import ACME, GLOBEX, GatewayUnderTest, basic, key_changes, model_changes, running_gateway, until
from tests.fakes.replica import CLOSE, RESET, ScriptedReplica, chat_events, refused, streamed
from tests.inference.dispatch.test_dispatcher import terms
from tests.inference.gateway.test_edge_limits import PRICE

PRICED = Change(id=910, kind="price", key="m", payload=PRICE)


@pytest.fixture
async def replica() -> Any:
    async with ScriptedReplica() as scripted:
        yield scripted


def month(spent_micros: int, id: int = 920, models: dict[str, int] | None = None) -> Change:  # noqa: A002
    """Of the month that runs, in UTC."""
    now = month_of(datetime.now(UTC), "UTC")
    payload: dict[str, Any] = {"month": now.name, "ends_at": now.ends_s, "spent_picos": f"{spent_micros}000000", "keys": {}}
    payload["models"] = {name: f"{micros}000000" for name, micros in (models or {}).items()}
    return Change(id=id, kind="month", key=ACME, payload=payload)


async def statuses(gateway: GatewayUnderTest, number: int, **body: Any) -> list[int]:
    answers = await asyncio.gather(*(gateway.post(body=basic(**body)) for _ in range(number)))
    return [answer.status_code for answer in answers]


async def test_b51_parallel_calls_never_overdraw_a_budget(replica: ScriptedReplica) -> None:
    """A call of 7 prompt tokens and 3 more costs 13 micro-dollars; it reserves its bound and 8 tokens."""
    changes = [*model_changes("m", [replica.url], max_in_flight=50, max_queued=200), PRICED, terms(monthly_budget=500)]
    async with running_gateway(changes) as gateway:
        found = await statuses(gateway, 60)
        assert {200, 429} == set(found)
        spent = sum((record.amount_picos or 0) / PICOS_A_MICRO for record in gateway.journal.closed)
        assert spent <= 500
        while 200 in await statuses(gateway, 1):
            pass
        spent = sum((record.amount_picos or 0) / PICOS_A_MICRO for record in gateway.journal.closed)
        assert 500 - 13 * 20 < spent <= 500, "what was reserved and not used was given back"


async def test_x12_a_plan_change_prices_what_comes_after_it_and_nothing_before(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), PRICED, terms()]
    async with running_gateway(changes) as gateway:
        assert (await gateway.post()).status_code == 200
        plain = terms()
        gateway.state.apply([Change(plain.id + 900, plain.kind, plain.key, {**(plain.payload or {}), "discount_percent": 25})])
        answer = await gateway.post()
        receipt = await gateway.http.get(f"/v1/requests/{answer.headers['x-request-id']}", headers=gateway.auth)
        amounts = [(record.amount_picos, record.discount_percent) for record in gateway.journal.closed]
    assert amounts == [(13 * PICOS_A_MICRO, 0), (9_750_000, 25)]
    assert receipt.json()["cost"] == {
        "price_version": "3",
        "discount_percent": 25,
        "amount_usd": "0.00000975",
        "currency": "USD",
    }


GENERATES = {
    "/v1/generate": {"model": "m", "prompt": "hi", "max_tokens": 8},
    "/v1/completions": {"model": "m", "prompt": "hi", "max_tokens": 8},
    "/v1/chat/completions": basic(),
    "//v1/chat/completions": basic(),
    "/v1/chat/completions/": basic(),
    "/v1/../v1/chat/completions": basic(),
    "/v1/%63hat/completions": basic(),
}
NOT_OURS = (
    "/metrics",
    "/tokenize",
    "/v1/score",
    "/v1/embeddings",
    "/v1/responses",
    "/invocations",
    "/pooling",
    "/generate",
    "/",
)


async def test_b62_no_route_reaches_an_engine_past_a_budget(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), PRICED, terms(monthly_budget=0)]
    async with running_gateway(changes) as gateway:
        for path, body in GENERATES.items():
            assert (await gateway.post(path, body=body)).status_code in (404, 429), path
        for path in NOT_OURS:
            assert (await gateway.post(path)).status_code == 404, path
            assert (await gateway.http.get(path, headers=gateway.auth)).status_code == 404, path
    assert replica.requests == []


async def test_b60_b62_what_is_answered_is_charged_once_on_whatever_route(replica: ScriptedReplica) -> None:
    async with running_gateway([*model_changes("m", [replica.url]), PRICED, terms()]) as gateway:
        for path, body in GENERATES.items():
            seen, closed = len(replica.requests), len(gateway.journal.closed)
            answer = await gateway.post(path, body=body)
            new = gateway.journal.closed[closed:]
            if answer.status_code == 404:
                assert (len(replica.requests), new) == (seen, []), path
                continue
            assert answer.status_code == 200, path
            assert [(record.request_id, record.amount_picos) for record in new] == [
                (answer.headers["x-request-id"], 13 * PICOS_A_MICRO)
            ], path
        assert len(replica.requests) == len(gateway.journal.closed) >= 3


@pytest.mark.parametrize("script", [refused(500), [asyncio.Event()]], ids=["500", "silence"])
async def test_b68_a_failure_after_dispatch_keeps_the_prompt_s_count_and_costs_nothing(
    replica: ScriptedReplica, script: Any
) -> None:
    """Token ids are counted by anybody. Limits get back what was reserved all the same."""
    replica.script(script)
    upstream, tunables = UpstreamTunables(headers_s=0.3, inter_event_s=0.3), GatewayTunables(max_attempts=1)
    changes = [*model_changes("m", [replica.url]), PRICED, terms(input_tokens_per_minute=1000)]
    async with running_gateway(changes, upstream=upstream, tunables=tunables) as gateway:
        body = {"model": "m", "prompt": [1, 2, 3, 4, 5], "max_tokens": 4, "stream": True}
        assert (await gateway.post("/v1/completions", body=body)).status_code in (502, 504)
        record = await gateway.only_record()
        (use,) = gateway.host.snapshot().limits.limits
    assert (record.prompt_tokens, record.completion_tokens, record.amount_picos) == (5, 0, 0)
    assert (record.end_state in ("engine_error", "deadline"), record.price_version) == (True, "3")
    assert use.reserved == 0


async def test_b52_a_new_tenant_without_a_budget_gets_nothing_however_many_calls_come_first(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url], max_in_flight=50), PRICED, terms(monthly_budget=0)]
    async with running_gateway(changes) as gateway:
        assert set(await statuses(gateway, 8)) == {429}
    assert replica.requests == []


async def test_b53_the_counter_is_the_ledger_and_what_is_held_whatever_order_news_come_in(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), PRICED, terms(monthly_budget=10_000), month(1_000)]
    async with running_gateway(changes) as gateway:
        for number in range(20):
            assert (await gateway.post()).status_code == 200
            record = gateway.journal.closed[-1]
            news = [
                partial(gateway.host.brain.acknowledged, ACME, record.amount_picos or 0, key=record.key_id, model="m"),
                partial(gateway.state.apply, [month(1_000 + 13 * (number + 1), id=930 + number)]),
            ]
            for tell in news if number % 2 else reversed(news):
                tell()
                await asyncio.sleep(0.002)
        (use,) = gateway.host.snapshot().limits.limits
        assert (use.used, use.reserved) == (1_000 + 13 * 20, 0)


async def test_b56_a_budget_of_a_model_counts_what_was_spent_before_a_restart(replica: ScriptedReplica) -> None:
    row = {"scope": "model", "id": f"{ACME}/m", "kind": "monthly_budget", "value": 1_100}
    limits = terms()
    limits = Change(limits.id, limits.kind, limits.key, {**(limits.payload or {}), "limits": [row]})
    changes = [*model_changes("m", [replica.url]), PRICED, limits, month(5_000, models={"m": 1_095})]
    async with running_gateway(changes) as gateway:
        assert await statuses(gateway, 2) == [429, 429]


def test_b78_prompts_of_two_tenants_have_nothing_in_common() -> None:
    fields = {"messages": [{"role": "user", "content": "the same long text " * 200}]}
    ours, theirs = (blocks_of("chat", fields, salt) for salt in ("acme", "globex"))
    assert len(ours) > 5
    assert not set(ours) & set(theirs)
    longer = {"messages": [*fields["messages"], {"role": "assistant", "content": "x" * 600}]}
    assert blocks_of("chat", longer, "acme")[: len(ours)] == ours


async def test_b78_each_tenant_s_salt_reaches_the_engine(replica: ScriptedReplica) -> None:
    other = new_key()
    changes = [*model_changes("m", [replica.url]), *key_changes(other, GLOBEX, first_id=700)]
    changes[-2] = Change(700, "tenant", GLOBEX, {"name": "globex", "cache_salt": "other-salt", "is_active": True})
    async with running_gateway(changes) as gateway:
        await gateway.post()
        await gateway.post(headers={"authorization": f"Bearer {other.text}"})
    first, second = (request.json["cache_salt"] for request in replica.requests)
    assert first != second


# -- bad keys


async def test_b48_guessing_is_slow_whatever_address_its_sender_claims(replica: ScriptedReplica) -> None:
    tunables = GatewayTunables(bad_keys_per_minute=10, drain_s=0.1)
    async with running_gateway(model_changes("m", [replica.url]), tunables=tunables) as gateway:
        bad = {"authorization": "Bearer hw_live_nope"}
        found = [
            (await gateway.post(headers={**bad, "x-forwarded-for": f"10.0.0.{number}"})).status_code for number in range(20)
        ]
        assert found == [401] * 10 + [429] * 10
        assert (await gateway.post()).status_code == 200, "a good key is never held up by it"


def test_b48_two_clients_behind_our_proxy_are_told_apart_and_what_they_forge_is_not_believed() -> None:
    def scope(forwarded: str) -> dict[str, Any]:
        return {"client": ("192.0.2.1", 1), "headers": [(b"x-forwarded-for", forwarded.encode())]}

    assert client_address(scope("1.1.1.1, 203.0.113.7"), 1) == "203.0.113.7"
    assert client_address(scope("9.9.9.9, 203.0.113.8"), 1) == "203.0.113.8"
    assert client_address(scope("1.1.1.1, 203.0.113.7"), 0) == "192.0.2.1"
    assert client_address({"client": ("192.0.2.1", 1), "headers": []}, 1) == "192.0.2.1"


def test_b48_a_minute_later_it_starts_anew() -> None:
    bad_keys = BadKeys(per_minute=1)
    bad_keys.count("a", 0.0)
    with pytest.raises(TooManyBadKeys) as refused_:
        bad_keys.count("a", 20.0)
    assert refused_.value.retry_after_s == 40.0
    bad_keys.count("a", 60.0)


# -- replicas that die


@pytest.mark.parametrize("script", [refused(503), [RESET], [CLOSE]], ids=["503", "reset", "closed"])
async def test_b119_another_replica_answers_when_nothing_was_sent(script: Any) -> None:
    async with ScriptedReplica() as first, ScriptedReplica() as second:
        first.script(script)
        second.script(script)
        async with running_gateway([*model_changes("m", [first.url, second.url, first.url]), PRICED]) as gateway:
            answer = await gateway.post()
            assert (answer.status_code, answer.json()["model"]) == (200, "m")
            record = await gateway.only_record()
            assert (record.end_state, record.model, record.attempts) == ("done", "m", 3)


async def test_b103_a_dead_replica_gets_no_more_than_its_strikes() -> None:
    async with ScriptedReplica() as alive, ScriptedReplica() as other:
        async with ScriptedReplica() as gone:
            url = gone.url
        async with running_gateway(model_changes("m", [url, alive.url, other.url], max_in_flight=8)) as gateway:
            found = [await gateway.post() for _ in range(40)]
            assert {answer.status_code for answer in found} == {200}
            tried = sum(record.attempts - 1 for record in gateway.journal.closed)
            assert tried <= 4


async def test_b116_what_a_killed_replica_had_not_begun_is_answered_elsewhere_and_billed_once() -> None:
    go = asyncio.Event()
    async with ScriptedReplica() as first, ScriptedReplica() as second:
        scripts: list[Any] = [[go, RESET]] * 20
        first.script(*scripts)
        second.script(*[streamed(chat_events())] * 40)
        async with running_gateway([*model_changes("m", [first.url, second.url], max_in_flight=20), PRICED]) as gateway:
            calls = [asyncio.create_task(gateway.post(body=basic(stream=number % 2 == 0))) for number in range(20)]
            await first.wait_for_request()
            await until(lambda: len(gateway.journal.opened) == 20 and gateway.queued() == 0)
            go.set()
            assert {(await call).status_code for call in calls} == {200}
            assert len(gateway.journal.closed) == 20
            assert {record.amount_picos for record in gateway.journal.closed} == {13 * PICOS_A_MICRO}

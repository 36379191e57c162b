"""Limits, tiers, places in the queue and receipts, as clients see them."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from inference.dispatch.host import HostTunables
from inference.gateway.edge import EdgeTunables
from inference.gateway.parts import GatewayTunables
from inference.gateway.rate_headers import duration
from inference.gateway.state import Change
from tenants.services.key_format import new_key
from tests.fakes.gateway import ACME, basic, key_changes, model_changes, running_gateway, until
from tests.fakes.replica import ScriptedReplica, chat_events, streamed
from tests.inference.dispatch.test_dispatcher import terms
from tests.inference.gateway.test_websocket import answer as socket_answer
from tests.inference.gateway.test_websocket import closed_with, receive, send, socket_to

PRICE = {
    "prices": [
        {
            "tier": "",
            "version": 3,
            "input_micros": 1_000_000,
            "cached_micros": 500_000,
            "output_micros": 2_000_000,
            "effective_from": 0.0,
        }
    ]
}


@pytest.fixture
async def replica() -> Any:
    async with ScriptedReplica() as scripted:
        yield scripted


def seconds(reset: str) -> float:
    units = {"h": 3600, "m": 60, "s": 1, "ms": 0.001}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+)(ms|h|m|s)", reset))


@pytest.mark.parametrize(
    ("given", "text"), [(0.0, "0ms"), (0.0191, "20ms"), (1.0, "1s"), (59.2, "1m0s"), (360, "6m0s"), (3600, "1h0m0s")]
)
def test_b35_durations_are_written_as_openai_writes_them(given: float, text: str) -> None:
    assert duration(given) == text


async def test_b35_every_answer_says_how_the_limits_stand(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), terms(requests_per_minute=3, output_tokens_per_minute=1000)]
    async with running_gateway(changes) as gateway:
        answers = [await gateway.post() for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0", "0"]
    last = answers[-1]
    assert {last.headers[f"x-ratelimit-limit-{kind}"] for kind in ("requests", "tokens")} == {"3", "1000"}
    wait_s = int(last.headers["retry-after"])
    assert 50 <= wait_s <= 60
    assert 50 <= seconds(last.headers["x-ratelimit-reset-requests"]) <= 60
    error = last.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert error["detail"]["retry"] == "exact"
    limit = error["detail"]["limit"]
    assert (limit["kind"], limit["scope"], limit["value"], limit["used"], limit["asked"]) == (
        "requests_per_minute",
        "tenant",
        3,
        3,
        1,
    )


async def test_a_client_that_loops_on_an_unknown_model_meets_its_limit_of_requests(replica: ScriptedReplica) -> None:
    """Each counts as any other request does, whatever the name; at the limit it is a 429 with an exact wait."""
    changes = [*model_changes("m", [replica.url]), terms(requests_per_minute=4, output_tokens_per_minute=1000)]
    async with running_gateway(changes) as gateway:
        assert (await gateway.post()).status_code == 200
        unknown = [await gateway.post(body=basic(model=f"no-such-model-{number}")) for number in range(3)]
        limited = [await gateway.post(body=basic(model="no-such-model")), await gateway.post()]
        await until(lambda: len(gateway.journal.closed) == 6)
    assert [answer.status_code for answer in unknown] == [404] * 3
    assert {answer.json()["error"]["code"] for answer in unknown} == {"model_not_found"}
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in unknown] == ["2", "1", "0"]
    assert [answer.status_code for answer in limited] == [429, 429]
    for answer in limited:
        error = answer.json()["error"]
        assert (error["code"], error["detail"]["retry"]) == ("rate_limit_exceeded", "exact")
        assert 50 <= int(answer.headers["retry-after"]) <= 60
        assert error["detail"]["limit"]["used"] == 4
    assert len([seen for seen in replica.requests if seen.method == "POST"]) == 1


async def test_an_unknown_model_is_said_also_where_nobody_can_count(replica: ScriptedReplica) -> None:
    async with running_gateway([*model_changes("m", [replica.url]), terms(requests_per_minute=4)]) as gateway:
        gateway.dispatcher.close()
        assert (await gateway.post(body=basic(model="no-such-model"))).status_code == 404


async def test_b35_a_socket_is_told_before_each_answer_how_the_limits_stand(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), terms(requests_per_minute=2, output_tokens_per_minute=1000)]
    async with running_gateway(changes) as gateway, socket_to(gateway, headers=gateway.auth) as socket:
        for remaining in ("1", "0"):
            await send(socket, {"model": "m", "prompt": "hi", "max_tokens": 5})
            told, *chunks, _done = await socket_answer(socket)
            assert set(told) == RATES | {"type"} and told["type"] == "limits"
            assert told["x-ratelimit-remaining-requests"] == remaining
            assert all("choices" in chunk for chunk in chunks)
        await send(socket, {"model": "m", "prompt": "hi", "max_tokens": 5})
        assert (await receive(socket))["x-ratelimit-remaining-requests"] == "0"
        assert (await receive(socket))["error"]["code"] == "rate_limit_exceeded"
        assert await closed_with(socket) == 4429


RATES = {f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset") for kind in ("requests", "tokens")}


async def test_b35_answers_that_never_reached_admission_say_it_too_and_consume_nothing(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), terms(requests_per_minute=9, output_tokens_per_minute=1000)]
    async with running_gateway(changes, tunables=GatewayTunables(max_body_bytes=2048, drain_s=0.2)) as gateway:
        key = {"idempotency-key": "once"}
        assert (await gateway.post(headers=key)).status_code == 200
        not_json, gone = {"content-type": "text/plain"}, {"content-encoding": "gzip"}
        answers = {
            400: await gateway.post(body=b"{"),
            404: await gateway.http.get("/v1/models/nobody", headers=gateway.auth),
            409: await gateway.post(headers=key),
            413: await gateway.post(body=b"x" * 4096),
            415: await gateway.post(headers=gone),
        }
        others = [
            await gateway.post(headers=not_json),
            await gateway.post(body=basic(nonsense=1)),
            await gateway.post(body=basic(stream=True, temperature="hot")),
            await gateway.http.get("/v1/models", headers=gateway.auth),
            await gateway.http.get("/v1/requests/req_nope", headers=gateway.auth),
        ]
        keyless = await gateway.http.get("/v1/models")
    assert {answer.status_code for answer in answers.values()} == answers.keys()
    for answer in [*answers.values(), *others]:
        assert answer.headers.keys() >= RATES, answer.status_code
        assert answer.headers["x-ratelimit-remaining-requests"] == "8"
        assert len(answer.headers.get_list("x-ratelimit-limit-requests")) == 1
    assert not RATES & keyless.headers.keys()


async def test_a_stream_that_begins_while_it_waits_has_the_headers_of_its_reservation(replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    replica.script(streamed([go, *chat_events()]), streamed(chat_events()))
    changes = [*model_changes("m", [replica.url], max_in_flight=1), terms(requests_per_minute=9)]
    edge, hosting = EdgeTunables(queue_comment_s=0.05), HostTunables(positions_s=0.05)
    async with running_gateway(changes, edge=edge, hosting=hosting) as gateway:
        running = asyncio.create_task(gateway.post())
        await replica.wait_for_request()
        path = "/v1/chat/completions"
        async with gateway.http.stream("POST", path, json=basic(stream=True), headers=gateway.auth) as answer:
            assert answer.headers["x-ratelimit-remaining-requests"] == "7"
            go.set()
            await answer.aread()
        assert (await running).headers["x-ratelimit-remaining-requests"] == "8"


async def test_where_nobody_says_how_the_limits_stand_an_error_does_not_wait_for_it(replica: ScriptedReplica) -> None:
    async with running_gateway([*model_changes("m", [replica.url]), terms(requests_per_minute=9)]) as gateway:
        gateway.dispatcher.link.rates = lambda *_: None  # type: ignore[method-assign]
        answer = await gateway.post(body=b"{")
    assert answer.status_code == 400
    assert not RATES & answer.headers.keys()


async def test_b36_remaining_tokens_fall_by_what_was_used(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), terms(output_tokens_per_minute=10_000)]
    async with running_gateway(changes) as gateway:
        await gateway.post(body=basic(max_tokens=500))
        answer = await gateway.post(body=basic(max_tokens=100))
        assert answer.headers["x-ratelimit-remaining-tokens"] == str(10_000 - 3 - 100)


async def test_b41_one_limit_over_all_routes(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), terms(requests_per_minute=2)]
    async with running_gateway(changes) as gateway:
        assert (await gateway.post()).status_code == 200
        assert (await gateway.post("/v1/generate")).status_code == 200
        refused = await gateway.post("/v1/completions", body={"model": "m", "prompt": "hi", "max_tokens": 8})
        assert refused.status_code == 429


async def test_b42_without_a_limit_named_the_answer_is_shortened_to_what_is_left(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), terms(output_tokens_per_minute=300)]
    async with running_gateway(changes) as gateway:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert (await gateway.post(body=body)).status_code == 200
    assert replica.requests[-1].json["max_tokens"] == 300


async def test_b44_a_refused_call_consumes_nothing(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), terms(requests_per_minute=2, output_tokens_per_minute=20)]
    async with running_gateway(changes) as gateway:
        await gateway.post(body=basic(max_tokens=8))
        for _ in range(5):
            assert (await gateway.post(body=basic(max_tokens=19))).status_code == 429
        answer = await gateway.post(body=basic(max_tokens=8))
        assert (answer.status_code, answer.headers["x-ratelimit-remaining-requests"]) == (200, "0")


async def test_x13_limits_are_the_tenants_not_the_keys(replica: ScriptedReplica) -> None:
    other = new_key()
    changes = [*model_changes("m", [replica.url]), terms(requests_per_minute=1), *key_changes(other, ACME, first_id=700)]
    async with running_gateway(changes) as gateway:
        assert (await gateway.post()).status_code == 200
        assert (await gateway.post(headers={"authorization": f"Bearer {other.text}"})).status_code == 429


async def test_b32_a_budget_that_is_spent_is_insufficient_quota_everywhere(replica: ScriptedReplica) -> None:
    price = Change(id=910, kind="price", key="m", payload=PRICE)
    changes = [*model_changes("m", [replica.url]), terms(monthly_budget=40), price]
    async with running_gateway(changes) as gateway:
        codes = []
        for stream in (False, True):
            answer = await gateway.post(body=basic(max_tokens=1000, stream=stream))
            codes.append((answer.status_code, answer.json()["error"]["code"], answer.headers["x-should-retry"]))
        assert codes == [(429, "insufficient_quota", "false")] * 2
        message = answer.json()["error"]["message"]
        assert re.match(r"The limit of \$\d+\.\d{2,6} a month for your organisation is reached: \$\d", message), message


async def test_a_tier_above_the_plans_is_clamped_and_said_so(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), terms(tier_ceiling="standard")]
    async with running_gateway(changes) as gateway:
        answer = await gateway.post(body=basic(priority="interactive"))
        assert answer.headers["x-headway-tier"] == "standard"
        assert (await gateway.only_record()).tier == "standard"
        assert "x-headway-tier" not in (await gateway.post(body=basic(priority="batch"))).headers


async def test_who_waits_is_told_where_it_stands(replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    replica.script(streamed([go, *chat_events()]), streamed(chat_events()))
    changes = model_changes("m", [replica.url], max_in_flight=1)
    edge, hosting = EdgeTunables(queue_comment_s=0.05), HostTunables(positions_s=0.05)
    async with running_gateway(changes, edge=edge, hosting=hosting) as gateway:
        running = asyncio.create_task(gateway.post())
        await replica.wait_for_request()
        lines: list[str] = []
        path = "/v1/chat/completions"
        async with gateway.http.stream("POST", path, json=basic(stream=True), headers=gateway.auth) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)
                if line.startswith(": queued"):
                    go.set()
        assert (await running).status_code == 200
    comments = [line for line in lines if line.startswith(":")]
    assert comments and all(re.fullmatch(r": queued position=1 estimated_wait_s=[\d.]+", line) for line in comments)
    assert "data: [DONE]" in lines


# -- receipts


async def test_a_receipt_says_what_became_of_a_request(replica: ScriptedReplica) -> None:
    changes = [*model_changes("m", [replica.url]), Change(id=910, kind="price", key="m", payload=PRICE)]
    async with running_gateway(changes) as gateway:
        answer = await gateway.post(body=basic(priority="batch"))
        found = await gateway.http.get(f"/v1/requests/{answer.headers['x-request-id']}", headers=gateway.auth)
        receipt = found.json()
    assert (receipt["id"], receipt["model"], receipt["version"], receipt["tier"]) == (
        answer.headers["x-request-id"],
        "m",
        "v1",
        "batch",
    )
    assert receipt["usage"] == {"prompt_tokens": 7, "cached_tokens": 0, "completion_tokens": 3, "source": "engine"}
    assert receipt["routing"] == {
        "replica": "rep-0",
        "reason": "fastest",
        "attempts": 1,
        "resumes": 0,
        "is_exact": True,
        "parks": 0,
    }
    assert receipt["cost"] == {"price_version": "3", "discount_percent": 0, "amount_usd": "0.000013", "currency": "USD"}
    assert (receipt["end_state"], receipt["finish_reason"]) == ("done", "stop")
    assert receipt["started_at"].endswith("Z")


async def test_a_receipt_is_its_tenants_only(replica: ScriptedReplica) -> None:
    stranger = new_key()
    changes = [
        *model_changes("m", [replica.url]),
        *key_changes(stranger, "33333333-3333-4333-8333-333333333333", first_id=700),
    ]
    async with running_gateway(changes) as gateway:
        gateway.parts.receipts._find = lambda _tenant, _request: None
        request_id = (await gateway.post()).headers["x-request-id"]
        answers: list[httpx.Response] = [
            await gateway.http.get(f"/v1/requests/{name}", headers={"authorization": f"Bearer {key}"})
            for name, key in ((request_id, stranger.text), ("req_nope", gateway.key))
        ]
        keyless = await gateway.http.get(f"/v1/requests/{request_id}")
    assert [answer.status_code for answer in answers] == [404, 404]
    assert {json.loads(answer.text)["error"]["code"] for answer in answers} == {"request_not_found"}
    assert keyless.status_code == 401


async def test_older_receipts_come_from_the_ledger(replica: ScriptedReplica) -> None:
    async with running_gateway(model_changes("m", [replica.url])) as gateway:
        request_id = (await gateway.post()).headers["x-request-id"]
        draft = gateway.parts.receipts._ended.popitem()[1]
        asked: list[tuple[str, str]] = []

        def find(tenant_id: str, name: str) -> dict[str, Any]:
            from inference.gateway.receipts import _fields

            asked.append((tenant_id, name))
            return _fields(draft)

        gateway.parts.receipts._find = find
        found = await gateway.http.get(f"/v1/requests/{request_id}", headers=gateway.auth)
    assert asked == [(ACME, request_id)]
    assert found.json()["id"] == request_id

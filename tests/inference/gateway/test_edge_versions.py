"""Two versions of a model behind one socket: who is served by which, what clients may say and are told, what failures do."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inference.gateway.parts import GatewayTunables
from inference.policy.brain_tunables import BrainTunables
from tests.fakes.gateway import GatewayUnderTest, basic, running_gateway, until
from tests.fakes.replica import RESET, ScriptedReplica, refused
from tests.fakes.token_engine import TokenEngine, dying
from tests.inference.gateway.released_model import CANARY, STABLE, in_conversation_of, operator_terms, released
from tests.inference.gateway.resumed_answers import CHAT, TEXT, body_for, read
from tests.inference.gateway.test_websocket import answer as messages_of
from tests.inference.gateway.test_websocket import send, socket_to

MILLION = 1_000_000


@contextlib.asynccontextmanager
async def serving(
    versions: dict[str, Any] | None, *more: Any, labels: tuple[str, ...] = ("v1", "v2"), **options: Any
) -> AsyncIterator[tuple[GatewayUnderTest, dict[str, ScriptedReplica]]]:
    """One replica a version."""
    async with contextlib.AsyncExitStack() as stack:
        replicas = {label: await stack.enter_async_context(ScriptedReplica()) for label in labels}
        rows = released(versions, {label: [replica.url] for label, replica in replicas.items()})
        gateway = await stack.enter_async_context(running_gateway([*rows, *more], **options))
        yield gateway, replicas


async def served_by(gateway: GatewayUnderTest, **headers: str) -> str:
    answer = await gateway.post(headers={name.replace("_", "-"): value for name, value in headers.items()})
    assert answer.status_code == 200, answer.text
    version: str = answer.headers["x-headway-version"]
    assert answer.json()["system_fingerprint"] == f"fp_{version}"
    return version


def failures(gateway: GatewayUnderTest) -> list[Any]:
    return [record for record in gateway.journal.closed if record.end_state != "done"]


async def many(gateway: GatewayUnderTest, count: int, **body: Any) -> Counter[str]:
    """That many conversations at once; which versions said that they have served them."""
    room, seen = asyncio.Semaphore(16), Counter[str]()

    async def one(number: int) -> None:
        async with room:
            seen[await served_by(gateway, x_headway_conversation=f"conversation {number}")] += 1

    await asyncio.gather(*map(one, range(count)))
    return seen


@pytest.mark.parametrize("percent", [1, 5, 20, 50])
async def test_b129_the_candidate_gets_the_share_that_was_asked_for(percent: int) -> None:
    num, share = 600, percent / 100
    async with serving({**CANARY, "candidate_share_ppm": percent * 10_000}) as (gateway, replicas):
        seen = await many(gateway, num)
        assert abs(seen["v2"] - num * share) <= 3 * (num * share * (1 - share)) ** 0.5, seen
        assert {label: len(replica.requests) for label, replica in replicas.items() if replica.requests} == seen
        assert Counter(record.version for record in gateway.journal.closed) == seen


async def test_b129_a_conversation_that_grows_and_a_user_keep_their_version() -> None:
    async with serving(CANARY) as (gateway, _):
        for first in ("one", "two", "three", "four", "five", "six"):
            messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": first}]
            of_it = set()
            for _turn in range(3):
                answer = await gateway.post(body=basic(messages=messages))
                of_it.add(answer.headers["x-headway-version"])
                messages = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
            assert len(of_it) == 1
        for name in ("user", "safety_identifier"):
            asked = [basic(**{name: "u1", "messages": [{"role": "user", "content": text}]}) for text in "abcdefgh"]
            assert len({(await gateway.post(body=body)).headers["x-headway-version"] for body in asked}) == 1
        texts = [basic(messages=[{"role": "user", "content": str(number)}]) for number in range(40)]
        assert {(await gateway.post(body=body)).headers["x-headway-version"] for body in texts} == {"v1", "v2"}


async def test_b128_over_a_thousand_calls_after_a_rollback_and_another_rollout_only_its_two_versions_serve() -> None:
    share = {"candidate_share_ppm": 200_000}
    async with serving({**CANARY, **share}, labels=("v1", "v2", "v3")) as (gateway, replicas):
        urls = {label: [replica.url] for label, replica in replicas.items()}
        assert (await many(gateway, 50)).keys() == {"v1", "v2"}
        before = len(replicas["v2"].requests)
        gateway.state.apply(released(STABLE, urls, first_id=200))
        gateway.state.apply(released({**CANARY, **share, "candidate": "v3", "salt": "rollout-2"}, urls, first_id=300))
        seen = await many(gateway, 1_000)
        assert seen.keys() == {"v1", "v3"} and abs(seen["v3"] - 200) <= 38, seen
        assert len(replicas["v2"].requests) == before
        assert not failures(gateway)


async def test_without_a_rollout_the_header_and_the_fingerprint_still_name_the_version() -> None:
    for versions in (None, STABLE):
        async with serving(versions, labels=("v1",)) as (gateway, _):
            assert await served_by(gateway) == "v1"
            assert await served_by(gateway, x_headway_version="v1") == "v1"


async def test_every_event_of_a_stream_and_the_receipt_name_the_version() -> None:
    async with serving(CANARY) as (gateway, replicas):
        engine = TokenEngine(TEXT)
        replicas["v2"]._default = engine.answer
        answer = await gateway.post(CHAT, body_for(CHAT, stream=True), headers=in_conversation_of("v2"))
        assert {chunk["system_fingerprint"] for chunk in read(answer).chunks} == {"fp_v2"}
        receipt = await gateway.http.get(f"/v1/requests/{answer.headers['x-request-id']}", headers=gateway.auth)
        assert receipt.json()["version"] == "v2" == answer.headers["x-headway-version"]


# -- what clients may ask for


async def test_a_pinned_tenant_has_its_version_and_may_ask_for_the_stable_one() -> None:
    pinned = operator_terms(pins={"m": "v0"})
    async with serving({**CANARY, "pinned": ["v0"]}, pinned, labels=("v0", "v1", "v2")) as (gateway, _):
        assert {await served_by(gateway, **in_conversation_of("v2")) for _ in range(3)} == {"v0"}
        assert await served_by(gateway, x_headway_version="v0") == "v0"
        assert await served_by(gateway, x_headway_version="v1") == "v1"
        gateway.state.apply(released(STABLE, {"v1": ["http://127.0.0.1:1"]}, first_id=1000)[:1])
        await asyncio.sleep(0)  # the change hops to the loop
        assert await served_by(gateway) == "v1", "it has retired"


@pytest.mark.parametrize("label", ["v2", "v0", "v9", "latest", "\u00e9"])
async def test_a_customer_may_not_ask_for_a_version_that_is_neither_stable_nor_its_pin(label: str) -> None:
    async with serving({**CANARY, "pinned": ["v0"]}, labels=("v0", "v1", "v2")) as (gateway, replicas):
        answer = await gateway.post(headers={"x-headway-version": label.encode()})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "version_not_allowed", "x-headway-version")
        assert "v2" not in error["message"] or label == "v2", "a candidate is nobody's business"
        assert not any(replica.requests for replica in replicas.values())
        assert (await gateway.only_record()).end_state == "refused"


async def test_our_own_account_may_ask_for_the_candidate_whatever_its_share() -> None:
    async with serving({**CANARY, "candidate_share_ppm": 0}, operator_terms(is_operator=True)) as (gateway, _):
        assert await served_by(gateway, x_headway_version="v2") == "v2"
        assert await served_by(gateway) == "v1"


async def test_who_asked_for_a_version_that_has_gone_meanwhile_is_refused_rather_than_served_by_another() -> None:
    async with serving(CANARY, operator_terms(is_operator=True)) as (gateway, replicas):
        v2 = replicas["v2"]
        held = asyncio.Event()
        v2.script([held, RESET])
        answer = asyncio.create_task(gateway.post(headers={"x-headway-version": "v2"}))
        await v2.wait_for_request()
        gateway.state.apply(released(STABLE, {label: [each.url] for label, each in replicas.items()}, first_id=1000)[:1])
        await until(lambda: gateway.host.snapshot().pools["m"].versions.keys() == {"v1", "v2"})
        held.set()
        refusal = await answer
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "version_unavailable")
        assert not replicas["v1"].requests and gateway.in_flight() == 0


async def test_a_socket_says_its_version_in_the_handshake() -> None:
    async with serving(CANARY, operator_terms(is_operator=True)) as (gateway, replicas):
        async with socket_to(gateway, headers={**gateway.auth, "x-headway-version": "v2"}) as socket:
            await send(socket, {"request": basic()})
            await messages_of(socket)
        assert (len(replicas["v1"].requests), len(replicas["v2"].requests)) == (0, 1)


# -- a bad candidate fails nobody


BAD: dict[str, Any] = {
    "reset": [RESET],
    "500": refused(500, "failed"),
    "503": refused(503, "busy"),
    "a refusal": refused(400, "this model's template cannot do that"),
}


@pytest.mark.parametrize("how", BAD)
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_what_the_candidate_fails_the_stable_version_answers_and_the_attempt_is_noted(
    how: str, is_streamed: bool
) -> None:
    async with serving(CANARY) as (gateway, replicas):
        replicas["v2"].script(BAD[how])
        answer = await gateway.post(body=basic(stream=is_streamed), headers=in_conversation_of("v2"))
        assert (answer.status_code, answer.headers["x-headway-version"]) == (200, "v1")
        record = await gateway.only_record()
        assert (record.end_state, record.version, record.attempts) == ("done", "v1", 2)
        failed, done = record.attempt_rows
        assert (failed.version, failed.outcome, failed.model, failed.ttft_ms) == ("v2", "failed", "m", None)
        assert (done.version, done.outcome) == ("v1", "ok") and done.ttft_ms is not None
        assert done.inter_token_ms is not None and done.inter_token_ms >= 0
        assert gateway.in_flight() == 0


async def test_a_request_that_both_versions_refuse_is_its_clients_fault_and_says_nothing_about_the_candidate() -> None:
    async with serving(CANARY) as (gateway, replicas):
        for replica in replicas.values():
            replica.script(refused(400, "no such thing"))
        answer = await gateway.post(headers=in_conversation_of("v2"))
        assert answer.status_code == 400 and "no such thing" in answer.text
        record = await gateway.only_record()
        assert record.end_state == "refused"
        assert [(row.version, row.outcome) for row in record.attempt_rows] == [("v2", "neutral"), ("v1", "neutral")]


async def test_a_candidate_that_fails_everything_costs_no_request() -> None:
    async with serving(CANARY) as (gateway, replicas):
        replicas["v2"]._default = lambda _seen: refused(500, "failed")
        assert (await many(gateway, 100)).keys() == {"v1"}
        assert not failures(gateway)
        rows = [row for record in gateway.journal.closed for row in record.attempt_rows]
        assert {(row.version, row.outcome) for row in rows} == {("v2", "failed"), ("v1", "ok")}


async def test_one_attempt_is_all_there_is_where_no_more_are_allowed() -> None:
    async with serving(CANARY, tunables=GatewayTunables(max_attempts=1, drain_s=0.2)) as (gateway, replicas):
        replicas["v2"].script(refused(500, "failed"))
        assert (await gateway.post(headers=in_conversation_of("v2"))).status_code == 502


# -- once text was sent


@contextlib.asynccontextmanager
async def resuming(engine: TokenEngine, num_of: dict[str, int], *more: Any, **replica: Any) -> AsyncIterator[GatewayUnderTest]:
    async with contextlib.AsyncExitStack() as stack:
        urls = {
            label: [(await stack.enter_async_context(ScriptedReplica(default=engine.answer))).url for _ in range(num)]
            for label, num in num_of.items()
        }
        brain = BrainTunables(restart_wait_s=0.2)
        yield await stack.enter_async_context(running_gateway([*released(CANARY, urls, **replica), *more], admission=brain))


async def test_an_answer_goes_on_with_the_version_that_began_it() -> None:
    async with resuming(TokenEngine(TEXT), {"v1": 2, "v2": 2}, tokeniser="t", max_model_len=4096) as gateway:
        body = body_for(CHAT, stream=True, user=dying(9))
        told = read(await gateway.post(CHAT, body, headers=in_conversation_of("v2")))
        record = await gateway.only_record()
    assert told.text == TEXT
    assert (record.version, record.resumes, record.is_resumed_exactly) == ("v2", 1, True)
    assert [row.version for row in record.attempt_rows] == ["v2", "v2"]


async def test_where_nobody_of_its_version_is_left_the_stable_one_goes_on_with_the_same_tokens_and_says_so() -> None:
    async with resuming(TokenEngine(TEXT), {"v1": 1, "v2": 1}, tokeniser="t", max_model_len=4096) as gateway:
        body = body_for(CHAT, stream=True, user=dying(9))
        told = read(await gateway.post(CHAT, body, headers=in_conversation_of("v2")))
        record = await gateway.only_record()
    assert told.text == TEXT
    assert (record.version, record.resumes, record.is_resumed_exactly) == ("v1", 1, False)
    assert [(row.version, row.outcome) for row in record.attempt_rows] == [("v2", "failed"), ("v1", "ok")]


@pytest.mark.parametrize("tokeniser", ["", "of its own"])
async def test_with_other_tokens_or_unknown_ones_it_ends_with_the_stated_error(tokeniser: str) -> None:
    engine = TokenEngine(TEXT)
    async with resuming(engine, {"v1": 1, "v2": 1}) as gateway:
        entry = gateway.state.replica("v2-0")
        assert entry is not None
        urls = {"v2": [entry.url]}
        if tokeniser:
            gateway.state.apply(released(CANARY, urls, first_id=2000, tokeniser=tokeniser, max_model_len=4096))
        answer = await gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(9)), headers=in_conversation_of("v2"))
        assert '"code":"engine_died"' in answer.text.split("\n\n")[-2]
        record = await gateway.only_record()
    assert (record.end_state, record.version) == ("engine_died", "v2")


async def test_a_pinned_tenants_answer_never_changes_its_version() -> None:
    pinned = operator_terms(pins={"m": "v2"})
    async with resuming(TokenEngine(TEXT), {"v1": 1, "v2": 1}, pinned, tokeniser="t", max_model_len=4096) as gateway:
        answer = await gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(9)))
        assert '"code":"engine_died"' in answer.text.split("\n\n")[-2]


async def test_what_runs_on_a_candidate_that_is_rolled_back_and_drains_ends_there() -> None:
    engine = TokenEngine(TEXT, pause_s=0.003)
    async with resuming(engine, {"v1": 1, "v2": 1}) as gateway:
        answer = asyncio.create_task(gateway.post(CHAT, body_for(CHAT, stream=True), headers=in_conversation_of("v2")))
        await until(lambda: gateway.in_flight() == 1 and len(engine.asked) == 1)
        entry = gateway.state.replica("v2-0")
        assert entry is not None
        gateway.state.apply(released(STABLE, {"v2": [entry.url]}, first_id=2000, state="draining"))
        assert read(await answer).text == TEXT
        record = await gateway.only_record()
    assert (record.version, record.attempts, record.end_state) == ("v2", 1, "done")

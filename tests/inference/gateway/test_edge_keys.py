"""What a key may be used for, as its holder sees it: scopes, models, addresses, tier, switched off, salt."""

import json
from typing import Any

import pytest
import websockets

from inference.gateway.bad_keys import client_address
from inference.gateway.key_rows import AddressNotAllowed, KeyRow, KeyTerms, key_terms_of, salt_of_key
from inference.gateway.parts import GatewayTunables
from inference.gateway.state import Change, KeyRefused
from tenants.access import Action
from tenants.services.key_format import ParsedKey, new_key
from tests.fakes.gateway import ACME, CACHE_SALT, basic, model_changes, running_gateway
from tests.fakes.replica import ScriptedReplica
from tests.inference.dispatch.test_dispatcher import terms
from tests.inference.gateway.control_rows import key_row, model_row, state_of, tenant_row


@pytest.fixture
async def replica() -> Any:
    async with ScriptedReplica() as scripted:
        yield scripted


def restricted(key: ParsedKey, change_id: int = 950, **settings: Any) -> Change:
    return key_row(change_id, key, ACME, **settings)


def auth(key: ParsedKey) -> dict[str, str]:
    return {"authorization": f"Bearer {key.text}"}


async def test_a_key_without_the_scope_inference_runs_nothing(replica: ScriptedReplica) -> None:
    key = new_key()
    async with running_gateway([*model_changes("m", [replica.url]), restricted(key, scopes=["read_usage"])]) as gateway:
        answer = await gateway.post(headers=auth(key))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "key_not_allowed")
        assert (await gateway.http.get("/v1/models", headers=auth(key))).status_code == 403
        receipt = await gateway.http.get("/v1/requests/req_nope", headers=auth(key))
        assert receipt.status_code == 404, "reading usage is its scope"
        assert (gateway.journal.opened, replica.requests) == ({}, [])


async def test_a_key_of_one_model_uses_and_sees_that_one(replica: ScriptedReplica) -> None:
    key = new_key()
    changes = [
        *model_changes("m", [replica.url]),
        model_row(200, "other"),
        restricted(key, models=["m"]),
    ]
    async with running_gateway(changes) as gateway:
        assert (await gateway.post(headers=auth(key))).status_code == 200
        answer = await gateway.post(body=basic(model="other"), headers=auth(key))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (403, "model_not_allowed", "model")
        listed = (await gateway.http.get("/v1/models", headers=auth(key))).json()["data"]
        assert [model["id"] for model in listed] == ["m"]
        assert (await gateway.http.get("/v1/models/other", headers=auth(key))).status_code == 404


async def test_a_key_works_from_its_addresses_only(replica: ScriptedReplica) -> None:
    inside, outside = new_key(), new_key()
    changes = [
        *model_changes("m", [replica.url]),
        restricted(inside, addresses=["127.0.0.0/8"]),
        restricted(outside, 951, addresses=["203.0.113.0/24", "2001:db8::/32"]),
    ]
    async with running_gateway(changes) as gateway:
        assert (await gateway.post(headers=auth(inside))).status_code == 200
        answer = await gateway.post(headers={**auth(outside), "x-forwarded-for": "203.0.113.7"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "address_not_allowed")


async def test_b48_behind_our_proxy_the_address_is_the_one_that_proxy_saw(replica: ScriptedReplica) -> None:
    key = new_key()
    changes = [*model_changes("m", [replica.url]), restricted(key, addresses=["203.0.113.0/24"])]
    async with running_gateway(changes, tunables=GatewayTunables(drain_s=0.2, trusted_hops=1)) as gateway:
        statuses = [
            (await gateway.post(headers={**auth(key), "x-forwarded-for": seen})).status_code
            for seen in ("203.0.113.7", "203.0.113.7, 198.51.100.1", "198.51.100.1, 203.0.113.9")
        ]
    assert statuses == [200, 403, 200]


async def test_a_keys_tier_ceiling_clamps_as_the_plans_does(replica: ScriptedReplica) -> None:
    key = new_key()
    changes = [*model_changes("m", [replica.url]), terms(tier_ceiling="standard"), restricted(key, tier_ceiling="batch")]
    async with running_gateway(changes) as gateway:
        answer = await gateway.post(body=basic(priority="interactive"), headers=auth(key))
        assert (answer.headers["x-headway-tier"], (await gateway.only_record()).tier) == ("batch", "batch")


async def test_a_ceiling_above_the_plans_raises_nothing(replica: ScriptedReplica) -> None:
    key = new_key()
    changes = [*model_changes("m", [replica.url]), terms(tier_ceiling="batch"), restricted(key, tier_ceiling="interactive")]
    async with running_gateway(changes) as gateway:
        answer = await gateway.post(body=basic(priority="interactive"), headers=auth(key))
        assert answer.headers["x-headway-tier"] == "batch"


async def test_b73_warm_keys_are_checked_again_each_time(replica: ScriptedReplica) -> None:
    """Disabled, expired, demoted, its tenant suspended, revoked: each refused at once, whatever was served before."""
    key = new_key()
    ends = {"name": "acme", "cache_salt": CACHE_SALT, "is_active": False}
    steps = [
        (restricted(key, 960, is_disabled=True), 401, "disabled"),
        (restricted(key, 961, expires_at=1.0), 401, "expired"),
        (restricted(key, 962, scopes=["read_usage"]), 403, "scopes"),
        (Change(963, "tenant", ACME, ends), 401, "suspended"),
        (Change(964, "key", key.id, None), 401, "revoked"),
    ]
    async with running_gateway([*model_changes("m", [replica.url]), restricted(key)]) as gateway:
        for change, status, word in steps:
            gateway.state.apply([restricted(key, change.id - 50), Change(905, "tenant", ACME, {**ends, "is_active": True})])
            assert (await gateway.post(headers=auth(key))).status_code == 200, "warm"
            gateway.state.apply([change])
            answer = await gateway.post(headers=auth(key))
            assert (answer.status_code, word in answer.json()["error"]["message"]) == (status, True), word


async def test_a_socket_asks_the_same(replica: ScriptedReplica) -> None:
    scoped, bound = new_key(), new_key()
    changes = [
        *model_changes("m", [replica.url]),
        restricted(scoped, scopes=["manage"]),
        restricted(bound, 951, models=["other"]),
    ]
    async with running_gateway(changes) as gateway:
        for key, code in ((scoped, "key_not_allowed"), (bound, "model_not_allowed")):
            async with websockets.connect(f"ws://127.0.0.1:{gateway.port}/v1/generate") as socket:
                await socket.send(json.dumps({"api_key": key.text, "request": basic()}))
                assert json.loads(await socket.recv())["error"]["code"] == code
                await socket.wait_closed()
                assert socket.close_code == 4403
        assert replica.requests == []


async def test_b77_on_a_plan_with_a_salt_per_key_no_key_shares_anothers_cache(replica: ScriptedReplica) -> None:
    first, second = new_key(), new_key()
    payload = {**(terms().payload or {}), "salt_per_key": True}
    changes = [
        *model_changes("m", [replica.url]),
        Change(900, "terms", ACME, payload),
        restricted(first),
        restricted(second, 951),
    ]
    async with running_gateway(changes) as gateway:
        ids = [(await gateway.post(headers=auth(key))).json()["id"] for key in (first, second, first)]
        salts = [request.json["cache_salt"] for request in replica.requests]
        gateway.state.apply([terms(id=980)])
        await gateway.post(headers=auth(first))
    assert len(set(ids)) == 3, "no answer is another's"
    assert salts[0] == salts[2] != salts[1]
    assert CACHE_SALT not in salts
    assert replica.requests[-1].json["cache_salt"] == CACHE_SALT


def test_a_key_whose_row_cannot_be_understood_is_not_used() -> None:
    for wrong in ({"tier_ceiling": "urgent"}, {"addresses": ["nowhere"]}, {"scopes": "inference"}):
        key = new_key()
        state = state_of(tenant_row(1), key_row(2, key, **wrong))
        with pytest.raises(KeyRefused):
            state.authenticate(key.text, now_s=0.0)


def test_a_key_from_before_there_were_scopes_runs_models() -> None:
    key = new_key()
    principal = state_of(tenant_row(1), key_row(2, key)).authenticate(key.text, now_s=0.0)
    principal.key.check(Action.RUN_INFERENCE, "203.0.113.7")
    assert principal.key.allows_model("anything")


def test_an_ipv4_client_of_a_dual_stack_socket_is_known_by_its_ipv4_address() -> None:
    bound = key_terms_of(KeyRow("t", None, "", None, addresses=("203.0.113.0/24",)))
    bound.check(Action.RUN_INFERENCE, "::ffff:203.0.113.7")
    for address in ("", "unix", "::ffff:198.51.100.1", "2001:db8::1"):
        with pytest.raises(AddressNotAllowed):
            bound.check(Action.RUN_INFERENCE, address)
    KeyTerms().check(Action.RUN_INFERENCE, "")


def test_salts_of_keys_differ_by_tenant_and_key() -> None:
    assert len({salt_of_key(tenant, key) for tenant in "ab" for key in "xy"}) == 4


def test_b48_the_site_and_the_gateway_have_one_rule() -> None:
    scope = {"client": ("192.0.2.1", 1), "headers": [(b"x-forwarded-for", b"10.0.0.1"), (b"x-forwarded-for", b"198.51.100.2")]}
    assert [client_address(scope, hops) for hops in (0, 1, 2, 3)] == ["192.0.2.1", "198.51.100.2", "10.0.0.1", "192.0.2.1"]

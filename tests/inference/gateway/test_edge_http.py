"""What any client meets at the gateway's socket: errors, keys, paths, methods."""

import json
import logging
from typing import Any

import pytest

from headway.clock import FakeClock
from inference.gateway.parts import GatewayTunables
from inference.gateway.state import Change, ControlState
from tenants.services.key_format import new_key
from tests.fakes.gateway import GatewayUnderTest, basic, model_changes, running_gateway, until
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import ScriptedReplica

BASIC = json.dumps(basic()).encode()


def assert_error(answer: Any, code: str | None = None, param: str | None = None) -> None:
    """The OpenAI error object, and nothing else."""
    assert set(answer) == {"error"}
    assert answer["error"].keys() - {"detail"} == {"message", "type", "param", "code"}
    assert answer["error"]["message"]
    if code is not None:
        assert answer["error"]["code"] == code
    if param is not None:
        assert answer["error"]["param"] == param


# -- B33: every answer that is no success is an error object


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/chat/completions", b"", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", b"", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/generate", b"", 405, "method_not_allowed"),
        ("POST", "/healthz", b"", 405, "method_not_allowed"),
        ("POST", "/v1/nope", b"{}", 404, "unknown_url"),
        ("GET", "/", b"", 404, "unknown_url"),
        ("GET", "/v1", b"", 404, "unknown_url"),
        ("GET", "/metrics", b"", 404, "unknown_url"),
        ("POST", "/v1/../v1/chat/completions", BASIC, 404, "unknown_url"),
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b"", 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b'{"model":"\xff"}', 400, "invalid_value"),
        ("POST", "/v1/completions", b"[]", 400, "invalid_value"),
        ("GET", "/v1/models/nope", b"", 404, "model_not_found"),
    ],
)
async def test_b33_errors_are_error_objects(
    gateway: GatewayUnderTest, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    client = await RawClient.connect(gateway.port)
    await client.send(method, path, gateway.auth, body)
    got, headers, answer = await client.answer()
    assert (got, headers["content-type"]) == (status, "application/json")
    assert headers["x-request-id"].startswith("req_")
    assert_error(answer, code)
    await client.close()


async def test_b33_a_body_that_is_not_json_by_its_own_word_is_refused(gateway: GatewayUnderTest) -> None:
    answer = await gateway.post(body=BASIC, headers={"content-type": "text/plain"})
    assert answer.status_code == 400
    assert_error(answer.json())
    for media_type in ("application/vnd.x+json; charset=utf-8", "application/x-www-form-urlencoded"):
        accepted = await gateway.post(body=BASIC, headers={"content-type": media_type})
        assert accepted.status_code == 200, media_type


async def test_b33_a_failure_of_ours_is_an_error_object_and_its_traceback_is_logged(
    gateway: GatewayUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(ControlState, "model", fail)
    with caplog.at_level(logging.ERROR):
        for answer in (await gateway.post(), await gateway.http.get("/v1/models/m", headers=gateway.auth)):
            assert answer.status_code == 500
            assert_error(answer.json(), "internal_error")
            assert "boom" not in answer.text
    assert caplog.text.count("ZeroDivisionError") >= 2
    assert (await gateway.only_record()).end_state == "refused"


async def test_b33_what_is_no_http_request_gets_an_error_object(gateway: GatewayUnderTest) -> None:
    client = await RawClient.connect(gateway.port)
    client.writer.write(b"NONSENSE\r\n\r\n")
    status, headers, answer = await client.answer()
    assert (status, headers["connection"]) == (400, "close")
    assert_error(answer)
    await client.close()


async def test_an_unknown_model_is_a_404_that_names_the_field_and_is_recorded(gateway: GatewayUnderTest) -> None:
    answer = await gateway.post(body=basic(model="no\u0000pe" + "x" * 500))
    assert answer.status_code == 404
    assert_error(answer.json(), "model_not_found", "model")
    record = await gateway.only_record()
    assert (record.end_state, record.attempts, record.model) == ("refused", 0, "")


async def test_n12_names_of_models_that_there_are_not_are_recorded_under_one_name(gateway: GatewayUnderTest) -> None:
    for number in range(3):
        assert (await gateway.post(body=basic(model=f"nope-{number}"))).status_code == 404
    await until(lambda: len(gateway.journal.closed) == 3)
    assert {(record.model, record.end_state) for record in gateway.journal.closed} == {("", "refused")}


async def test_b31_a_model_without_a_replica_is_a_503_and_still_listed(gateway: GatewayUnderTest) -> None:
    gateway.state.apply(model_changes("alone", [], first_id=500))
    answer = await gateway.post(body=basic(model="alone"))
    assert answer.status_code == 503
    assert_error(answer.json(), "model_unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert (await gateway.only_record()).end_state == "refused"
    listed = (await gateway.http.get("/v1/models", headers=gateway.auth)).json()
    assert [model["id"] for model in listed["data"]] == ["alone", "m"]


# -- keys


def variants(key: str) -> list[tuple[list[tuple[str, str]], int]]:
    return [
        ([("authorization", f"Bearer {key}")], 200),
        ([("authorization", f"Bearer  {key}")], 200),
        ([("authorization", f"Bearer\t{key}")], 200),
        ([("authorization", f"  Bearer {key} \t")], 200),
        ([("authorization", "Bearer")], 401),
        ([("authorization", "Bearer ")], 401),
        ([("authorization", "")], 401),
        ([], 401),
        ([("authorization", f"Bearer {key}"), ("authorization", f"Bearer {key}")], 401),
        ([("authorization", "Bearer k\u00e9y")], 401),
        ([("authorization", "Bearer " + "x" * 10_000)], 401),
        ([("authorization", f"Bearer {key.swapcase()}")], 401),
        ([("authorization", f"Bearer {key}x")], 401),
        ([("authorization", f"Bearer {key[:-1]}")], 401),
        ([("authorization", f"bearer {key}")], 200),
        ([("authorization", f"BEARER {key}")], 200),
        ([("authorization", f"Basic {key}")], 401),
        ([("authorization", key)], 401),
        ([("x-api-key", key)], 200),
        ([("api-key", f" {key} ")], 200),
        ([("x-api-key", f"Bearer {key}")], 401),
        ([("x-api-key", key), ("authorization", f"Bearer {key}")], 200),
        ([("x-api-key", new_key().text), ("authorization", f"Bearer {key}")], 401),
    ]


@pytest.mark.parametrize("number", range(len(variants(""))))
async def test_b75_b76_keys_are_taken_or_refused_and_never_shown(
    gateway: GatewayUnderTest, number: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    headers, status = variants(gateway.key)[number]
    client = await RawClient.connect(gateway.port)
    with caplog.at_level(logging.DEBUG):
        await client.send("GET", "/v1/models", headers)
        got, answered, answer = await client.answer()
    await client.close()
    assert got == status
    if status == 401:
        assert_error(answer, "invalid_api_key")
        assert answered["www-authenticate"] == "Bearer"
    secret = gateway.key.split("_")[3]
    shown = json.dumps(answer) + caplog.text + "".join(capfd.readouterr())
    assert secret not in shown
    assert secret.swapcase() not in shown


@pytest.mark.parametrize("name", ["api_key", "API_KEY", "key", "access_token"])
async def test_b76_a_key_in_the_url_is_refused_with_the_reason(
    gateway: GatewayUnderTest, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="uvicorn"):
        answer = await gateway.http.get(f"/v1/models?{name}={gateway.key}", headers=gateway.auth)
    assert answer.status_code == 401
    assert "URL" in answer.json()["error"]["message"]
    assert gateway.key not in answer.text
    assert gateway.key not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("uvicorn"))


async def test_b76_another_scheme_is_told_what_to_send(gateway: GatewayUnderTest) -> None:
    answer = await gateway.http.get("/v1/models", headers={"authorization": "Basic dXNlcjpwYXNz"})
    assert "Bearer" in answer.json()["error"]["message"]


async def test_b94_a_bad_key_is_refused_before_the_body_is_read(gateway: GatewayUnderTest) -> None:
    client = await RawClient.connect(gateway.port)
    client.writer.write(
        b"POST /v1/generate HTTP/1.1\r\nhost: t\r\nauthorization: Bearer no\r\ncontent-length: 100000000\r\n\r\n{"
    )
    status, _, answer = await client.answer()
    assert status == 401
    assert_error(answer)
    await client.close()
    assert gateway.journal.opened == {}


async def test_a_revoked_key_is_refused(gateway: GatewayUnderTest) -> None:
    gateway.state.apply([Change(id=900, kind="key", key=gateway.key.split("_")[2], payload=None)])
    answer = await gateway.post()
    assert answer.status_code == 401
    assert gateway.journal.opened == {}


# -- bodies


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_b94_a_body_over_the_limit_is_a_413_and_recorded(replica: ScriptedReplica, is_chunked: bool) -> None:
    tunables = GatewayTunables(max_body_bytes=2000)
    async with running_gateway(model_changes("m", [replica.url]), tunables=tunables) as gateway:
        client = await RawClient.connect(gateway.port)
        if is_chunked:
            await client.send("POST", "/v1/generate", {**gateway.auth, "transfer-encoding": "chunked"})
            for _ in range(5):
                client.writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        else:
            await client.send("POST", "/v1/generate", {**gateway.auth, "content-length": "2001"})  # and nothing of it
        status, _, answer = await client.answer()
        assert status == 413
        assert_error(answer, "request_too_large")
        await client.close()
        assert (await gateway.only_record()).end_state == "refused"


async def test_a_client_that_leaves_inside_its_body_is_recorded(gateway: GatewayUnderTest) -> None:
    client = await RawClient.connect(gateway.port)
    await client.send("POST", "/v1/generate", {**gateway.auth, "content-length": "1000"})
    client.writer.write(b"{")
    await client.writer.drain()
    client.drop()
    assert (await gateway.only_record()).end_state == "client_gone_before_first_token"


async def test_bad_requests_are_recorded_as_refused(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    answer = await gateway.post(body=basic(n=0))
    assert answer.status_code == 400
    assert_error(answer.json(), param="n")
    assert (await gateway.only_record()).end_state == "refused"
    assert replica.requests == []


async def test_nothing_is_served_while_the_journal_cannot_be_written(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    gateway.journal.is_healthy = False
    answer = await gateway.post()
    assert answer.status_code == 503
    assert_error(answer.json(), "journal_unavailable")
    assert answer.headers["retry-after"] == "5"
    ready = await gateway.http.get("/readyz")
    assert ready.status_code == 503
    assert replica.requests == []


async def test_keys_are_not_judged_before_they_are_known(gateway: GatewayUnderTest) -> None:
    gateway.parts.why_not_ready = lambda: "loading the control state"
    answer = await gateway.post(headers={"authorization": "Bearer " + new_key().text})
    assert answer.status_code == 503
    assert_error(answer.json(), "gateway_not_ready")
    ready = await gateway.http.get("/readyz")
    assert (ready.status_code, ready.json()) == (503, {"status": "unavailable", "reason": "loading the control state"})
    assert (await gateway.http.get("/healthz")).status_code == 200


# -- paths and methods


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions//", "///v1/generate/"],
)
async def test_b92_slashes_do_not_matter_and_never_redirect(gateway: GatewayUnderTest, path: str) -> None:
    client = await RawClient.connect(gateway.port)
    await client.send("POST", path, gateway.auth, BASIC)
    status, _, answer = await client.answer()
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "Hello!")
    await client.close()


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models", 200), ("/healthz", 200), ("/v1/chat/completions", 405), ("/v1/nope", 404)]
)
async def test_b100_head_is_get_without_the_body_and_the_socket_works_on(
    gateway: GatewayUnderTest, path: str, status: int
) -> None:
    client = await RawClient.connect(gateway.port)
    await client.send("HEAD", path, gateway.auth)
    got, headers = await client.head()
    assert got == status
    assert int(headers["content-length"]) > 0
    assert "transfer-encoding" not in headers
    if status == 405:
        assert headers["allow"] == "POST"
    await client.send("GET", "/healthz")
    assert (await client.answer())[2] == {"status": "ok"}
    await client.close()


async def test_b90_models_are_listed_and_fetched_by_ids_with_slashes(gateway: GatewayUnderTest) -> None:
    gateway.state.apply(model_changes("org/name:tag", [], first_id=500))
    expected = {"id": "org/name:tag", "object": "model", "created": 1700000000, "owned_by": "headway"}
    for path in ("/v1/models/org/name:tag", "/v1/models/org%2Fname:tag", "/v1/models/org%2fname%3Atag/"):
        answer = await gateway.http.get(path, headers=gateway.auth)
        assert (answer.status_code, answer.json()) == (200, expected)
    listed = (await gateway.http.get("/v1/models", headers=gateway.auth)).json()
    assert listed["object"] == "list"
    assert expected in listed["data"]
    assert (await gateway.http.get("/v1/models")).status_code == 401


async def test_an_expired_key_is_judged_by_the_clock(replica: ScriptedReplica) -> None:
    clock, key = FakeClock(), new_key()
    async with running_gateway(model_changes("m", [replica.url]), clock=clock) as gateway:
        secret = {"tenant_id": "11111111-1111-4111-8111-111111111111", "member_id": None, "secret_sha256": key.secret_sha256}
        expires_at = clock.now().timestamp() + 60
        gateway.state.apply([Change(id=900, kind="key", key=key.id, payload={**secret, "expires_at": expires_at})])
        auth = {"authorization": f"Bearer {key.text}"}
        assert (await gateway.http.get("/v1/models", headers=auth)).status_code == 200
        clock.advance(61)
        refused = await gateway.http.get("/v1/models", headers=auth)
        assert refused.status_code == 401
        assert "expired" in refused.json()["error"]["message"]

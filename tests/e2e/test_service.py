"""What an operator and a finance person rely on, over the whole service."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import SMALL, TINY, Service
from tests.e2e.installation import eventually, free_port

ASK: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
MESSAGES = [{"role": "user", "content": "hi"}]


class StandInEngine(BaseHTTPRequestHandler):
    """Some other OpenAI-compatible engine: refuses any field it does not know."""

    protocol_version = "HTTP/1.1"
    known = frozenset({"model", "messages", "max_tokens", "temperature", "stream", "stream_options", "n", "stop", "top_p"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        unknown = set(body) - self.known
        options = set(body.get("stream_options") or {}) - {"include_usage"}
        if unknown or options or body["model"] != "their-name":
            self._send(400, "application/json", {"error": {"message": f"unknown: {sorted(unknown | options)}"}})
            return
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "their-name"}
        usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
        if not body.get("stream"):
            message = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
            self._send(200, "application/json", {**head, "object": "chat.completion", "choices": [message], "usage": usage})
            return
        events = [
            {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "yes"}, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": {"content": "!"}, "finish_reason": "stop"}]},
            {**head, "choices": [], "usage": usage},
        ]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self._send(200, "text/event-stream", text)

    def _send(self, status: int, kind: str, body: object) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def stand_in() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandInEngine)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def post(service: Service, path: str, body: dict[str, Any], key: str = "") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else service.headers
    return httpx.post(service.installation.url + path, json=body, headers=headers, timeout=60)


def test_three_models_are_served_at_once_one_of_them_registered_by_hand(service: Service, stand_in: str) -> None:
    installation = service.installation
    installation.manage("register_model", "other/engine")
    installation.manage(
        "register_replica", "--model", "other/engine", "--url", stand_in, "--kind", "openai", "--upstream-model", "their-name"
    )
    eventually(
        lambda: post(service, "/v1/chat/completions", {"model": "other/engine", "messages": MESSAGES}).status_code == 200,
        within_s=3,
        what="routed",
    )
    for model in (SMALL, TINY, "other/engine"):
        answer = post(service, "/v1/generate", {**ASK, "model": model, "messages": MESSAGES, "stream": True, "top_k": 5})
        assert answer.status_code == 200, answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
        assert f'"model":"{model}"' in answer.text
    assert (
        post(service, "/v1/chat/completions", {"model": "other/engine", "messages": MESSAGES}).json()["choices"][0]["message"][
            "content"
        ]
        == "yes!"
    )


def test_b105_an_external_replica_serves_once_its_engine_answers_and_no_longer_when_it_is_gone(service: Service) -> None:
    installation, port = service.installation, free_port()
    body = {"model": "late/engine", "messages": MESSAGES}
    installation.manage("register_model", "late/engine")
    installation.wait_known("late/engine", service.key)
    engine = ("--url", f"http://127.0.0.1:{port}", "--kind", "openai", "--upstream-model", "their-name")
    installation.manage("register_replica", "--model", "late/engine", *engine, "--wait", "0")
    assert post(service, "/v1/chat/completions", body).status_code == 503
    server = ThreadingHTTPServer(("127.0.0.1", port), StandInEngine)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        eventually(lambda: post(service, "/v1/chat/completions", body).status_code == 200, within_s=15, what="it serves")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

    def is_out() -> bool:
        return [replica["state"] for replica in installation.replicas("late/engine")] == ["certifying"]

    eventually(is_out, within_s=60, what="it is taken out", every_s=0.5)


def test_b10_usage_is_recorded_exactly_though_the_client_did_not_ask(service: Service) -> None:
    before = service.installation.count_usage(service.key)
    body = {**ASK, "model": SMALL, "messages": MESSAGES, "stream": True}
    streamed = post(service, "/v1/chat/completions", body)
    assert '"usage"' not in streamed.text
    (record,) = service.installation.wait_usage(before + 1)[before:]
    with service.installation.engine(SMALL) as engine:
        truth = engine.post("/v1/chat/completions", json={**body, "stream": False}).json()["usage"]
    assert (record["prompt_tokens"], record["completion_tokens"]) == (truth["prompt_tokens"], truth["completion_tokens"])
    assert record["end_state"] == "done"
    assert record["usage_source"] == "engine"


def test_b60_every_route_leaves_exactly_one_record(service: Service) -> None:
    before = service.installation.count_usage(service.key)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/generate", {"messages": MESSAGES}),
        ("/v1/generate", {"prompt": "hi"}),
    ]
    ids = []
    for path, body in calls:
        for stream in (False, True):
            answer = post(service, path, {**ASK, **body, "model": TINY, "stream": stream})
            assert answer.status_code == 200, answer.text
            ids.append(answer.headers["x-request-id"])
    service.installation.wait_usage(before + len(ids))
    time.sleep(1.0)  # nothing may follow
    records = service.installation.usage()[before:]
    assert sorted(record["request_id"] for record in records) == sorted(ids)
    assert sum(record["completion_tokens"] for record in records) == 4 * len(ids)
    assert {record["route"] for record in records} == {"/v1/chat/completions", "/v1/completions", "/v1/generate"}


def test_a_record_has_its_full_shape(service: Service) -> None:
    before = service.installation.count_usage(service.key)
    post(service, "/v1/generate", {**ASK, "model": SMALL, "messages": MESSAGES, "priority": "batch"})
    (record,) = service.installation.wait_usage(before + 1)[before:]
    assert (record["tier"], record["version"], record["attempts"], record["finish_reason"]) == ("batch", "v1", 1, "length")
    assert record["replica"].startswith("rep-")
    assert record["ttft_ms"] > 0
    assert record["total_ms"] >= record["ttft_ms"]
    assert record["key_id"] in service.key
    assert record["journal_sequence"] > 0


def test_a_refused_request_leaves_a_record_too(service: Service) -> None:
    before = service.installation.count_usage(service.key)
    assert post(service, "/v1/chat/completions", {"model": SMALL, "messages": MESSAGES, "temperature": 9}).status_code == 400
    assert post(service, "/v1/chat/completions", {"model": "nope", "messages": MESSAGES}).status_code == 404
    records = service.installation.wait_usage(before + 2)[before:]
    assert [(record["end_state"], record["completion_tokens"]) for record in records] == [("refused", 0)] * 2


def test_a_revoked_key_is_refused_within_a_second(service: Service) -> None:
    installation = service.installation
    key = installation.manage("issue_key", "acme", "--name", "short-lived")
    body = {**ASK, "model": TINY, "messages": MESSAGES}
    eventually(lambda: post(service, "/v1/chat/completions", body, key).status_code == 200, within_s=2, what="the key works")
    said = installation.manage("revoke_key", key.split("_")[2])
    assert "acknowledged by test-node-" in said
    assert post(service, "/v1/chat/completions", body, key).status_code == 401


def test_keys_and_replicas_survive_a_restart_of_the_gateway(service: Service) -> None:
    installation = service.installation
    assert installation.stop("gateway") == 0
    installation.start_gateway()
    assert post(service, "/v1/chat/completions", {**ASK, "model": TINY, "messages": MESSAGES}).status_code == 200


def test_scaling_up_and_down_fails_no_request(service: Service) -> None:
    installation = service.installation
    failures: list[str] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            answer = post(service, "/v1/chat/completions", {"model": TINY, "messages": MESSAGES, "max_tokens": 200})
            if answer.status_code != 200:
                failures.append(answer.text)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        installation.manage("scale", TINY, "--replicas", "2")
        eventually(
            lambda: [r["state"] for r in installation.replicas(TINY)] == ["ready", "ready"],
            within_s=90,
            what="two ready",
            every_s=0.5,
        )
        installation.manage("scale", TINY, "--replicas", "1")
        eventually(
            lambda: [r["state"] for r in installation.replicas(TINY)] == ["ready"], within_s=60, what="one drained", every_s=0.5
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []

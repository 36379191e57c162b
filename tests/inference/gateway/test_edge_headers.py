"""What goes around an answer: timing headers, the access log, CORS, trace context, the documents."""

import json
import logging
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headway.errors import ConfigurationError
from inference.gateway.api_page import page
from inference.gateway.cors import Cors
from inference.gateway.openapi import document
from inference.gateway.otel import OtelTracer
from inference.gateway.parts import GatewayTunables
from inference.gateway.tracing import trace_context
from tests.fakes.gateway import GatewayUnderTest, basic, model_changes, running_gateway
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import CLOSE, ScriptedReplica, refused

DOCS = Path(__file__).resolve().parents[3] / "docs"
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
APP = "https://app.example"


# -- timing


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2}])
async def test_answers_say_how_long_they_took_us(gateway: GatewayUnderTest, more: dict[str, Any]) -> None:
    headers = (await gateway.post(body=basic(**more))).headers
    assert headers["x-request-id"].startswith("req_")
    assert 0 <= int(headers["x-headway-queue-ms"]) < 1000
    assert 0 < float(headers["x-headway-overhead-ms"]) < 1000


async def test_time_in_the_queue_is_no_overhead(replica: ScriptedReplica) -> None:
    replica.script([0.4, CLOSE])
    async with running_gateway(model_changes("m", [replica.url], max_in_flight=1)) as gateway:
        tunables = GatewayTunables(max_attempts=1)
        gateway.parts.tunables = tunables
        first = RawClient.connect(gateway.port)
        client = await first
        await client.send("POST", "/v1/generate", gateway.auth, json.dumps(basic()).encode())
        await replica.wait_for_request()
        waited = (await gateway.post()).headers
        client.drop()
    assert int(waited["x-headway-queue-ms"]) > 200
    assert float(waited["x-headway-overhead-ms"]) < int(waited["x-headway-queue-ms"])


async def test_what_never_reached_an_engine_has_no_timing(gateway: GatewayUnderTest) -> None:
    assert "x-headway-overhead-ms" not in (await gateway.post(body=b"{")).headers


# -- the access log


async def test_each_request_is_one_line_in_the_log_without_its_text(
    gateway: GatewayUnderTest, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "do not tell anyone"
    with caplog.at_level(logging.DEBUG):
        await gateway.post(body=basic(messages=[{"role": "user", "content": secret}]))
        await gateway.post(body=basic(n=0, user=secret))
        await gateway.http.get("/v1/models")
        await gateway.http.get("/v1/nope")
        await gateway.http.get("/healthz")
    written = capsys.readouterr().err
    ended = [json.loads(line) for line in written.splitlines() if "request_ended" in line]
    lines = [(line["route"], line["status"], line.get("end_state")) for line in ended]
    assert lines == [
        ("/v1/chat/completions", 200, "done"),
        ("/v1/chat/completions", 400, "refused"),
        ("/v1/models", 401, None),
        ("unknown", 404, None),
    ]
    done = ended[0]
    assert (done["prompt_tokens"], done["completion_tokens"]) == (7, 3)
    assert done["total_ms"] >= done["ttft_ms"] >= 0
    assert all(line["request_id"].startswith("req_") for line in ended)
    assert all(line["level"] == "info" and line["timestamp"].endswith("Z") for line in ended)
    assert secret not in caplog.text + written
    assert gateway.key.split("_")[3] not in caplog.text + written


# -- B93


async def test_b93_preflights_are_answered_without_a_key_where_origins_are_configured(replica: ScriptedReplica) -> None:
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
    }
    async with running_gateway(model_changes("m", [replica.url]), tunables=GatewayTunables(cors_origins=(APP,))) as gateway:
        known = await gateway.http.options("/v1/chat/completions", headers={**asked, "origin": APP})
        foreign = await gateway.http.options("/v1/chat/completions", headers={**asked, "origin": "https://evil.example"})
        no_preflight = await gateway.http.options("/v1/chat/completions", headers={"origin": APP})
    assert (known.status_code, known.headers["access-control-allow-origin"]) == (204, APP)
    assert known.headers["access-control-allow-headers"] == asked["access-control-request-headers"]
    assert "POST" in known.headers["access-control-allow-methods"]
    assert "access-control-allow-origin" not in foreign.headers
    assert no_preflight.status_code == 405
    assert replica.requests == []


async def test_b93_every_answer_carries_the_headers_errors_too(replica: ScriptedReplica) -> None:
    changes = model_changes("m", [replica.url], max_queued=0)
    async with running_gateway(changes, tunables=GatewayTunables(cors_origins=(APP,))) as gateway:
        for origin, is_allowed in ((APP, True), ("https://evil.example", False)):
            replica.script(refused(429, "slow down"))
            answers = [
                await gateway.http.get("/v1/models", headers={"origin": origin}),
                await gateway.post(headers={"origin": origin}),
                await gateway.post(body=basic(stream=True), headers={"origin": origin}),
                await gateway.post(body=b"{", headers={"origin": origin}),
                await gateway.post("/v1/nope", headers={"origin": origin}),
            ]
            assert [answer.status_code for answer in answers] == [401, 503, 200, 400, 404]
            for answer in answers:
                assert (answer.headers.get("access-control-allow-origin") == APP) is is_allowed
                assert answer.headers["vary"] == "origin"
                if is_allowed:
                    exposed = answer.headers["access-control-expose-headers"]
                    assert {"x-request-id", "retry-after", "x-ratelimit-remaining-tokens"} <= set(exposed.split(", "))
        odd = {"origin": APP, "access-control-request-method": "POST", "access-control-request-headers": "a\u00e9b"}
        client = await RawClient.connect(gateway.port)
        await client.send("OPTIONS", "/v1/models", odd)
        assert (await client.head())[1]["access-control-allow-headers"] == "authorization, content-type"
        await client.close()


async def test_b93_any_origin_and_none(replica: ScriptedReplica) -> None:
    async with running_gateway(model_changes("m", [replica.url]), tunables=GatewayTunables(cors_origins=("*",))) as gateway:
        answer = await gateway.http.get("/v1/models", headers={"origin": APP})
        assert answer.headers["access-control-allow-origin"] == "*"
    async with running_gateway(model_changes("m", [replica.url])) as gateway:
        answer = await gateway.http.get("/v1/models", headers={"origin": APP})
        assert not [name for name in answer.headers if name.startswith("access-control")]
        preflight = {"origin": APP, "access-control-request-method": "POST"}
        assert (await gateway.http.options("/v1/models", headers=preflight)).status_code == 405


@pytest.mark.parametrize("origin", ["https://app.example/", "app.example", "null", "https://", "https://a b"])
def test_b93_what_is_no_origin_is_told_at_the_start(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="HEADWAY_CORS_ORIGINS"):
        Cors((origin,))


# -- trace context


@pytest.mark.parametrize(
    ("sent", "is_good"),
    [
        (PARENT, True),
        (PARENT.replace("00-", "cc-", 1) + "-more", True),
        (PARENT + "-more", False),
        (PARENT.replace("00-", "ff-", 1), False),
        (PARENT.upper(), False),
        (f"00-{'0' * 32}-{SPAN_ID}-01", False),
        (f"00-{TRACE_ID}-{'0' * 16}-01", False),
        ("nonsense", False),
        ("", False),
        (PARENT + "\u00e9", False),
    ],
)
def test_a_trace_context_is_taken_if_it_is_well_formed(sent: str, is_good: bool) -> None:
    found = trace_context([(b"traceparent", sent.encode()), (b"tracestate", b"a=1"), (b"tracestate", b"b=2")])
    assert found == ([("traceparent", sent), ("tracestate", "a=1,b=2")] if is_good else [])


def test_a_trace_context_that_is_there_twice_or_too_long_is_none() -> None:
    assert trace_context([(b"traceparent", PARENT.encode())] * 2) == []
    assert trace_context([(b"traceparent", PARENT.encode()), (b"tracestate", b"a=" + b"1" * 600)]) == [("traceparent", PARENT)]


async def test_the_trace_context_is_passed_to_vllm(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    await gateway.post(headers={"traceparent": PARENT, "tracestate": "a=1"})
    await gateway.post()
    first, second = replica.requests
    assert (first.headers["traceparent"], first.headers["tracestate"]) == (PARENT, "a=1")
    assert "traceparent" not in second.headers


async def test_a_request_and_each_of_its_attempts_are_spans_without_its_text(replica: ScriptedReplica) -> None:
    exporter = InMemorySpanExporter()
    async with ScriptedReplica() as second:
        replica.script(refused(500, "no"))
        async with running_gateway(model_changes("m", [replica.url, second.url])) as gateway:
            gateway.parts.tracer = OtelTracer(SimpleSpanProcessor(exporter), gateway="g")
            secret = "do not tell anyone"
            answer = await gateway.post(
                body=basic(messages=[{"role": "user", "content": secret}]), headers={"traceparent": PARENT}
            )
            assert answer.status_code == 200
            gateway.parts.tracer.close()
    spans = exporter.get_finished_spans()
    attempts, request = spans[:2], spans[2]
    assert [span.name for span in spans] == ["attempt", "attempt", "/v1/chat/completions"]
    assert {format(context_of(span).trace_id, "032x") for span in spans} == {TRACE_ID}
    assert request.parent is not None
    assert format(request.parent.span_id, "016x") == SPAN_ID
    assert all(span.parent is not None and span.parent.span_id == context_of(request).span_id for span in attempts)
    assert attempts[0].status.description == "status 500 BadRequestError"
    assert request.attributes is not None
    assert (request.attributes["headway.end_state"], request.attributes["gen_ai.usage.output_tokens"]) == ("done", 3)
    told = second.requests[0].headers["traceparent"]
    assert told == f"00-{TRACE_ID}-{format(context_of(attempts[1]).span_id, '016x')}-01"
    assert secret not in "".join(span.to_json() for span in spans)


class Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, CollectorServer)
        self.server.received.append((self.path, self.headers["content-type"], body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""


class CollectorServer(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Collector)
        self.received: list[tuple[str, str, bytes]] = []


def test_spans_reach_a_collector_before_the_process_ends() -> None:
    with CollectorServer() as collector:
        thread = threading.Thread(target=collector.handle_request)
        thread.start()
        tracer = OtelTracer.to_endpoint(f"http://127.0.0.1:{collector.server_port}/v1/traces", gateway="g-1")
        trace = tracer.request("/v1/generate", "req_1", [])
        trace.attempt(1, "rep-0")
        trace.end(end_state="done", status=200, model="m", completion_tokens=3)
        tracer.close()
        thread.join(10)
    ((path, kind, body),) = collector.received
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    assert b"req_1" in body or body[:2] == b"\x1f\x8b"


def test_the_library_is_loaded_only_where_it_is_used(tmp_path: Path) -> None:
    code = "import django, sys; django.setup(); import inference.wiring; print('opentelemetry' in sys.modules)"
    root = DOCS.parent
    environment = {"PYTHONPATH": f"{root}:{root / 'platform'}", "HEADWAY_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    environment["DJANGO_SETTINGS_MODULE"] = "headway.settings_data_plane"
    printed = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)
    assert printed.stdout == "False\n", printed.stderr


def context_of(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


# -- the documents


async def test_the_openapi_document_needs_no_key(gateway: GatewayUnderTest) -> None:
    answer = await gateway.http.get("/v1/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == json.loads(json.dumps(document()))
    assert answer.json()["openapi"].startswith("3.1")
    assert (await gateway.http.post("/v1/openapi.json")).headers["allow"] == "GET, HEAD"


async def test_the_openapi_document_tells_the_bound_of_n_as_it_is_here(replica: ScriptedReplica) -> None:
    async with running_gateway(model_changes("m", [replica.url]), tunables=GatewayTunables(max_choices=3)) as gateway:
        schemas = (await gateway.http.get("/v1/openapi.json")).json()["components"]["schemas"]
        assert schemas["ChatRequest"]["properties"]["n"]["maximum"] == 3
        assert (await gateway.post(body=basic(n=4))).status_code == 400
        assert (await gateway.post(body=basic(n=3))).status_code == 200


async def test_what_is_refused_below_the_application_can_be_read_by_a_page_too(replica: ScriptedReplica) -> None:
    changes = model_changes("m", [replica.url])
    async with running_gateway(changes, tunables=GatewayTunables(cors_origins=(APP,))) as gateway:
        answer = await gateway.http.get("/v1/models", headers={"origin": APP, "x-padding": "x" * 40_000})
        assert answer.status_code == 431
        assert answer.headers["access-control-allow-origin"] == APP


def test_docs_api_md_is_what_the_description_says() -> None:
    made = page((DOCS / "api_choices.md").read_text())
    assert (DOCS / "api.md").read_text() == made, "run manage.py api_documents --write"


def test_each_choice_is_a_row_once() -> None:
    ids = re.findall(r"^\| ([BX][0-9]+)", (DOCS / "api_choices.md").read_text(), re.MULTILINE)
    assert len(ids) == len(set(ids))
    assert {"B70", "X08", "X09", "X10"} <= set(ids)


def test_the_command_prints_the_document_that_is_served() -> None:
    printed = StringIO()
    call_command("api_documents", stdout=printed)
    assert json.loads(printed.getvalue())["openapi"].startswith("3.1")

"""What the agent makes of an engine's answers, and of an engine that gives none."""

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from inference.engines.client import EngineClient, EngineRefused
from inference.errors import EngineFailed
from inference.node.jobs import Job
from inference.node.probes import until_it_answers

ONE_TOKEN = {"choices": [{"text": "x"}], "usage": {"completion_tokens": 1}}


class ScriptedEngine(socketserver.ThreadingUnixStreamServer):
    """Listens at once; says 200 on /health; what else it says is `answer(path, body) -> (status, body)`."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[tuple[int, Any]] = []
        self.delay_s = 0.0
        super().__init__(str(path), ScriptedHandler)


class ScriptedHandler(BaseHTTPRequestHandler):
    server: ScriptedEngine

    def log_message(self, *_arguments: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"

    def do_GET(self) -> None:
        self.reply(200, "ok" if self.path == "/health" else "vllm:num_requests_running{} 3.0\n")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, body))
        time.sleep(self.server.delay_s)
        answers = self.server.answers
        status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
        self.reply(status, answer)

    def reply(self, status: int, answer: Any) -> None:
        content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ScriptedEngine]:
    with ScriptedEngine(tmp_path / "e.sock") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def client_of(engine: ScriptedEngine) -> EngineClient:
    return EngineClient(f"unix:{engine.server_address}", "m")


def test_one_token_is_a_real_inference_with_the_served_name(engine: ScriptedEngine) -> None:
    engine.answers = [(200, ONE_TOKEN)]
    client_of(engine).one_token(timeout_s=5)
    ((path, body),) = engine.requests
    assert path == "/v1/completions"
    assert (body["model"], body["max_tokens"]) == ("m", 1)


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (503, {}, "HTTP 503"),
        (404, {}, "HTTP 404"),
        (200, "<html>", "not JSON"),
        (200, {}, "no usage"),
        (200, {"usage": {"completion_tokens": 0}}, "answered with 0 tokens"),
        (200, {"error": {"message": "EngineCore encountered an issue."}}, "no usage"),
    ],
)
def test_anything_else_is_no_answer(engine: ScriptedEngine, status: int, answer: Any, reason: str) -> None:
    engine.answers = [(status, answer)]
    with pytest.raises(EngineFailed, match=reason):
        client_of(engine).one_token(timeout_s=5)


def test_b105_a_replica_that_listens_and_says_it_is_healthy_is_not_ready_before_it_infers(engine: ScriptedEngine) -> None:
    engine.answers = [(503, {}), (404, {}), (503, {}), (200, ONE_TOKEN)]
    job: Job[None] = Job()
    until_it_answers(job, lambda: client_of(engine), limit_s=30)
    assert len(engine.requests) == 4


def test_b105_one_that_never_infers_fails_with_what_it_last_said(engine: ScriptedEngine) -> None:
    engine.answers = [(503, {})]
    job: Job[None] = Job()
    with pytest.raises(EngineFailed, match=r"within 0\.3 s \(last: /v1/completions answered with HTTP 503\)"):
        until_it_answers(job, lambda: client_of(engine), limit_s=0.3)


def test_waiting_for_an_answer_ends_when_nobody_wants_it(tmp_path: Path) -> None:
    job: Job[None] = Job()
    threading.Timer(0.2, job.cancel).start()
    until_it_answers(job, lambda: EngineClient(f"unix:{tmp_path}/none.sock", "m"), limit_s=30)


def test_an_engine_that_does_not_answer_in_time_is_told_so(engine: ScriptedEngine) -> None:
    engine.answers, engine.delay_s = [(200, ONE_TOKEN)], 1.0
    with pytest.raises(EngineFailed, match=r"no answer of /v1/completions within 0\.1 s"):
        client_of(engine).one_token(timeout_s=0.1)


def test_a_socket_nobody_listens_on_is_no_crash(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="does not listen yet"):
        EngineClient(f"unix:{tmp_path}/none.sock", "m").one_token(timeout_s=1)
    (tmp_path / "stale.sock").touch()
    with pytest.raises(EngineFailed):
        EngineClient(f"unix:{tmp_path}/stale.sock", "m").one_token(timeout_s=1)


def test_metrics_are_read(engine: ScriptedEngine) -> None:
    assert client_of(engine).load(timeout_s=5).num_running == 3


def logprob(value: float | None) -> dict[str, Any]:
    return {"42": {"logprob": value, "rank": 1, "decoded_token": "x"}}


def test_a_text_prompt_is_forced_through_completions(engine: ScriptedEngine) -> None:
    engine.answers = [(200, {"choices": [{"text": " Rome", "prompt_logprobs": [None, logprob(-1.5), logprob(-0.5)]}]})]
    answer = client_of(engine).force({"prompt": "p", "max_tokens": 3}, timeout_s=5)
    assert (answer.logprobs, answer.text) == ([-1.5, -0.5], " Rome")
    ((path, body),) = engine.requests
    assert path == "/v1/completions"
    assert (body["prompt_logprobs"], body["temperature"], body["max_tokens"]) == (0, 0, 3)


def test_messages_are_forced_through_the_engines_own_chat_template(engine: ScriptedEngine) -> None:
    answer = {"choices": [{"message": {"content": "Paris"}}], "prompt_logprobs": [None, logprob(-2.0), logprob(None)]}
    engine.answers = [(200, answer)]
    forced = client_of(engine).force({"messages": [{"role": "user", "content": "?"}]}, timeout_s=5)
    assert forced.logprobs[0] == -2.0
    assert forced.logprobs[1] != forced.logprobs[1], "what is no number is NaN, not 0"
    assert forced.text == "Paris"
    assert engine.requests[0][0] == "/v1/chat/completions"


def test_a_failures_message_never_holds_the_prompt_or_the_answer(engine: ScriptedEngine) -> None:
    engine.answers = [(400, {"error": {"message": "cannot read 'secret prompt'"}})]
    with pytest.raises(EngineRefused) as caught:
        client_of(engine).force({"prompt": "secret prompt"}, timeout_s=5)
    assert "secret" not in str(caught.value)

"""A gateway's face over HTTP for tests of eval runs: answers by a script, and keeps what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        return str(self.body["messages"][-1]["content"])


Reply = tuple[int, dict[str, Any], dict[str, str]]


def answer(text: str, *, version: str = "", prompt_tokens: int = 10, completion_tokens: int = 3) -> Reply:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    body = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}], "usage": usage}
    headers = {"x-request-id": "req-1"} | ({"x-headway-version": version} if version else {})
    return 200, body, headers


def refusal(status: int, code: str = "", message: str = "no", retry_after_s: int = 0) -> Reply:
    headers = {"retry-after": str(retry_after_s)} if retry_after_s else {}
    return status, {"error": {"message": message, "code": code or None}}, headers


@dataclass
class FakeGateway:
    """`script` says how to answer; it is called in the server's threads."""

    url: str = ""
    script: Callable[[Asked], Reply] = lambda _asked: answer("ok")
    asked: list[Asked] = field(default_factory=list)

    def prompts(self) -> list[str]:
        return [each.prompt for each in self.asked]


@contextmanager
def fake_gateway() -> Iterator[FakeGateway]:
    gateway, lock = FakeGateway(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked = Asked({name.lower(): value for name, value in self.headers.items()}, body)
            with lock:
                gateway.asked.append(asked)
            status, content, headers = gateway.script(asked)
            data = json.dumps(content).encode()
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    gateway.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield gateway
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)

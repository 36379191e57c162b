"""As much of the Hugging Face hub as `model_info` and `snapshot_download` ask for, on a loopback port."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.downloads: list[str] = []
        self.cut_off = ""
        """A file whose connection ends half way."""
        self.endpoint = ""


@contextmanager
def hub(files: dict[str, bytes], *, repository: str = "org/name", revision: str = "v1") -> Iterator[Hub]:
    state = Hub(files)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path in {f"/api/models/{repository}/revision/{name}" for name in (revision, COMMIT)}:
                siblings = [{"rfilename": name, "size": len(content)} for name, content in state.files.items()]
                model = {"_id": "1", "id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings}
                return self.reply(200, json.dumps({**model, "private": False, "tags": [], "downloads": 0, "likes": 0}).encode())
            if path == f"/api/models/{repository}/tree/{COMMIT}":
                rows = [
                    {"type": "file", "path": name, "size": len(content), "oid": "0"} for name, content in state.files.items()
                ]
                return self.reply(200, json.dumps(rows).encode())
            name = path.removeprefix(f"/{repository}/resolve/{COMMIT}/")
            if name in state.files:
                return self.reply(200, state.files[name], name)
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None

        def reply(self, status: int, content: bytes, name: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                if name:
                    state.downloads.append(name)
                is_cut = bool(name) and name == state.cut_off
                self.wfile.write(content[: len(content) // 2] if is_cut else content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

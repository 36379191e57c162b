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
        self.ranges: list[tuple[str, int]] = []
        """Each download of a file, and from which byte on it was asked for."""
        self.cut_after: dict[str, list[int]] = {}
        """How many bytes of a file come before its connection ends: one entry a download, then it comes whole."""
        self.sends: dict[str, bytes] = {}
        """What comes in place of a file's content, with its own length."""
        self.most_bytes = 10**9
        """More is not given in one answer: 400, as the networks before the real one do."""
        self.endpoint = ""


def described(name: str, content: bytes) -> dict[str, object]:
    """As the hub lists a file: large ones with the SHA-256 of their content, others with their git id."""
    git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    row: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": git}
    if name.endswith(".safetensors"):
        row["lfs"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 134}
    return row


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
                siblings = [described(name, content) for name, content in state.files.items()]
                model = {"_id": "1", "id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings}
                return self.reply(200, json.dumps({**model, "private": False, "tags": [], "downloads": 0, "likes": 0}).encode())
            if path == f"/api/models/{repository}/tree/{COMMIT}":
                rows = [
                    {"type": "file", "path": name, "size": len(content), "oid": "0"} for name, content in state.files.items()
                ]
                return self.reply(200, json.dumps(rows).encode())
            name = path.removeprefix(f"/{repository}/resolve/{COMMIT}/")
            if name in state.files:
                return self.send_file(name)
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None

        def send_file(self, name: str) -> None:
            content = state.sends.get(name, state.files[name])
            asked = self.headers.get("Range", "")
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first or 0), min(len(content), int(last) + 1) if last else len(content)
            if start >= len(content) > 0:
                return self.reply(416, b"")
            if end - start > state.most_bytes:
                return self.reply(400, b"")
            if self.command == "GET":
                state.downloads.append(name)
                state.ranges.append((name, start))
            cuts = state.cut_after.get(name)
            ranged = [("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")] if asked else []
            return self.reply(206 if asked else 200, content[start:end], ranged, cut_after=cuts.pop(0) if cuts else None)

        def reply(
            self,
            status: int,
            content: bytes,
            headers: list[tuple[str, str]] | None = None,
            *,
            cut_after: int | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in [
                ("Content-Length", str(len(content))),
                ("ETag", f'"{hashlib.sha256(content).hexdigest()}"'),
                ("X-Repo-Commit", COMMIT),
                *(headers or []),
            ]:
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[:cut_after])

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

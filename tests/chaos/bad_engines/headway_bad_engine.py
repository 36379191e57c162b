"""Middlewares that make a real vLLM a bad release. Imported by the engine itself; nothing of ours in it."""

import asyncio
from typing import Any

HEALTHY_REQUESTS = 30
"""The agent's own, with which it is certified."""


class FailsOneInTen:
    def __init__(self, app: Any) -> None:
        self.app, self.num_asked = app, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if _is_asked(scope):
            self.num_asked += 1
            if self.num_asked > HEALTHY_REQUESTS and self.num_asked % 10 == 0:
                await send({"type": "http.response.start", "status": 500, "headers": [(b"content-type", b"application/json")]})
                await send({"type": "http.response.body", "body": b'{"error": {"message": "a bad release", "code": 500}}'})
                return
        await self.app(scope, receive, send)


class IsSlow:
    """A third of a second before everything it answers."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if _is_asked(scope):
            await asyncio.sleep(0.35)
        await self.app(scope, receive, send)


def _is_asked(scope: Any) -> bool:
    return bool(scope["type"] == "http" and scope["path"].endswith("/completions"))

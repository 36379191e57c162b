"""The scripted engine on a loop of its own, for tests that are not asynchronous: quick by default, slow when asked."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from tests.fakes.replica import DONE, ScriptedReplica, SeenRequest, Step, chat_chunk, default_script, running_usage, streamed

WORDS = ("Trains ", "run ", "at ", "a ", "headway ", "of ", "two ", "minutes", ".")
SLOWLY = "slowly"
"""In a prompt: a token every 0.1 s, for a minute."""
SLOW_TOKENS = 600


class Engine:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.replica = ScriptedReplica(default=answer)
        self._call(self.replica.start)

    @property
    def url(self) -> str:
        return self.replica.url

    def num_running(self) -> int:
        """Chats that were neither answered whole nor left."""
        return sum(
            1
            for seen in list(self.replica.requests)
            if seen.method == "POST" and not seen.answered.is_set() and not seen.peer_closed.is_set()
        )

    def last_chat(self) -> dict[str, Any]:
        found: dict[str, Any] = [seen for seen in self.replica.requests if seen.path.endswith("/chat/completions")][-1].json
        return found

    def close(self) -> None:
        self._call(self.replica.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _call(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(make(), self._loop).result(10)


def answer(seen: SeenRequest) -> list[Step]:
    is_chat = seen.method == "POST" and seen.path.endswith("/chat/completions")
    if not is_chat or not seen.json.get("stream"):
        return list(default_script(seen))
    is_slow = SLOWLY in str(seen.json["messages"][-1]["content"])
    pieces = [f"{number} " for number in range(SLOW_TOKENS)] if is_slow else list(WORDS)
    steps: list[Step] = [chat_chunk({"role": "assistant", "content": ""}, usage=running_usage(0))]
    for number, piece in enumerate(pieces, start=1):
        steps += [0.1 if is_slow else 0.01]
        steps += [chat_chunk({"content": piece}, "stop" if number == len(pieces) else None, usage=running_usage(number))]
    return list(streamed([*steps, DONE]))

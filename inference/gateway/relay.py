"""Pass an engine's stream on: read what is there, take whole events, hand on at once what arrived together.

Nothing is handed on before the model has made something, so that an error before that can still become another replica's
answer or a true status. What arrives with the end is returned, to leave together with [DONE].
"""

from collections.abc import Callable
from typing import Protocol

from inference.gateway.answer import AnswerReader, BadEvent, Chunk, EngineReported
from inference.gateway.openai_errors import Refusal
from inference.gateway.sse import EventTooLarge, SseSplitter
from inference.gateway.upstream import UpstreamTunables
from inference.gateway.upstream_connection import UpstreamClosed, UpstreamError, UpstreamResponse


class Output(Protocol):
    """Towards the client: an event stream, one JSON answer, or the messages of a WebSocket."""

    @property
    def has_started(self) -> bool:
        """Something was sent: neither the status nor the answer can be taken back."""

    @property
    def takes_whole(self) -> bool:
        """Can it hand on an answer that the engine did not stream?"""

    def restart(self) -> None:
        """Forget what was collected and not sent: another attempt begins."""

    async def send_chunks(self, chunks: list[Chunk]) -> None: ...

    def last(self, chunks: list[Chunk], reader: AnswerReader) -> list[bytes]:
        """What is still to be sent when the answer is whole: these chunks, usage, the end."""

    def whole(self, answer: Chunk) -> list[bytes]:
        """The same for an answer that the engine did not stream. Only asked of an output that `takes_whole`."""

    async def send_last(self, data: list[bytes]) -> None: ...

    async def send_error(self, refusal: Refusal) -> None:
        """A status with an error object, or an error event where the answer has started; then the end."""


async def relay(
    response: UpstreamResponse,
    reader: AnswerReader,
    output: Output,
    *,
    tunables: UpstreamTunables,
    on_output: Callable[[], None],
) -> list[Chunk]:
    """Returns the chunks still to be sent when the answer is whole.

    `on_output` is called before each hand-over. Raises EngineReported, BadEvent, UpstreamClosed (also for an end without
    a finish reason), UpstreamTimeout; what came before was handed on if the output had started.
    """
    splitter = SseSplitter()
    held: list[Chunk] = []
    while True:
        data = await _read(response, reader, tunables)
        problem = _take_all(splitter, data, reader, held)
        is_over = problem is not None or reader.is_done or not data
        if is_over and problem is None and not reader.is_finished:
            problem = UpstreamClosed("the answer ended without a finish reason", before_headers=False)
        if problem is not None:
            if output.has_started and held:
                await output.send_chunks(held)
            raise problem
        if is_over:
            on_output()
            return held
        if held and reader.has_output:
            on_output()
            await output.send_chunks(held)
            held = []


async def _read(response: UpstreamResponse, reader: AnswerReader, tunables: UpstreamTunables) -> bytes:
    """After the last finish reason, only the usage frame and the end may be missing: an engine that owes them is let off."""
    if not reader.is_finished:
        return await response.read(tunables.inter_event_s)
    try:
        return await response.read(tunables.tail_s)
    except UpstreamError:
        return b""


def _take_all(splitter: SseSplitter, data: bytes, reader: AnswerReader, held: list[Chunk]) -> Exception | None:
    """Add what goes to the client to `held`; returns what stopped it."""
    try:
        for event in splitter.feed(data) if data else splitter.flush():
            chunk = reader.take(event)
            if chunk is not None:
                held.append(chunk)
    except EngineReported as error:
        return error
    except (BadEvent, EventTooLarge) as error:
        if not data:  # the connection ended inside an event
            return UpstreamClosed("the answer ended inside an event", before_headers=False)
        return error if isinstance(error, BadEvent) else BadEvent(str(error))
    return None

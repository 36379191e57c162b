"""Pass an engine's stream on: read what is there, take whole events, hand on at once what arrived together.

Nothing is handed on before the model has made something, so that an error before that can still become another replica's
answer or a true status. What arrives with the end is returned, to leave together with [DONE].
"""

from collections.abc import Callable
from typing import Protocol

from inference.gateway.answer import AnswerReader
from inference.gateway.chunks import BadEvent, Chunk, EngineReported, Piece
from inference.gateway.openai_errors import Refusal
from inference.gateway.short_way import ShortWay
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

    @property
    def keeps(self) -> bool:
        """What it was given so far stays, for another attempt to go on from: it was sent, or is collected."""

    def restart(self) -> None:
        """Forget what was collected and not sent: another attempt begins."""

    def show(self, chunk: Chunk) -> bytes:
        """A chunk as it is sent. Only asked of an output that has a `write_now`, and only that one is given bytes to send."""

    @property
    def write_now(self) -> Callable[[bytes], bool] | None:
        """Hands shown chunks to the client at once; False: it cannot at the moment. None: this output never can."""

    async def send_chunks(self, chunks: list[Piece]) -> None: ...

    def last(self, chunks: list[Piece], reader: AnswerReader) -> list[bytes]:
        """What is still to be sent when the answer is whole: these chunks, usage, the end."""

    def whole(self, answer: Chunk) -> list[bytes]:
        """The same for an answer that the engine did not stream. Only asked of an output that `takes_whole`."""

    async def show_position(self, position: int, wait_s: float) -> None:
        """While the request waits, to a client that can be told: where in the queue (1: the next), and how long about."""

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
    on_token: Callable[[], None],
) -> list[Piece]:
    """Returns what is still to be sent when the answer is whole.

    `on_output` is called before each hand-over, but for what goes the short way: that is `on_token`'s. Raises EngineReported,
    BadEvent, UpstreamClosed (also for an end without a finish reason), UpstreamTimeout; what came before was handed on if the
    output had started.
    """
    splitter = SseSplitter()
    write = output.write_now
    short = ShortWay(reader, splitter, show=output.show, write=write, on_output=on_token) if write else None
    held: list[Piece] = []
    while True:
        data = await _read(response, reader, tunables, short)
        problem = _take_all(splitter, data, reader, held, short)
        is_over = problem is not None or reader.is_done or not data
        if is_over and problem is None and not reader.is_finished:
            problem = UpstreamClosed("the answer ended without a finish reason", before_headers=False)
        if problem is not None:
            if output.keeps and held:
                await output.send_chunks(held)
            raise problem
        if is_over:
            on_output()
            return held
        if held and reader.has_output:
            on_output()
            await output.send_chunks(held)
            held = []


async def _read(response: UpstreamResponse, reader: AnswerReader, tunables: UpstreamTunables, short: ShortWay | None) -> bytes:
    """After the last finish reason, only the usage frame and the end may be missing: an engine that owes them is let off."""
    if not reader.is_finished:
        return await response.read(tunables.inter_event_s, short)
    try:
        return await response.read(tunables.tail_s)
    except UpstreamError:
        return b""


def _take_all(
    splitter: SseSplitter, data: bytes, reader: AnswerReader, held: list[Piece], short: ShortWay | None
) -> Exception | None:
    """Add what goes to the client to `held`; returns what stopped it."""
    try:
        if not data:
            _take_events(splitter.flush(), reader, held, None)
        at = 0
        while at < len(data):
            end = len(data)
            if short is not None and short.may_help:
                shown, at = short.shown(data, at)
                if shown:
                    held.append(shown)
                next_end = data.find(b"\n\n", at)
                end = next_end + 2 if next_end >= 0 else len(data)
            _take_events(splitter.feed(data[at:end]), reader, held, short)
            at = end
    except EngineReported as error:
        return error
    except (BadEvent, EventTooLarge) as error:
        if not data:  # the connection ended inside an event
            return UpstreamClosed("the answer ended inside an event", before_headers=False)
        return error if isinstance(error, BadEvent) else BadEvent(str(error))
    return None


def _take_events(events: list[bytes], reader: AnswerReader, held: list[Piece], short: ShortWay | None) -> None:
    """The full way. Raises BadEvent, EngineReported."""
    for event in events:
        chunk = reader.take(event)
        if chunk is not None:
            held.append(chunk)
            if short is not None:
                short.learn(event)

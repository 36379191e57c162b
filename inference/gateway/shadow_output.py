"""The output of a request that nobody reads."""

from inference.gateway.answer import AnswerReader
from inference.gateway.chunks import Chunk, Piece
from inference.gateway.openai_errors import Refusal


class NoOutput:
    """Takes everything and shows nothing."""

    takes_whole = True
    keeps = False
    has_started = False
    write_now = None

    def restart(self) -> None:
        pass

    def show(self, chunk: Chunk) -> bytes:
        raise AssertionError("nobody is shown anything")

    async def send_chunks(self, chunks: list[Piece]) -> None:
        pass

    def last(self, chunks: list[Piece], reader: AnswerReader) -> list[bytes]:
        return []

    def whole(self, answer: Chunk) -> list[bytes]:
        return []

    async def show_position(self, position: int, wait_s: float) -> None:
        pass

    async def send_last(self, data: list[bytes]) -> None:
        pass

    async def send_error(self, refusal: Refusal) -> None:
        pass

"""Files that are made while they are sent, a piece at a time: no more of them is in memory than one piece."""

import csv
import io
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

ROWS_A_PIECE = 1000


def csv_file(request: HttpRequest, *, name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> StreamingHttpResponse:
    """`rows` are taken as the client takes them; under ASGI in a thread, as they come from the database."""
    pieces = _pieces(head, iter(rows))
    return file_of_pieces(request, name=name, content_type="text/csv; charset=utf-8", pieces=pieces)


def file_of_pieces(request: HttpRequest, *, name: str, content_type: str, pieces: Iterator[bytes]) -> StreamingHttpResponse:
    content = _in_a_thread(pieces) if isinstance(request, ASGIRequest) else pieces
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    response = StreamingHttpResponse(content, content_type=content_type, headers=headers)
    if content is not pieces and not isinstance(pieces, Generator) and hasattr(pieces, "close"):
        # What nobody takes (after a HEAD, say) is closed all the same. A generator may still run in its thread.
        response._resource_closers.append(pieces.close)  # type: ignore[attr-defined]  # Django's own
    return response


FORMULA_BEGINS = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""What spreadsheets take for the beginning of a formula: the last four are full-width, as Japanese ones do."""


def as_text(value: str) -> str:
    """What a spreadsheet would run as a formula is shown as text."""
    return f"'{value}" if value[:1] in FORMULA_BEGINS else value


def _pieces(head: Sequence[str], rows: Iterator[Sequence[Any]]) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(head)
    for number, row in enumerate(rows, start=1):
        writer.writerow([as_text(value) if isinstance(value, str) else value for value in row])
        if number % ROWS_A_PIECE == 0:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


async def _in_a_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await sync_to_async(lambda: next(pieces, None))()) is not None:
        yield piece

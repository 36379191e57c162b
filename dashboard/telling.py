"""What became of a change, on the page that follows it."""

import contextlib
from collections.abc import Iterator

from django.contrib import messages
from django.http import HttpRequest

from dashboard.errors import FormAlreadySent
from headway.errors import HeadwayError


@contextlib.contextmanager
def telling(request: HttpRequest, done: str) -> Iterator[None]:
    """Says `done`, or why a service refused."""
    try:
        yield
    except FormAlreadySent as error:
        messages.info(request, error.message[:1].upper() + error.message[1:])
    except HeadwayError as error:
        tell_next_page(request, error)
    else:
        messages.success(request, done)


def tell_next_page(request: HttpRequest, error: HeadwayError) -> None:
    messages.error(request, error.message[:1].upper() + error.message[1:])

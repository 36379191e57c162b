"""Control characters in addresses and filters: none of ours holds one, and PostgreSQL refuses NUL in any text it compares.

They are replaced, so that such a name is one that is not there (404, an empty list). Forms' fields refuse NUL by themselves.
"""

import re
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class CleanTextMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.path_info = cleaned(request.path_info)
        if any(_CONTROL.search(value) for _, values in request.GET.lists() for value in values):
            request.GET = cleaned_query(request.GET)  # type: ignore[assignment]
        return self.get_response(request)


def cleaned(text: str) -> str:
    return _CONTROL.sub(REPLACEMENT, text)


def cleaned_query(asked: Any) -> QueryDict:
    found = QueryDict(mutable=True)
    for name, values in asked.lists():
        found.setlist(name, [cleaned(value) for value in values])
    found._mutable = False
    return found

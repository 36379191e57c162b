"""Forms that make something, in views: `{% once %}` in the form, `with once(request):` around what makes it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from dashboard.errors import FormAlreadySent
from dashboard.services.form_claims import FIELD, checked_nonce, claimed
from headway.errors import InvalidInput


def once(request: HttpRequest) -> AbstractContextManager[None]:
    """Raises FormAlreadySent, InvalidInput."""
    return claimed(request.POST.get(FIELD, ""))


def nonce_of(request: HttpRequest) -> str:
    """For what cannot be made in the form's transaction, and knows by another way what was made. Raises InvalidInput."""
    return checked_nonce(request.POST.get(FIELD, ""))


def made_once(next_page: str) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """Around a view of another's that answers a good post with a redirect; a second post is led to `next_page`."""

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def page(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if request.method != "POST":
                return view(request, *args, **kwargs)
            try:
                with once(request):
                    response = view(request, *args, **kwargs)
                    if not 300 <= response.status_code < 400:
                        transaction.set_rollback(True)  # it made nothing: the form may be corrected and sent again
                return response
            except FormAlreadySent:
                return redirect(next_page)
            except InvalidInput as error:
                messages.error(request, error.message)
                return redirect(request.get_full_path())

        return page

    return decorate

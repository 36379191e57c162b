"""How people's accounts behave (django-allauth), and how often a form may be posted."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django_ratelimit.core import is_ratelimited

from headway.client_address import client_address


def address_of(request: HttpRequest) -> str:
    """Of whoever sent it, behind the proxies that are configured; what else a header claims counts for nothing."""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "")
    return client_address(request.META.get("REMOTE_ADDR", ""), forwarded, settings.TRUSTED_PROXY_HOPS)


def limited(group: str) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """So many posts a minute from one address; further ones get a page with 429 that says when to come back."""

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def page(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            rate = f"{settings.FORM_POSTS_PER_MINUTE}/m"
            if is_ratelimited(
                request, group=group, key=lambda _group, asked: address_of(asked), rate=rate, method=["POST"], increment=True
            ):
                response = render(request, "dashboard/too_many.html", status=429)
                response["retry-after"] = "60"
                return response
            return view(request, *args, **kwargs)

        return page

    return decorate


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """Names are e-mail addresses: one person, one word in the audit log."""

    def populate_username(self, request: HttpRequest, user: Any) -> None:
        user.username = user.email[:150]

    def get_client_ip(self, request: HttpRequest) -> str:
        return address_of(request)

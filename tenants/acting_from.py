"""Middleware of the site: what a request changes is audited with the address it came from."""

from collections.abc import Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from headway.client_address import client_address
from tenants.services.audit import acting_from


def address_of(request: HttpRequest) -> str:
    """Of the client, behind HEADWAY_TRUSTED_PROXY_HOPS proxies of ours."""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "")
    return client_address(request.META.get("REMOTE_ADDR") or "", forwarded, settings.TRUSTED_PROXY_HOPS)


class ActingFromMiddleware:
    sync_capable = False
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with acting_from(address_of(request)):
            return await self.get_response(request)  # type: ignore[misc, no-any-return]

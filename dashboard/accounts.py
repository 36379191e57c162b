"""How people's accounts behave (django-allauth), and how often a form may be posted."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import structlog
from allauth.account.adapter import DefaultAccountAdapter
from allauth.core import context as allauth_context
from allauth.core.internal import ratelimit
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django_ratelimit.core import is_ratelimited

from headway.client_address import client_address

log = structlog.get_logger(__name__)


def address_of(request: HttpRequest) -> str:
    """Of whoever sent it, behind the proxies that are configured; what else a header claims counts for nothing."""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "")
    return client_address(request.META.get("REMOTE_ADDR", ""), forwarded, settings.TRUSTED_PROXY_HOPS)


def limited(group: str) -> Callable[[Callable[..., HttpResponseBase]], Callable[..., HttpResponseBase]]:
    """So many posts a minute from one address; further ones get a page with 429 that says when to come back."""

    def decorate(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
        @wraps(view)
        def page(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
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


@dataclass(frozen=True)
class _Site:
    """As allauth's mails name it."""

    name: str
    domain: str


# Mails that whoever knows an address can have sent to it.
_ASKED_BY_ANYBODY = tuple(
    f"account/email/{name}"
    for name in ("email_confirmation", "account_already_exists", "unknown_account", "password_reset_key")
)


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """People are known by their e-mail addresses, which change; their user names are made up and shown nowhere."""

    def populate_username(self, request: HttpRequest, user: Any) -> None:
        user.username = made_up_username()

    def get_client_ip(self, request: HttpRequest) -> str:
        return address_of(request)

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Links lead to HEADWAY_SITE_URL whatever the request's Host claims.

        Mails beyond ACCOUNT_RATE_LIMITS["mail"] are left out silently: an answer would tell who has an account.
        """
        asked = context.get("request") or allauth_context.request
        if template_prefix.startswith(_ASKED_BY_ANYBODY) and not _has_mails_left(asked, email):
            log.warning("mail_left_out", template=template_prefix)
            return
        links = {name: _on_site(value) for name, value in context.items() if name.endswith("_url") and value}
        site = _Site(name="Headway", domain=urlsplit(settings.SITE_URL).netloc)
        super().send_mail(template_prefix, email, {**context, **links, "current_site": site})


def made_up_username() -> str:
    return f"u_{secrets.token_hex(12)}"


def _has_mails_left(request: HttpRequest, email: str) -> bool:
    return bool(ratelimit.consume(request, app="allauth.account", action="mail", key=email.lower()))


def _on_site(url: str) -> str:
    return urlunsplit(urlsplit(settings.SITE_URL)[:2] + urlsplit(url)[2:])

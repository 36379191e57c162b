"""The second factor of an account (one-time passwords): who has set it up uses it in every session that acts for them."""

from typing import Any

from allauth.account.authentication import get_authentication_records
from allauth.mfa.base.forms import AuthenticateForm
from allauth.mfa.models import Authenticator
from django.http import HttpRequest

METHOD = "mfa"
"""As allauth's records of a session name it."""


def has_second_factor(user: Any) -> bool:
    return bool(Authenticator.objects.filter(user_id=user.pk).exclude(type=Authenticator.Type.RECOVERY_CODES).exists())


def owes_second_factor(request: HttpRequest) -> bool:
    """Of who is logged in: the account has one, and this session was opened without it, or before it was set up."""
    used = any(each.get("method") == METHOD for each in get_authentication_records(request, request.user))
    return not used and has_second_factor(request.user)


def use_second_factor(user: Any, code: str) -> str:
    """A one-time password or a recovery code, for the session of the request that runs. Blank, or why it is not taken."""
    form = AuthenticateForm(data={"code": code}, user=user)
    if not form.is_valid():
        return str(form.errors["code"][0])
    form.save()
    return ""

"""A secret that was just made, from the post that made it to the page that shows it, once: to reload makes and shows nothing.

Neither half tells anything alone: the session's row in the database holds a random pad, a cookie the secret under that pad.
"""

import secrets
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

MAX_AGE_S = 120


def keep_for_next_page(request: HttpRequest, response: HttpResponse, name: str, secret: str, **about: Any) -> None:
    """`about`: what else the page shows, as JSON can hold it; no secrets. `name`: what kind of page."""
    text = secret.encode()
    pad = secrets.token_bytes(len(text))
    request.session[_name(name)] = {"pad": pad.hex(), "about": about}
    response.set_signed_cookie(
        _name(name),
        _under(text, pad).hex(),
        max_age=MAX_AGE_S,
        httponly=True,
        samesite="Strict",
        secure=bool(settings.SESSION_COOKIE_SECURE),
    )


def taken(request: HttpRequest, name: str) -> tuple[str, dict[str, Any]] | None:
    """The secret and what was said about it; None when it was shown already, or nothing was made."""
    kept = request.session.pop(_name(name), None)
    if kept is None:
        return None
    masked = request.get_signed_cookie(_name(name), default=None, max_age=MAX_AGE_S)
    if masked is None or len(masked) != len(kept["pad"]):
        return None
    return _under(bytes.fromhex(masked), bytes.fromhex(kept["pad"])).decode(), kept["about"]


def forget(response: HttpResponse, name: str) -> None:
    response.delete_cookie(_name(name), samesite="Strict")


def _name(name: str) -> str:
    return f"shown_once_{name}"


def _under(text: bytes, pad: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(text, pad, strict=True))

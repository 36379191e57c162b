"""Tickets for the playground: the site's word to a gateway that a member of a tenant sits before a page of ours. Pure.

A ticket is `<body>.<mac>`: JSON in base64url and its HMAC-SHA256 under a key made from the installation's secret key, which
site and gateways share. It holds for 60 s, for pages of one origin, and for one request: the nonce in it was drawn by a
gateway for one connection, which alone takes it and forgets it then. So it is good once however many gateways there are,
and none of them has to tell another.
"""

import base64
import hashlib
import hmac
import re
import secrets

import msgspec

LIFETIME_S = 60
# Where usage records name a key: what came with a ticket. No key has such an id (theirs have 12 characters).
PLAYGROUND_KEY_ID = "playground"
MAX_TICKET_CHARS = 2048
MAX_ORIGIN_CHARS = 300
_NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)


class Ticket(msgspec.Struct, frozen=True):
    tenant_id: str
    member_id: int
    nonce: str
    origin: str
    expires_s: float  # unix time


def new_nonce() -> str:
    return secrets.token_hex(16)


def is_nonce(text: str) -> bool:
    return _NONCE.fullmatch(text) is not None


def write_ticket(ticket: Ticket, *, secret: str) -> str:
    body = base64.urlsafe_b64encode(msgspec.json.encode(ticket)).decode()
    return f"{body}.{_mac(body, secret)}"


def read_ticket(text: str, *, secret: str) -> Ticket | None:
    """What it says; None: it is none of ours, or not as we wrote it. Whether it still holds is the reader's to ask."""
    body, _, mac = text.partition(".")
    if not secret or len(text) > MAX_TICKET_CHARS or not text.isascii():
        return None
    if not hmac.compare_digest(mac, _mac(body, secret)):
        return None
    return msgspec.json.decode(base64.urlsafe_b64decode(body), type=Ticket)


def _mac(body: str, secret: str) -> str:
    key = hashlib.sha256(b"headway playground ticket\0" + secret.encode()).digest()
    return hmac.new(key, body.encode(), hashlib.sha256).hexdigest()

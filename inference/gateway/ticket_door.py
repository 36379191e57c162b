"""How a page of the site comes in without a key: a nonce for its connection, then a ticket that names it.

{"type": "challenge"}  ->  {"type": "challenge", "nonce": "..."}  ->  {"ticket": "...", "request": {...}}
"""

from collections.abc import Sequence

import msgspec

from headway.errors import HeadwayError
from tenants.services.tickets import Ticket, new_nonce, read_ticket


class TicketRefused(HeadwayError):
    """Ask the site for another ticket; this one is forged, used, too old, or of another page or connection."""

    code = "invalid_ticket"
    http_status = 401
    error_type = "invalid_request_error"


class TicketDoor:
    """Of one socket. `secret`: the installation's; empty: no ticket is taken."""

    def __init__(self, secret: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._secret = secret
        self._nonce = ""
        origins = [value for name, value in headers if name == b"origin"]
        self._origin = origins[0].decode("latin-1") if len(origins) == 1 else ""

    def challenge(self) -> bytes:
        """The message with a new nonce; the one before counts no more."""
        self._nonce = new_nonce()
        return msgspec.json.encode({"type": "challenge", "nonce": self._nonce})

    def take(self, text: object, *, now_s: float) -> Ticket:
        """`now_s` is unix time. Raises TicketRefused. Whatever comes of it, the nonce is used up."""
        nonce, self._nonce = self._nonce, ""
        ticket = read_ticket(text, secret=self._secret) if isinstance(text, str) else None
        if ticket is None:
            raise TicketRefused("This ticket is not one of this service's. Load the page again.")
        if not nonce or ticket.nonce != nonce:
            raise TicketRefused("This ticket was used, or is of another connection. Ask for a new one.")
        if ticket.expires_s <= now_s:
            raise TicketRefused("This ticket is too old. Ask for a new one.")
        if not self._origin or ticket.origin != self._origin:
            raise TicketRefused("This ticket is of a page of another origin.")
        return ticket

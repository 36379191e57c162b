"""Let a member's page run a request at the gateway: a ticket for the nonce its connection was given."""

import time
from typing import Any

from django.conf import settings

from headway.errors import InvalidInput
from tenants.services.tickets import LIFETIME_S, MAX_ORIGIN_CHARS, Ticket, is_nonce, write_ticket


def mint_ticket(*, tenant: Any, member: Any, nonce: object, origin: str) -> str:
    """`origin`: as the browser named it on a request whose CSRF token was right. Raises InvalidInput."""
    if not isinstance(nonce, str) or not is_nonce(nonce):
        raise InvalidInput("send the nonce of the gateway's challenge", param="nonce")
    if not origin or len(origin) > MAX_ORIGIN_CHARS:
        raise InvalidInput("the browser named no origin", param="origin")
    ticket = Ticket(
        tenant_id=str(tenant.id), member_id=member.id, nonce=nonce, origin=origin, expires_s=time.time() + LIFETIME_S
    )
    return write_ticket(ticket, secret=settings.SECRET_KEY)

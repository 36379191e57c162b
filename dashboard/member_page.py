"""The members of a tenant as their page shows them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allauth.mfa.models import Authenticator
from django.utils import timezone

from dashboard.paging import Page, by_number
from dashboard.seats import Seat
from tenants.access import Action, Role, may_assign
from tenants.selectors import keys_per_member, members_of_tenant, open_invitations

MAX_INVITATIONS = 100


@dataclass(frozen=True)
class MemberRow:
    member: Any
    is_me: bool
    has_mfa: bool
    num_keys: int
    roles: list[str]
    """Those this person may be given by who looks; empty: nothing may be changed."""


@dataclass(frozen=True)
class MemberPage:
    rows: list[MemberRow]
    page: Page
    invitations: list[Any]
    my_keys: int


def assignable(seat: Seat) -> list[str]:
    if not seat.may(Action.MANAGE_MEMBERS):
        return []
    return [role.value for role in Role if may_assign(seat.role, role)]


def member_page(seat: Seat, asked: Mapping[str, str]) -> MemberPage:
    page = by_number(members_of_tenant(seat.tenant), asked.get("page", ""))
    ids = [member.user_id for member in page.rows]
    secured = set(Authenticator.objects.filter(user_id__in=ids, type="totp").values_list("user_id", flat=True))
    keys, roles = keys_per_member(seat.tenant), assignable(seat)
    rows = [
        MemberRow(
            member=member,
            is_me=member.user_id == seat.user.id,
            has_mfa=member.user_id in secured,
            num_keys=keys.get(member.user_id, 0),
            roles=roles if roles and may_assign(seat.role, member.role) else [],
        )
        for member in page.rows
    ]
    invitations, now = list(open_invitations(seat.tenant)[:MAX_INVITATIONS]), timezone.now()
    for invitation in invitations:
        invitation.is_expired = invitation.expires_at <= now
    return MemberPage(rows=rows, page=page, invitations=invitations, my_keys=keys.get(seat.user.id, 0))

"""The keys of a tenant as their page shows them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone

from billing.selectors import spent_by_key
from dashboard.paging import Page, by_number
from headway.months import month_of
from tenants.selectors import budgets_of_keys, keys_of_tenant

SOON = timedelta(days=7)
STATUSES = ("active", "disabled", "expired", "revoked", "all")
TONES = {"active": "pill-good", "disabled": "pill-warn", "expired": "pill-bad", "revoked": ""}


@dataclass(frozen=True)
class KeyRow:
    key: Any
    status: str
    spent: int
    cap: int | None
    is_expiring: bool

    @property
    def tone(self) -> str:
        return TONES[self.status]


@dataclass(frozen=True)
class KeyList:
    rows: list[KeyRow]
    page: Page
    query: str
    status: str
    statuses: tuple[str, ...] = STATUSES

    @property
    def is_filtered(self) -> bool:
        return bool(self.query or self.status or self.page.newer)


def key_list(tenant: Any, asked: Mapping[str, str]) -> KeyList:
    now, query, status = timezone.now(), asked.get("q", "").strip()[:100], asked.get("status", "")
    rows = keys_of_tenant(tenant)
    lapsed = Q(expires_at__isnull=False, expires_at__lte=now)
    wanted = {
        "": Q(revoked_at=None),
        "active": Q(revoked_at=None, disabled_at=None) & ~lapsed,
        "disabled": Q(revoked_at=None, disabled_at__isnull=False),
        "expired": Q(revoked_at=None) & lapsed,
        "revoked": Q(revoked_at__isnull=False),
    }.get(status, Q())
    rows = rows.filter(wanted)
    if query:
        rows = rows.filter(Q(name__icontains=query) | Q(id__icontains=query.removeprefix("hw_live_")))
    page = by_number(rows, asked.get("page", ""))
    ids = [key.id for key in page.rows]
    spent = spent_by_key(tenant.id, month_of(now, tenant.time_zone).name, ids)
    caps = budgets_of_keys(tenant, ids)
    shown = [
        KeyRow(
            key=key,
            status=_status(key, now),
            spent=spent.get(key.id, 0),
            cap=caps.get(key.id),
            is_expiring=key.expires_at is not None and key.expires_at - now < SOON,
        )
        for key in page.rows
    ]
    return KeyList(rows=shown, page=page, query=query, status=status)


def _status(key: Any, now: Any) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= now:
        return "expired"
    return "disabled" if key.disabled_at is not None else "active"

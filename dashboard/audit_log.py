"""The audit log of a tenant: a page of it, and all of it as a file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from django.db.models import Q, QuerySet

from dashboard.paging import Page, by_id
from tenants.selectors import audit_of_tenant


@dataclass(frozen=True)
class AuditLog:
    page: Page
    query: str
    action: str
    actions: list[str]

    @property
    def is_filtered(self) -> bool:
        return bool(self.query or self.action or self.page.newer)


MAX_ROWS = 200_000
ROWS_A_READ = 1000
HEAD = ("at (UTC)", "actor", "action", "target", "address", "request_id", "before", "after")


def audit_rows(tenant: Any, asked: Mapping[str, str]) -> Iterator[list[Any]]:
    """What the page's filters let through, newest first, read while it is taken; no more than MAX_ROWS."""
    rows = _filtered(audit_of_tenant(tenant), asked).order_by("-id")
    last, left = 2**63 - 1, MAX_ROWS
    while left > 0 and (found := list(rows.filter(id__lt=last)[: min(ROWS_A_READ, left)])):
        for entry in found:
            sides = [json.dumps(side, ensure_ascii=False) if side is not None else "" for side in (entry.before, entry.after)]
            at = entry.at.astimezone(UTC).isoformat()
            yield [at, entry.actor, entry.action, entry.target, entry.address, entry.request_id, *sides]
        last, left = found[-1].id, left - len(found)


def _filtered(rows: QuerySet[Any], asked: Mapping[str, str]) -> QuerySet[Any]:
    query, action = _asked(asked)
    if query:
        rows = rows.filter(Q(actor__icontains=query) | Q(target__icontains=query))
    return rows.filter(action=action) if action else rows


def _asked(asked: Mapping[str, str]) -> tuple[str, str]:
    return asked.get("q", "").strip()[:200], asked.get("action", "")[:64]


def audit_log(tenant: Any, asked: Mapping[str, str]) -> AuditLog:
    query, action = _asked(asked)
    rows = audit_of_tenant(tenant)
    actions = sorted(rows.order_by().values_list("action", flat=True).distinct())
    page = by_id(_filtered(rows, asked), asked.get("page", ""))
    for entry in page.rows:
        entry.change_text = _change_text(entry.before, entry.after)
    return AuditLog(page=page, query=query, action=action, actions=actions)


def _change_text(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    """What differs, a line a field; all of it where there is one side only."""
    old, new = before or {}, after or {}
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]

    def shown(values: dict[str, Any], name: str) -> str:
        return json.dumps(values[name], ensure_ascii=False) if name in values else "–"

    return "\n".join(f"{name}: {shown(old, name)} → {shown(new, name)}" for name in names)

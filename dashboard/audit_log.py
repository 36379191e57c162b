"""The audit log of a tenant: a page of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

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


def audit_log(tenant: Any, asked: Mapping[str, str]) -> AuditLog:
    query, action = asked.get("q", "").strip()[:200], asked.get("action", "")[:64]
    rows = audit_of_tenant(tenant)
    actions = sorted(rows.order_by().values_list("action", flat=True).distinct())
    if query:
        rows = rows.filter(Q(actor__icontains=query) | Q(target__icontains=query))
    if action:
        rows = rows.filter(action=action)
    page = by_id(rows, asked.get("page", ""))
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

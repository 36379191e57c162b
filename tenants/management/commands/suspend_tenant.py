from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from tenants.services.suspension import resume_tenant, suspend_tenant
from tenants.services.tenants import tenant_named


class Command(HeadwayCommand):
    help = "Suspend a tenant: its keys are refused within a second, its pages closed, nothing deleted. --end serves it again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--reason", help="for the audit log")
        what.add_argument("--end", action="store_true", help="serve it again")

    def handle(self, *, tenant: str, reason: str | None, end: bool, json: bool, **_options: Any) -> None:
        found = tenant_named(tenant)
        if end:
            changed = resume_tenant(tenant=found, actor=actor())
        else:
            changed = suspend_tenant(tenant=found, reason=reason or "", actor=actor())
        state = "served" if found.suspended_at is None else "suspended"
        text = f"{found.name} is {state}" + ("" if changed else " already")
        self.print_result(text, {"tenant": found.name, "state": state, "changed": changed}, as_json=json)

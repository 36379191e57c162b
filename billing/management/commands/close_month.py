from typing import Any

from django.core.management.base import CommandError, CommandParser

from billing.services.closing import Closed, Closing, close_all, close_statement
from headway.command import HeadwayCommand, actor
from headway.currencies import minor_to_text
from headway.tables import table
from tenants.services.tenants import tenant_named

COLUMNS = ["tenant", "month", "was", "invoice", "state", "total", "currency"]


class Command(HeadwayCommand):
    help = "Close a month that is over: its statements, and the invoices of them. What is closed already stays as it is."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("month", metavar="YYYY-MM", help="in the tenants' own time zones")
        parser.add_argument("--tenant", metavar="NAME", help="of this tenant alone (name or id)")

    def handle(self, *, month: str, tenant: str | None, json: bool, **_options: Any) -> None:
        closing = Closing()
        if tenant is not None:
            closing.closed.append(close_statement(tenant_id=tenant_named(tenant).id, month=month, actor=actor()))
        else:
            closing = close_all(month, actor=actor())
        rows = [_row(each) for each in closing.closed]
        data = {
            "statements": [dict(zip(COLUMNS, row, strict=True)) for row in rows],
            "failed": [{"tenant": str(of), "month": name, "reason": why} for (of, name), why in closing.failed.items()],
        }
        self.print_result(table(COLUMNS, rows).rstrip("\n"), data, as_json=json)
        for (tenant_id, name), reason in closing.failed.items():
            self.say(f"not closed: {name} of {tenant_id}: {reason}")
        if closing.failed:
            raise CommandError(f"{len(closing.failed)} statements were not closed; the others were")


def _row(closed: Closed) -> list[str]:
    statement, invoice = closed.statement, closed.invoice
    return [
        str(statement.tenant_id),
        statement.month,
        "closed now" if closed.is_new else "closed before",
        str(invoice) if invoice is not None else "none",
        invoice.state if invoice is not None else "",
        minor_to_text(statement.total_minor, statement.currency),
        statement.currency,
    ]

from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandParser

from billing.credit_models import GrantKind
from billing.services.balance_reads import balance_of
from billing.services.balances import MAX_GRANT_MICROS, grant_credit
from headway.command import HeadwayCommand, actor
from headway.errors import InvalidInput
from headway.money import MICROS_A_USD, micros_to_usd, picos_to_usd, usd_to_micros
from tenants.services.tenants import tenant_named


class Command(HeadwayCommand):
    help = "Give a tenant credit, which its usage uses before anything is invoiced. Prints what it has left."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")
        parser.add_argument("--usd", required=True, help="how much, in US dollars")
        parser.add_argument("--reason", required=True, help="why: its invoices print it")
        parser.add_argument("--kind", choices=GrantKind.values, default=GrantKind.GOODWILL.value, help="(goodwill)")
        parser.add_argument("--expires", help="ISO 8601 date or time, UTC where it names no zone; from then on it is gone")
        parser.add_argument("--reference", default="", help="of what it is given for, such as a payment: it grants once")

    def handle(
        self, *, tenant: str, usd: str, reason: str, kind: str, expires: str | None, reference: str, json: bool, **_options: Any
    ) -> None:
        found = tenant_named(tenant)
        grant = grant_credit(
            tenant_id=found.id,
            amount_micros=usd_to_micros(usd, param="--usd", max_usd=MAX_GRANT_MICROS // MICROS_A_USD),
            kind=kind,
            reason=reason,
            expires_at=_time(expires) if expires else None,
            reference=reference,
            actor=actor(),
        )
        left = picos_to_usd(balance_of(found.id).left_picos)
        line = f"{found.name}: ${micros_to_usd(grant.amount_micros)} granted ({grant.id}), ${left} left"
        self.print_result(line, {"grant": str(grant.id), "left_usd": left}, as_json=json)


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"--expires is a date or time such as 2027-01-31: {text!r}", param="--expires") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)

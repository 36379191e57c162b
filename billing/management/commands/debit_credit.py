from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandParser

from billing.services.balance_reads import balance_of, grant_with_id
from billing.services.balances import MAX_GRANT_MICROS, debit_balance, refund_credit
from headway.command import HeadwayCommand, actor
from headway.errors import NotFound
from headway.money import MICROS_A_USD, micros_to_usd, picos_to_usd, usd_to_micros
from tenants.services.tenants import tenant_named


class Command(HeadwayCommand):
    help = "Take credit away from a tenant, once nothing that runs can need it; or (--grant) because it is paid back."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")
        parser.add_argument("--usd", required=True, help="how much, in US dollars")
        parser.add_argument("--reason", required=True)
        parser.add_argument("--grant", metavar="ID", help="what was paid in advance and is paid back (see balance)")
        parser.add_argument("--reference", default="", help="of what it is taken for: it is taken once")

    def handle(
        self, *, tenant: str, usd: str, reason: str, grant: str | None, reference: str, json: bool, **_options: Any
    ) -> None:
        found = tenant_named(tenant)
        amount_micros = usd_to_micros(usd, param="--usd", max_usd=MAX_GRANT_MICROS // MICROS_A_USD)
        common: dict[str, Any] = {"tenant_id": found.id, "amount_micros": amount_micros, "reason": reason}
        common |= {"reference": reference, "actor": actor()}
        hold = debit_balance(**common) if grant is None else refund_credit(grant=_grant(grant), **common)
        left = picos_to_usd(balance_of(found.id).left_picos)
        line = f"{found.name}: ${micros_to_usd(hold.amount_micros)} taken, ${left} left"
        self.print_result(line, {"hold": str(hold.id), "left_usd": left}, as_json=json)


def _grant(grant_id: str) -> Any:
    try:
        found = grant_with_id(grant_id)
    except ValidationError:  # no id at all
        found = None
    if found is None:
        raise NotFound(f"there is no grant {grant_id!r}", param="--grant")
    return found

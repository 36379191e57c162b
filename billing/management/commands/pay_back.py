from typing import Any

from django.core.management.base import CommandParser

from billing.management.commands.mark_paid import minor_of
from billing.services.invoices import invoice_numbered
from billing.services.payments import pay_back
from headway.command import HeadwayCommand, actor
from headway.currencies import minor_to_text
from headway.dates import day_named


class Command(HeadwayCommand):
    help = "Note a bank transfer to a customer of what is owed back of an invoice. The same reference again changes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("number", help="such as INV-000007")
        parser.add_argument("--reference", required=True, help="what the bank calls the transfer")
        parser.add_argument(
            "--amount", metavar="AMOUNT", help="in the invoice's currency, such as 12.50 (all that is owed back)"
        )
        parser.add_argument("--on", dest="day", metavar="YYYY-MM-DD", help="when it was paid out (today)")

    def handle(self, *, number: str, reference: str, amount: str | None, day: str | None, json: bool, **_options: Any) -> None:
        currency = invoice_numbered(number).currency
        minor = None if amount is None else minor_of(amount, currency)
        on = day_named(day, param="--on") if day else None
        payment = pay_back(number=number, reference=reference, amount_minor=minor, paid_on=on, actor=actor())
        paid, owed = (minor_to_text(-each, currency) for each in (payment.amount_minor, invoice_numbered(number).due_minor))
        data = {"number": number, "paid_back": paid, "owed_back": owed, "currency": currency}
        self.print_result(f"{number}: {paid} {currency} paid back, {owed} still owed", data, as_json=json)

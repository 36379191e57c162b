from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import CommandParser

from billing.services.invoices import invoice_numbered
from billing.services.payments import mark_paid
from headway.command import HeadwayCommand, actor
from headway.currencies import MINOR_DIGITS, minor_to_text
from headway.errors import InvalidInput


class Command(HeadwayCommand):
    help = "Count a bank transfer for an invoice. The same reference again changes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("number", help="such as INV-000007")
        parser.add_argument("--reference", required=True, help="what the bank calls the transfer")
        parser.add_argument("--amount", metavar="AMOUNT", help="in the invoice's currency, such as 12.50 (all that is due)")

    def handle(self, *, number: str, reference: str, amount: str | None, json: bool, **_options: Any) -> None:
        currency = invoice_numbered(number).currency
        minor = None if amount is None else minor_of(amount, currency)
        payment = mark_paid(number=number, reference=reference, amount_minor=minor, actor=actor())
        invoice = invoice_numbered(number)
        data = {
            "number": number,
            "state": invoice.state,
            "counted": minor_to_text(payment.amount_minor, currency),
            "due": minor_to_text(invoice.due_minor, currency),
            "currency": currency,
        }
        line = f"{number}: {data['counted']} {currency} counted, {data['due']} due: {invoice.state}"
        self.print_result(line, data, as_json=json)


def minor_of(text: str, currency: str) -> int:
    digits = MINOR_DIGITS[currency]
    try:
        minor = Decimal(text).scaleb(digits)
    except InvalidOperation:
        raise InvalidInput(f"--amount must be a decimal number: {text!r}", param="amount") from None
    if not minor.is_finite() or minor != minor.to_integral_value():
        raise InvalidInput(f"--amount must have at most {digits} decimals in {currency}: {text!r}", param="amount")
    return int(minor)

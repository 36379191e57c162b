"""What the API takes and gives of money. Amounts are decimal numbers as text."""

from typing import Any

from rest_framework import serializers as s

from billing.api.amounts import AmountText
from billing.invoice_models import InvoiceState, LineKind

USD = 'US dollars, exactly, as text: "0.0000015"'
MINOR = 'in the currency, with its digits, as text: "12.30"'
PER_MILLION = 'US dollars per million tokens, as text: "0.15"'


def text(help_text: str = "", **options: Any) -> s.CharField:
    return s.CharField(help_text=help_text, **options)


class AccountFields(s.Serializer):
    legal_name = s.CharField(required=False, allow_blank=True, max_length=200)
    address = s.ListField(
        child=s.CharField(max_length=100), required=False, max_length=6, help_text="lines, without the country"
    )
    country = s.CharField(required=False, allow_blank=True, max_length=2, help_text="ISO 3166")
    tax_id = s.CharField(required=False, allow_blank=True, max_length=40)
    email = s.CharField(required=False, allow_blank=True, max_length=254, help_text="where invoices are mailed to")
    purchase_order = s.CharField(required=False, allow_blank=True, max_length=64)
    currency = s.CharField(required=False, max_length=3, help_text="ISO 4217; one that has an exchange rate here")


class AccountShape(s.Serializer):
    legal_name = s.CharField(help_text="blank: the organisation's name")
    address = s.ListField(child=s.CharField())
    country = s.CharField()
    tax_id = s.CharField()
    email = s.CharField()
    purchase_order = s.CharField()
    currency = s.CharField()


class LineShape(s.Serializer):
    position = s.IntegerField()
    kind = s.ChoiceField(LineKind.choices)
    label = s.CharField()
    model = s.CharField()
    tier = s.CharField()
    token_kind = s.CharField()
    price_version = s.CharField()
    discount_percent = s.IntegerField()
    is_late = s.BooleanField(help_text="used before the month began, told after its own was closed")
    requests = s.IntegerField()
    tokens = s.IntegerField(allow_null=True)
    usd_per_million_tokens = text(PER_MILLION, allow_null=True)
    amount_usd = text(f"{USD}; null of taxes", allow_null=True)
    amount = text(f"rounded once, {MINOR}")


class NextInvoiceShape(s.Serializer):
    month = s.CharField(help_text="YYYY-MM")
    time_zone = s.CharField()
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField(help_text="the first instant that is not of it")
    as_of = s.DateTimeField()
    currency = s.CharField()
    lines = LineShape(many=True)
    ledger_usd = text(f"usage and adjustments: {USD}")
    subtotal = text(MINOR)
    tax = text(MINOR)
    total = text(MINOR)


class InvoiceShape(s.Serializer):
    number = s.CharField()
    month = s.CharField(help_text="YYYY-MM")
    state = s.ChoiceField(InvoiceState.choices)
    state_reason = s.CharField()
    currency = s.CharField()
    subtotal = text(MINOR)
    tax = text(MINOR)
    total = text(MINOR)
    credited = text(f"by credit notes, {MINOR}")
    paid = text(MINOR)
    due = text(f"below zero: what is owed to you; {MINOR}")
    issued_on = s.DateField()
    due_on = s.DateField()
    paid_at = s.DateTimeField(allow_null=True)


class InvoicesAsked(s.Serializer):
    state = s.ChoiceField(InvoiceState.choices, required=False)


class LinePartShape(s.Serializer):
    request_id = s.CharField()
    ended_at = s.DateTimeField()
    model = s.CharField()
    key_id = s.CharField()
    tokens = s.IntegerField(allow_null=True, help_text="of the line's kind")
    amount_usd = text(f"what it brings to the line: {USD}")


class CreditNoteShape(s.Serializer):
    number = s.CharField()
    invoice = s.CharField(help_text="its number")
    reason = s.CharField()
    currency = s.CharField()
    subtotal = text(MINOR)
    tax = text(MINOR)
    total = text(f"what is taken back, {MINOR}")
    issued_on = s.DateField()


class BalanceShape(s.Serializer):
    is_prepaid = s.BooleanField(help_text="requests run against what is left, and stop where it ends")
    left_usd = text(USD)
    held_usd = text(f"set aside: {USD}")
    overdrawn_usd = text(USD)
    next_expiry_at = s.DateTimeField(allow_null=True)
    next_expiry_usd = text(f"what expires then: {USD}")
    as_of = s.DateTimeField()


class GrantShape(s.Serializer):
    id = s.UUIDField()
    kind = s.CharField()
    reason = s.CharField()
    amount_usd = text(USD)
    left_usd = text(USD)
    created_at = s.DateTimeField()
    expires_at = s.DateTimeField(allow_null=True)
    ended_at = s.DateTimeField(allow_null=True, help_text="when what was left of it was taken away")


class TopUpFields(s.Serializer):
    is_enabled = s.BooleanField()
    threshold_usd = AmountText(help_text="filled when less is left")
    amount_usd = AmountText(help_text="by so much")
    monthly_cap_usd = AmountText(help_text="at most in a month")


class TopUpShape(s.Serializer):
    is_enabled = s.BooleanField()
    threshold_usd = text(f"{USD}; null: it was never set", allow_null=True)
    amount_usd = text(USD, allow_null=True)
    monthly_cap_usd = text(USD, allow_null=True)


class PriceShape(s.Serializer):
    model = s.CharField()
    tier = s.CharField(help_text="blank: every tier that has no price of its own")
    version = s.IntegerField()
    input_usd_per_million = text(PER_MILLION)
    cached_input_usd_per_million = text(PER_MILLION)
    output_usd_per_million = text(PER_MILLION)
    effective_from = s.DateTimeField()
    is_in_force = s.BooleanField(help_text="false: it will be, from that time on")


class PricesShape(s.Serializer):
    discount_percent = s.IntegerField(help_text="your plan's, off each list price")
    results = PriceShape(many=True)

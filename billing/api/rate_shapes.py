"""What the API takes and gives of rates, what machines cost, and requests that are rated again."""

from rest_framework import serializers as s

from billing.api.amounts import AmountText
from billing.api.shapes import USD, text

UNTOUCHED = "rates are never changed: a new one takes over"


class TaxRatesAsked(s.Serializer):
    country = s.CharField(required=False, max_length=2, help_text="ISO 3166")


class NewTaxRate(s.Serializer):
    country = s.CharField(max_length=2, help_text="ISO 3166")
    name = s.CharField(required=False, default="VAT", max_length=32, help_text="as invoices print it")
    percent = AmountText(help_text='as text, at most two decimals: "19"')
    effective_from = s.DateField(help_text=f"the first day it holds; {UNTOUCHED}")


class TaxRateShape(s.Serializer):
    id = s.IntegerField()
    country = s.CharField()
    name = s.CharField()
    percent = text('as text: "19.00"')
    effective_from = s.DateField()
    created_at = s.DateTimeField()


class ExchangeRatesAsked(s.Serializer):
    currency = s.CharField(required=False, max_length=3, help_text="ISO 4217")


class NewExchangeRate(s.Serializer):
    currency = s.CharField(max_length=3, help_text="ISO 4217")
    rate = AmountText(help_text='units of it for one US dollar, as text, at most nine decimals: "0.92"')
    effective_from = s.DateField(help_text=f"the first day it holds; {UNTOUCHED}")


class ExchangeRateShape(s.Serializer):
    id = s.IntegerField()
    currency = s.CharField()
    rate = text('units of it for one US dollar, as text: "0.92"')
    effective_from = s.DateField()
    created_at = s.DateTimeField()


class NewGpuCost(s.Serializer):
    machine_kind = s.CharField(
        required=False, default="", allow_blank=True, max_length=100, help_text='"external" of replicas by URL; or `model`'
    )
    model = s.CharField(
        required=False, default="", allow_blank=True, max_length=200, help_text="stands before its machines' cost"
    )
    usd_an_hour = AmountText(help_text="that one replica exists, as text, at most six decimals")
    effective_from = s.DateTimeField(
        required=False, allow_null=True, default=None, help_text="null: from now on; costs are never changed"
    )


class GpuCostShape(s.Serializer):
    id = s.IntegerField()
    machine_kind = s.CharField(help_text="blank: of a model")
    model = s.CharField(help_text="blank: of a kind of machine")
    usd_an_hour = text(USD)
    effective_from = s.DateTimeField()
    created_at = s.DateTimeField()


class ReRatingTried(s.Serializer):
    model = s.CharField(max_length=200)
    price_version = s.IntegerField(min_value=1, max_value=2**31 - 1, help_text="of the price they are to have")
    starts_at = s.DateTimeField(help_text="of requests that ended then or later")
    ends_at = s.DateTimeField(help_text="the first instant that is not of it")
    tenant = s.CharField(required=False, allow_null=True, default=None, max_length=63, help_text="of one tenant only: its name")


class NewReRating(ReRatingTried):
    reason = s.CharField(max_length=500, help_text="shown beside the amounts")
    reference = s.CharField(
        max_length=200, required=False, default="", allow_blank=True, help_text="given twice, it is one re-rating"
    )


class TriedShape(s.Serializer):
    requests = s.IntegerField()
    was_usd = text(f"what they cost now, with all adjustments; {USD}")
    would_usd = text(USD)
    more_usd = text(f"the difference; below zero: they would cost less; {USD}")


class TriedTenantShape(TriedShape):
    tenant = s.CharField()


class ReRatingDryRunShape(s.Serializer):
    rows = TriedTenantShape(many=True, help_text="by tenant, those that it changes most first")
    total = TriedShape()


class ReRatingShape(s.Serializer):
    id = s.IntegerField()
    model = s.CharField()
    price_version = s.IntegerField()
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()
    tenant = s.CharField(allow_null=True, help_text="null: of all")
    reason = s.CharField()
    reference = s.CharField()
    actor = s.CharField()
    requests_total = s.IntegerField(allow_null=True, help_text="when it was asked for; null: not counted yet")
    requests = s.IntegerField(help_text="that were looked at")
    adjusted = s.IntegerField()
    amount_usd = text(f"below zero: they cost less now; {USD}")
    created_at = s.DateTimeField()
    moved_at = s.DateTimeField(allow_null=True, help_text="when it last came further")
    ended_at = s.DateTimeField(
        allow_null=True, help_text="null: a worker is at it, or it was cut off: post it again with its reference to carry it on"
    )

"""What the operators' part of the API takes and gives. Amounts are decimal numbers as text."""

from rest_framework import serializers as s

from billing.api.amounts import AmountText
from billing.api.shapes import MINOR, PER_MILLION, USD, InvoiceShape, text
from billing.closing_models import ClosingState
from billing.invoice_models import InvoiceState
from billing.models import AdjustmentKind, GrantKind, Verdict
from billing.services.prices import TIERS
from billing.services.reports import DIMENSIONS, GRANULARITIES

MADE_BY_HAND = [kind for kind in AdjustmentKind.choices if kind[0] != AdjustmentKind.LATE_RECORD]
MONTH = "YYYY-MM"


class TenantsAsked(s.Serializer):
    q = s.CharField(required=False, max_length=100, help_text="a part of the name, or the whole id")
    state = s.ChoiceField(["active", "suspended"], required=False)


class OperatorTenantShape(s.Serializer):
    id = s.UUIDField()
    name = s.CharField()
    plan = s.CharField()
    time_zone = s.CharField()
    created_at = s.DateTimeField()
    suspended_at = s.DateTimeField(allow_null=True)
    month = s.CharField(help_text="that runs where the tenant is")
    month_spend_usd = text(f"in it: {USD}")
    is_prepaid = s.BooleanField()
    balance_usd = text(f"what grants have left: {USD}")


class Reason(s.Serializer):
    reason = s.CharField(max_length=300)


class OperatorPlanChoice(s.Serializer):
    plan = s.CharField(max_length=63)


class NewGrant(s.Serializer):
    amount_usd = AmountText(help_text="at most six decimals")
    kind = s.ChoiceField(GrantKind.choices)
    reason = s.CharField(max_length=500, help_text="the customer reads it")
    reference = s.CharField(max_length=200, required=False, default="", help_text="given twice, it is one grant")
    expires_at = s.DateTimeField(required=False, allow_null=True, default=None)


class NewDebit(s.Serializer):
    amount_usd = AmountText(help_text="at most six decimals")
    reason = s.CharField(max_length=500)
    reference = s.CharField(max_length=200, required=False, default="", help_text="given twice, it is taken once")
    grant = s.UUIDField(required=False, allow_null=True, default=None, help_text="what was paid in advance and is paid back")


class DebitShape(s.Serializer):
    id = s.UUIDField()
    state = s.CharField()
    amount_usd = text(USD)
    reason = s.CharField()
    reference = s.CharField()
    left_usd = text(f"of the balance, afterwards: {USD}")


class PricesAsked(s.Serializer):
    model = s.CharField(required=False, max_length=200)


class PriceTried(s.Serializer):
    model = s.CharField(max_length=200)
    tier = s.ChoiceField(TIERS, required=False, default="", allow_blank=True, help_text="blank: all without one of their own")
    input_usd_per_million = AmountText(help_text=PER_MILLION)
    cached_input_usd_per_million = AmountText(required=False, default=None, allow_null=True, help_text="null: as input")
    output_usd_per_million = AmountText(help_text=PER_MILLION)


class NewPrice(PriceTried):
    effective_from = s.DateTimeField(required=False, allow_null=True, default=None, help_text="null: at once")
    is_confirmed = s.BooleanField(
        required=False, default=False, help_text="a hundred times what holds, or a hundredth, is meant"
    )


class DryRunAsked(PriceTried):
    month = s.CharField(max_length=7, required=False, help_text=f"{MONTH}; the last one (UTC) unless told")


class DryRunRowShape(s.Serializer):
    tenant = s.CharField()
    tier = s.CharField()
    requests = s.IntegerField()
    was_usd = text(USD)
    would_be_usd = text(USD)


class DryRunShape(s.Serializer):
    model = s.CharField()
    month = s.CharField()
    requests = s.IntegerField()
    was_usd = text(USD)
    would_be_usd = text(USD)
    rows = DryRunRowShape(many=True)


class OperatorInvoicesAsked(s.Serializer):
    state = s.ChoiceField(InvoiceState.choices, required=False)
    month = s.CharField(required=False, max_length=7, help_text=MONTH)
    tenant = s.CharField(required=False, max_length=63, help_text="its name")


class OperatorInvoiceShape(InvoiceShape):
    tenant = s.CharField()


class NewPayment(s.Serializer):
    reference = s.CharField(max_length=200, help_text="what the bank calls it; counted once")
    amount = AmountText(required=False, default=None, allow_null=True, help_text=f"all that is due unless told; {MINOR}")


class NewRefund(s.Serializer):
    reference = s.CharField(max_length=200, help_text="what the bank calls the transfer; counted once")
    amount = AmountText(required=False, default=None, allow_null=True, help_text=f"all that is owed back unless told; {MINOR}")
    paid_on = s.DateField(required=False, allow_null=True, default=None, help_text="the day in the tenant's zone; null: today")


class PaymentShape(s.Serializer):
    reference = s.CharField()
    provider = s.CharField()
    amount = text(f"below zero: paid back; {MINOR}")
    paid_at = s.DateTimeField()
    actor = s.CharField()


class CreditedLine(s.Serializer):
    position = s.IntegerField(min_value=1, max_value=10**6)
    amount = AmountText(help_text=f"before tax, {MINOR}")


class TakenBack(Reason):
    reference = s.CharField(
        max_length=200, required=False, default="", allow_blank=True, help_text="given twice, it is one note"
    )


class NewCreditNote(TakenBack):
    lines = CreditedLine(many=True, allow_empty=False)


class TenantMonthShape(s.Serializer):
    tenant = s.CharField()
    spent_usd = text(USD)
    is_over = s.BooleanField(help_text="the month, in the tenant's time zone")
    is_closed = s.BooleanField()
    invoice = s.CharField(allow_null=True)
    missing = s.ListField(child=s.CharField())


class MonthShape(s.Serializer):
    month = s.CharField()
    missing = s.ListField(child=s.CharField(), help_text="settings that invoices are made with")
    can_close = s.BooleanField()
    tenants = TenantMonthShape(many=True)


class NewClosing(s.Serializer):
    month = s.CharField(max_length=7, help_text=MONTH)


class ClosingFailure(s.Serializer):
    tenant_id = s.UUIDField()
    reason = s.CharField()


class ClosingShape(s.Serializer):
    id = s.IntegerField()
    month = s.CharField()
    state = s.ChoiceField(ClosingState.choices)
    actor = s.CharField()
    tenants_total = s.IntegerField(allow_null=True)
    tenants_done = s.IntegerField()
    closed = s.IntegerField(help_text="by this run")
    invoices = s.IntegerField()
    closed_before = s.IntegerField()
    num_failed = s.IntegerField()
    failed = ClosingFailure(many=True, help_text="the first of those that stay open")
    created_at = s.DateTimeField()
    ended_at = s.DateTimeField(allow_null=True)


class ReportAsked(s.Serializer):
    first = s.DateField(required=False, help_text="the first of the month unless told")
    last = s.DateField(required=False, help_text="it is in the range; today unless told")
    zone = s.CharField(required=False, max_length=64, default="UTC", help_text='or "own": each tenant\'s calendar')
    granularity = s.ChoiceField(GRANULARITIES, required=False, default="day")
    group_by = s.CharField(required=False, default="tenant", allow_blank=True, help_text=f"some of {','.join(DIMENSIONS)}")
    model = s.CharField(required=False, max_length=200, default="")
    tenant = s.CharField(required=False, max_length=63, help_text="its name")


class ReportSums(s.Serializer):
    requests = s.IntegerField()
    errors = s.IntegerField()
    input_tokens = s.IntegerField()
    cached_tokens = s.IntegerField()
    output_tokens = s.IntegerField()
    revenue_usd = text(f"after discounts, before credits and tax: {USD}")
    with_first_token = s.IntegerField()
    ttft_within_500_ms = s.IntegerField()
    with_two_tokens = s.IntegerField()
    gap_under_50_ms = s.IntegerField()


class ReportRowShape(ReportSums):
    bucket = s.CharField(help_text=f"YYYY-MM-DD, or {MONTH}")
    group = s.DictField(child=s.CharField(), help_text="of tenants their names")


class ReportShape(s.Serializer):
    first = s.DateField()
    last = s.DateField()
    zone = s.CharField()
    granularity = s.CharField()
    total = ReportSums()
    rows = ReportRowShape(many=True)


class MarginAsked(s.Serializer):
    first = s.DateField(required=False, help_text="the first of the month unless told")
    last = s.DateField(required=False, help_text="it is in the range; today unless told")
    zone = s.CharField(required=False, max_length=64, default="UTC", help_text='or "own"')
    model = s.CharField(required=False, max_length=200, default="")
    tenant = s.CharField(required=False, max_length=63, help_text="its name")


class MarginShape(s.Serializer):
    name = s.CharField()
    revenue_usd = text(USD)
    cost_usd = text(USD)
    margin_usd = text(USD)


class ModelMarginShape(MarginShape):
    replica_hours = s.FloatField()
    hours_without_cost = s.FloatField(help_text="for which no cost is set: missing in the cost")


class MarginsShape(s.Serializer):
    first = s.DateField()
    last = s.DateField()
    zone = s.CharField()
    models = ModelMarginShape(many=True)
    tenants = MarginShape(many=True)
    idle_usd = text(f"what models cost that nobody used: {USD}")


class ReconciliationShape(s.Serializer):
    id = s.IntegerField()
    day = s.DateField(allow_null=True, help_text="of the daily one")
    asked_by = s.CharField()
    started_at = s.DateTimeField()
    finished_at = s.DateTimeField(allow_null=True, help_text="null: it runs, or was cut off")
    is_clean = s.BooleanField(allow_null=True, help_text="null: not known yet")
    incarnations = s.IntegerField(help_text="starts of engines that were compared")
    not_counted = s.IntegerField()
    unexplained_prompt_tokens = s.IntegerField()
    unexplained_completion_tokens = s.IntegerField()
    inconsistent_requests = s.IntegerField()


class FindingShape(s.Serializer):
    replica = s.CharField()
    replica_epoch = s.IntegerField()
    pool = s.CharField()
    counted_at = s.DateTimeField(allow_null=True)
    verdict = s.ChoiceField(Verdict.choices)
    reason = s.CharField()
    engine_prompt_tokens = s.IntegerField()
    engine_completion_tokens = s.IntegerField()
    low_prompt_tokens = s.IntegerField(help_text="what is explained: from")
    high_prompt_tokens = s.IntegerField(help_text="to")
    low_completion_tokens = s.IntegerField()
    high_completion_tokens = s.IntegerField()
    unexplained_prompt_tokens = s.IntegerField(help_text="above zero: the engine counted more")
    unexplained_completion_tokens = s.IntegerField()
    causes = s.DictField(child=s.DictField(child=s.IntegerField()))
    inconsistent_requests = s.ListField(child=s.CharField())


class OneReconciliationShape(ReconciliationShape):
    findings = FindingShape(many=True)


class AdjustmentsAsked(s.Serializer):
    tenant = s.CharField(required=False, max_length=63, help_text="its name")
    month = s.CharField(required=False, max_length=7, help_text=f"billing month, {MONTH}")
    request_id = s.CharField(required=False, max_length=64)
    kind = s.ChoiceField(AdjustmentKind.choices, required=False)


class NewAdjustment(s.Serializer):
    tenant = s.CharField(max_length=63, help_text="its name")
    request_id = s.CharField(
        max_length=64, required=False, allow_null=True, default=None, help_text="null: goodwill for nothing"
    )
    amount_usd = AmountText(help_text="below zero: taken off; at most twelve decimals")
    kind = s.ChoiceField(MADE_BY_HAND)
    reason = s.CharField(max_length=500)
    reference = s.CharField(
        max_length=200, required=False, default="", allow_blank=True, help_text="given twice, it is one adjustment"
    )


class AdjustmentShape(s.Serializer):
    id = s.IntegerField()
    tenant = s.CharField()
    request_id = s.CharField(help_text="blank: of no request")
    kind = s.ChoiceField(AdjustmentKind.choices)
    amount_usd = text(USD)
    billing_month = s.CharField(help_text="whose statement it is on")
    model = s.CharField()
    reason = s.CharField()
    reference = s.CharField()
    actor = s.CharField()
    created_at = s.DateTimeField()

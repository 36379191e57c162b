"""Statements of months, the invoices made of them, what was credited and paid, and the documents as they were issued.

None of it is edited once it is written, but for an invoice's state and its sums of what was credited and paid.
"""

from django.db import models
from django.db.models import F, Q

from headway.picos_field import PicosField


class LineKind(models.TextChoices):
    USAGE = "usage"
    DISCOUNT = "discount"
    ROUNDING = "rounding"  # of records from before amounts were exact
    ADJUSTMENT = "adjustment"
    CARRIED_IN = "carried_in"  # what an earlier statement owed the customer
    CREDIT = "credit"
    CARRIED_OUT = "carried_out"  # what this one owes, kept for the next
    TAX = "tax"


class TokenKind(models.TextChoices):
    INPUT = "input"
    CACHED = "cached_input"
    OUTPUT = "output"


class Statement(models.Model):
    """A tenant's closed month: it is there if and only if the month is closed."""

    tenant_id = models.UUIDField()
    month = models.CharField(max_length=7, help_text="YYYY-MM")
    time_zone = models.CharField(max_length=64, help_text="whose month it is")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(help_text="the first instant that is not of it")
    currency = models.CharField(max_length=3)
    minor_digits = models.PositiveSmallIntegerField()
    rate_nanos = models.BigIntegerField(help_text="billionths of the currency's unit for one US dollar")
    ledger_picos = PicosField(help_text="usage records and adjustments of the month")
    credit_picos = PicosField(help_text="of it, what credits paid")
    carried_in_picos = PicosField(default=0)
    carried_out_picos = PicosField(default=0)
    subtotal_minor = models.BigIntegerField(help_text="the sum of the lines but for tax")
    tax_minor = models.BigIntegerField()
    total_minor = models.BigIntegerField()
    closed_at = models.DateTimeField()
    closed_by = models.CharField(max_length=200)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant_id", "month"), name="one_statement_per_tenant_and_month"),)

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.month}"


class StatementLine(models.Model):
    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="lines")
    position = models.PositiveIntegerField()
    kind = models.CharField(max_length=16, choices=LineKind.choices)
    label = models.CharField(max_length=300)
    model = models.CharField(max_length=200, blank=True)
    tier = models.CharField(max_length=16, blank=True)
    token_kind = models.CharField(max_length=16, choices=TokenKind.choices, blank=True)
    price_version = models.CharField(max_length=64, blank=True)
    discount_percent = models.PositiveSmallIntegerField(default=0, help_text="of a discount line")
    is_late = models.BooleanField(default=False, help_text="used before the month began, told after its own was closed")
    source = models.CharField(max_length=600, blank=True, help_text="a grant's id; an adjustment's kind and reason")
    requests = models.BigIntegerField(default=0, help_text="how many it is of")
    quantity_tokens = models.BigIntegerField(null=True)
    unit_picos = models.BigIntegerField(null=True, help_text="pico-dollars a token: the list price")
    amount_picos = PicosField(null=True, help_text="exact, in US dollars; null: a tax, which is of rounded lines")
    amount_minor = models.BigIntegerField(help_text="rounded, in the statement's currency")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("statement", "position"), name="one_line_per_statement_and_position"),)
        ordering = ("position",)

    def __str__(self) -> str:
        return f"{self.label}: {self.amount_minor}"


class InvoiceState(models.TextChoices):
    DRAFT = "draft"
    OPEN = "open"
    PAID = "paid"
    VOID = "void"
    UNCOLLECTIBLE = "uncollectible"


class NumberSeries(models.Model):
    """The last number of a series. Taken in the transaction that uses it, so there are no gaps."""

    name = models.CharField(max_length=32, primary_key=True)
    last_number = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name} {self.last_number}"


class Invoice(models.Model):
    statement = models.OneToOneField(Statement, on_delete=models.PROTECT, related_name="invoice")
    tenant_id = models.UUIDField()
    state = models.CharField(max_length=16, choices=InvoiceState.choices, default=InvoiceState.DRAFT)
    state_reason = models.CharField(max_length=300, blank=True)
    number = models.CharField(max_length=32, null=True, unique=True, help_text="null: a draft")
    currency = models.CharField(max_length=3)
    subtotal_minor = models.BigIntegerField()
    tax_minor = models.BigIntegerField()
    total_minor = models.BigIntegerField()
    credited_minor = models.BigIntegerField(default=0, help_text="by credit notes, tax included")
    paid_minor = models.BigIntegerField(default=0)
    seller = models.JSONField(help_text="name, address, country, tax id, e-mail and bank details, as they were")
    buyer = models.JSONField(help_text="the billing account as it was, and the tenant's name")
    tax_treatment = models.CharField(max_length=16)
    tax_basis_points = models.PositiveIntegerField(default=0)
    notes = models.JSONField(default=list)
    issued_at = models.DateTimeField(null=True)
    issued_on = models.DateField(null=True, help_text="the day in the tenant's time zone")
    due_on = models.DateField(null=True)
    paid_at = models.DateTimeField(null=True)
    provider = models.CharField(max_length=32, blank=True)
    provider_reference = models.CharField(max_length=200, blank=True)
    mailed_at = models.DateTimeField(null=True)

    class Meta:
        indexes = (models.Index(fields=("tenant_id", "-id"), name="invoices_by_tenant"),)
        constraints = (
            models.CheckConstraint(
                condition=Q(credited_minor__gte=0) & Q(credited_minor__lte=F("total_minor")), name="credited_at_most_whole"
            ),
            models.CheckConstraint(condition=Q(total_minor=F("subtotal_minor") + F("tax_minor")), name="invoices_add_up"),
            models.CheckConstraint(
                condition=Q(state=InvoiceState.DRAFT, number=None) | (~Q(state=InvoiceState.DRAFT) & Q(number__isnull=False)),
                name="issued_invoices_have_numbers",
            ),
        )

    def __str__(self) -> str:
        return self.number or f"draft {self.id}"

    @property
    def due_minor(self) -> int:
        """What is still to be paid; below zero: what is owed back (payments.pay_back)."""
        return self.total_minor - self.credited_minor - self.paid_minor


class CreditNote(models.Model):
    """Takes back an invoice, or part of it. Its amounts are what is taken back: above zero."""

    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="credit_notes")
    tenant_id = models.UUIDField()
    number = models.CharField(max_length=32, unique=True)
    reason = models.CharField(max_length=300)
    reference = models.CharField(max_length=200, blank=True, help_text="of what it is issued for, once")
    subtotal_minor = models.BigIntegerField()
    tax_minor = models.BigIntegerField()
    total_minor = models.BigIntegerField()
    issued_at = models.DateTimeField()
    issued_on = models.DateField(help_text="the day in the tenant's time zone")
    actor = models.CharField(max_length=200)
    mailed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.CheckConstraint(condition=Q(total_minor__gt=0), name="a_credit_note_takes_something_back"),
            models.UniqueConstraint(fields=("reference",), condition=~Q(reference=""), name="a_reference_takes_back_once"),
        )

    def __str__(self) -> str:
        return self.number


class CreditNoteLine(models.Model):
    credit_note = models.ForeignKey(CreditNote, on_delete=models.PROTECT, related_name="lines")
    line = models.ForeignKey(StatementLine, on_delete=models.PROTECT, related_name="+")
    amount_minor = models.BigIntegerField(help_text="with the sign of the line it takes back")

    def __str__(self) -> str:
        return f"{self.credit_note_id}: {self.amount_minor}"


class Payment(models.Model):
    """Money that came in for an invoice; below zero: that was paid back. One of a provider's references is counted once."""

    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="payments")
    provider = models.CharField(max_length=32)
    reference = models.CharField(max_length=200)
    amount_minor = models.BigIntegerField()
    paid_at = models.DateTimeField()
    actor = models.CharField(max_length=200)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("provider", "reference"), name="one_payment_per_reference"),)

    def __str__(self) -> str:
        return f"{self.provider} {self.reference}"


class BillingDocument(models.Model):
    """A document's bytes as they were first made: what is given out, whatever template or typst are later."""

    number = models.CharField(max_length=32, primary_key=True, help_text="of the invoice or credit note")
    pdf = models.BinaryField()
    sha256 = models.CharField(max_length=64)
    made_with = models.CharField(max_length=100, help_text="typst's version and the template's hash")
    made_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.number

"""What tenants have paid in advance, or were given: grants, what was used of them, holds on them, and the balance they make.

All of it is changed by one who holds the tenant's usage (`wait_for_writers`), so never two at once.
"""

import uuid

from django.db import models

from headway.picos_field import PicosField


class GrantKind(models.TextChoices):
    PREPAID = "prepaid", "Paid in advance"
    PROMOTION = "promotion", "Promotion"
    GOODWILL = "goodwill", "Goodwill"


class Grant(models.Model):
    """So much may be used, until when. What is left of it is `left_picos`, and what holds have set aside."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant_id = models.UUIDField()
    kind = models.CharField(max_length=16, choices=GrantKind.choices)
    amount_micros = models.BigIntegerField()
    left_picos = PicosField()
    held_picos = PicosField(default=0, help_text="set aside by holds: in left_picos no longer")
    expires_at = models.DateTimeField(null=True, help_text="from then on no new request may use it")
    reason = models.CharField(max_length=500)
    reference = models.CharField(max_length=200, blank=True, help_text="of what it was given for, once: a payment's id")
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, help_text="when what was left of it was taken away")

    class Meta:
        indexes = (models.Index(fields=("tenant_id", "ended_at"), name="grants_by_tenant"),)
        constraints = (
            models.UniqueConstraint(fields=("reference",), condition=~models.Q(reference=""), name="a_reference_grants_once"),
            models.CheckConstraint(condition=models.Q(amount_micros__gt=0), name="a_grant_gives_something"),
            models.CheckConstraint(condition=models.Q(left_picos__gte=0, held_picos__gte=0), name="a_grant_is_not_overdrawn"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class GrantUse(models.Model):
    """What usage of a billing month has used of a grant."""

    grant = models.ForeignKey(Grant, on_delete=models.PROTECT, related_name="uses")
    billing_month = models.CharField(max_length=7, help_text="YYYY-MM")
    amount_picos = PicosField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("grant", "billing_month"), name="one_use_per_grant_and_month"),
            models.CheckConstraint(condition=models.Q(amount_picos__gte=0), name="a_use_is_not_below_zero"),
        )

    def __str__(self) -> str:
        return f"{self.grant_id} {self.billing_month}"


class GrantReturn(models.Model):
    """What a correction on a billing month's statement has given back to a grant, of what it paid of another month."""

    grant = models.ForeignKey(Grant, on_delete=models.PROTECT, related_name="returns")
    billing_month = models.CharField(max_length=7, help_text="YYYY-MM: whose statement shows it")
    paid_month = models.CharField(max_length=7, help_text="YYYY-MM: whose usage the grant had paid")
    amount_picos = PicosField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("grant", "billing_month", "paid_month"), name="one_return_per_grant_and_months"),
            models.CheckConstraint(condition=models.Q(amount_picos__gt=0), name="a_return_gives_back_something"),
        )

    def __str__(self) -> str:
        return f"{self.grant_id} {self.paid_month} on {self.billing_month}"


class Balance(models.Model):
    """A tenant that has had grants, or pays in advance. What it may use is what its grants have left."""

    tenant_id = models.UUIDField(primary_key=True)
    spent_picos = PicosField(default=0, help_text="by usage records, of all time: it counts up")
    overdrawn_picos = PicosField(default=0, help_text="used by one who pays in advance, and covered by no grant")

    class Meta:
        constraints = (models.CheckConstraint(condition=models.Q(overdrawn_picos__gte=0), name="overdrawn_is_not_below_zero"),)

    def __str__(self) -> str:
        return str(self.tenant_id)


class BalanceEntry(models.Model):
    """What happened to a grant but for its use. Append-only: with the uses it adds up to what is left of the grant."""

    class Kind(models.TextChoices):
        GRANT = "grant", "Granted"
        EXPIRY = "expiry", "Expired"
        DEBIT = "debit", "Taken away"
        REFUND = "refund", "Paid back"

    id = models.BigAutoField(primary_key=True)
    tenant_id = models.UUIDField()
    grant = models.ForeignKey(Grant, on_delete=models.PROTECT, related_name="entries")
    kind = models.CharField(max_length=16, choices=Kind.choices)
    amount_picos = PicosField(help_text="signed: what is taken is below zero")
    reason = models.CharField(max_length=500, blank=True)
    actor = models.CharField(max_length=200)
    created_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "balance entries"
        indexes = (models.Index(fields=("tenant_id", "-id"), name="balance_entries_by_tenant"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.amount_picos}"


class Hold(models.Model):
    """Credit that is on its way out: set aside at once, taken when nothing that runs can need it, or given back."""

    class State(models.TextChoices):
        ASKED = "asked", "Set aside; not everyone counts it yet"
        HELD = "held", "Everyone counts it"
        TAKEN = "taken", "Gone"
        RELEASED = "released", "Given back"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant_id = models.UUIDField()
    kind = models.CharField(max_length=16, choices=BalanceEntry.Kind.choices)
    state = models.CharField(max_length=16, choices=State.choices, default=State.ASKED)
    amount_micros = models.BigIntegerField()
    reason = models.CharField(max_length=500)
    reference = models.CharField(max_length=200, blank=True, help_text="of what it is taken for, once")
    actor = models.CharField(max_length=200)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = (models.Index(fields=("state", "created_at"), name="holds_by_state"),)
        constraints = (
            models.UniqueConstraint(
                fields=("reference",),
                condition=~models.Q(reference="") & ~models.Q(state="released"),
                name="a_reference_takes_once",
            ),
            models.CheckConstraint(condition=models.Q(amount_micros__gt=0), name="a_hold_holds_something"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.id} {self.state}"


TRANSITIONS: dict[str, frozenset[str]] = {
    Hold.State.ASKED: frozenset({Hold.State.HELD, Hold.State.RELEASED}),
    Hold.State.HELD: frozenset({Hold.State.TAKEN, Hold.State.RELEASED}),
    Hold.State.TAKEN: frozenset(),
    Hold.State.RELEASED: frozenset(),
}


class HoldPart(models.Model):
    """What a hold has set aside of one grant."""

    hold = models.ForeignKey(Hold, on_delete=models.CASCADE, related_name="parts")
    grant = models.ForeignKey(Grant, on_delete=models.PROTECT, related_name="+")
    amount_picos = PicosField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("hold", "grant"), name="one_part_per_hold_and_grant"),)

    def __str__(self) -> str:
        return f"{self.hold_id} {self.grant_id}"


class TopUp(models.Model):
    """When a tenant wants its balance filled again, by how much, and how much at most in a month. See billing/top_up.py."""

    tenant_id = models.UUIDField(primary_key=True)
    is_enabled = models.BooleanField(default=False)
    threshold_micros = models.BigIntegerField(help_text="filled when less is left")
    amount_micros = models.BigIntegerField()
    monthly_cap_micros = models.BigIntegerField()

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=models.Q(amount_micros__gt=0, threshold_micros__gte=0)
                & models.Q(monthly_cap_micros__gte=models.F("amount_micros")),
                name="a_top_up_fits_its_cap",
            ),
        )

    def __str__(self) -> str:
        return str(self.tenant_id)

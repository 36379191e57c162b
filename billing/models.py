"""The ledger: usage records and adjustments, append-only; prices, append-only; what each tenant has spent in each month.

Money that was spent is whole pico-dollars, exactly; what was agreed on (a price) is whole micro-dollars.
"""

from django.db import models

from billing import (  # noqa: F401  more tables
    account_models,
    closing_models,
    export_models,
    gpu_cost_models,
    invoice_models,
    re_rating_models,
)
from billing.credit_models import Balance as Balance
from billing.credit_models import BalanceEntry as BalanceEntry
from billing.credit_models import Grant as Grant
from billing.credit_models import GrantKind as GrantKind
from billing.credit_models import GrantReturn as GrantReturn
from billing.credit_models import GrantUse as GrantUse
from billing.credit_models import Hold as Hold
from billing.credit_models import HoldPart as HoldPart
from billing.credit_models import TopUp as TopUp
from headway.picos_field import PicosField

TTFT_BOUNDS_MS = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)
TTFT_BUCKETS = (*(f"ttft_le_{bound}" for bound in TTFT_BOUNDS_MS), "ttft_more")


class UsageRecord(models.Model):
    """One request's usage, whatever its end. Never edited: a correction is an Adjustment.

    Names and ids are copied, not referenced: a record outlives what it points at.
    """

    id = models.BigAutoField(primary_key=True)
    request_id = models.CharField(max_length=64, unique=True)
    tenant_id = models.UUIDField(db_index=True)
    key_id = models.CharField(max_length=16)
    member_id = models.BigIntegerField(null=True)
    route = models.CharField(max_length=64)
    model = models.CharField(max_length=200)
    version = models.CharField(max_length=64, blank=True)
    pool = models.CharField(max_length=64, blank=True)
    replica = models.CharField(max_length=64, blank=True)
    replica_epoch = models.PositiveIntegerField(default=0, help_text="which start of its engine; 0: not known")
    tier = models.CharField(max_length=16)
    prompt_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    usage_source = models.CharField(max_length=16)
    queue_ms = models.PositiveIntegerField(default=0)
    ttft_ms = models.PositiveIntegerField(null=True)
    total_ms = models.PositiveIntegerField(default=0)
    finish_reason = models.CharField(max_length=32, blank=True)
    end_state = models.CharField(max_length=32)
    attempts = models.PositiveSmallIntegerField(default=0)
    route_reason = models.CharField(max_length=16, blank=True, help_text="why this replica")
    resumes = models.PositiveSmallIntegerField(default=0, help_text="how often it went on on another replica")
    is_resumed_exactly = models.BooleanField(default=True)
    parks = models.PositiveSmallIntegerField(default=0, help_text="how often it was parked for a more urgent request")
    price_version = models.CharField(max_length=64, blank=True)
    discount_percent = models.PositiveSmallIntegerField(default=0, help_text="off the list price: in the amount already")
    amount_picos = models.BigIntegerField(null=True, help_text="null: there was no price")
    billing_month = models.CharField(max_length=7, help_text="YYYY-MM: whose statement it is on (open_months)")
    gateway = models.CharField(max_length=64)
    journal_sequence = models.BigIntegerField()
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    recorded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = (
            models.Index(fields=("tenant_id", "ended_at"), name="usage_by_tenant_and_time"),
            models.Index(fields=("tenant_id", "billing_month"), name="usage_by_tenant_and_month"),
            models.Index(fields=("replica", "replica_epoch"), name="usage_by_engine"),
            models.Index(fields=("ended_at",), name="usage_by_time"),
        )

    def __str__(self) -> str:
        return f"{self.request_id} {self.end_state}"


class AttemptOutcome(models.TextChoices):
    """What an attempt says about the version, and the engine, that served it."""

    OK = "ok"
    FAILED = "failed"
    NEUTRAL = "neutral"


class Attempt(models.Model):
    """What one engine did for one request, where that is more than the request's record says.

    A request that was answered whole at its first attempt has none. Every other one that was dispatched has one for each
    attempt, the last among them. Tokens are what the engine said it had counted; `max_`: what it may have counted at most,
    unseen by the gateway.
    """

    request_id = models.CharField(max_length=64)
    number = models.PositiveSmallIntegerField(help_text="counts from 1 within a request")
    replica = models.CharField(max_length=64)
    replica_epoch = models.PositiveIntegerField()
    ending = models.CharField(max_length=32, help_text="parked, or an end state")
    model = models.CharField(max_length=200, blank=True)
    version = models.CharField(max_length=64, blank=True)
    outcome = models.CharField(max_length=16, blank=True, choices=AttemptOutcome.choices)
    ttft_ms = models.PositiveIntegerField(null=True, help_text="since it was dispatched; null: there was no token")
    inter_token_ms = models.FloatField(null=True, help_text="mean; null: there were not two tokens")
    prompt_tokens = models.PositiveIntegerField()
    completion_tokens = models.PositiveIntegerField()
    max_prompt_tokens = models.PositiveIntegerField()
    max_completion_tokens = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("request_id", "number"), name="one_row_per_attempt"),)
        indexes = (
            models.Index(fields=("replica", "replica_epoch"), name="attempts_by_engine"),
            models.Index(fields=("model", "version", "ended_at"), name="attempts_by_version"),
        )

    def __str__(self) -> str:
        return f"{self.request_id}-{self.number} {self.ending}"


class AdjustmentKind(models.TextChoices):
    CORRECTION = "correction", "Correction"
    RE_RATE = "re_rate", "Rated again"
    GOODWILL = "goodwill", "Goodwill"
    LATE_RECORD = "late_record", "A record that came after its month was closed"


class Adjustment(models.Model):
    """What is added to (or, below zero, taken off) what a usage record costs. Append-only, as the ledger is."""

    id = models.BigAutoField(primary_key=True)
    tenant_id = models.UUIDField()
    record = models.ForeignKey(
        UsageRecord, null=True, on_delete=models.PROTECT, related_name="adjustments", help_text="null: goodwill, for nothing"
    )
    kind = models.CharField(max_length=16, choices=AdjustmentKind.choices)
    amount_picos = models.BigIntegerField()
    reason = models.CharField(max_length=500)
    actor = models.CharField(max_length=200)
    reference = models.CharField(max_length=200, blank=True, help_text="of what it is made for, once")
    billing_month = models.CharField(max_length=7, help_text="YYYY-MM: whose statement it is on")
    usage_at = models.DateTimeField(help_text="when what it corrects ended: where usage over time counts it")
    # Of what it corrects.
    request_id = models.CharField(max_length=64, blank=True)
    key_id = models.CharField(max_length=16, blank=True)
    member_id = models.BigIntegerField(null=True)
    model = models.CharField(max_length=200, blank=True)
    version = models.CharField(max_length=64, blank=True)
    tier = models.CharField(max_length=16, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        indexes = (
            models.Index(fields=("tenant_id", "billing_month"), name="adjustments_by_month"),
            models.Index(fields=("tenant_id", "usage_at"), name="adjustments_by_time"),
        )
        constraints = (
            models.CheckConstraint(
                condition=models.Q(record__isnull=False) | models.Q(kind=AdjustmentKind.GOODWILL),
                name="an_adjustment_corrects_a_record",
            ),
            models.CheckConstraint(condition=~models.Q(amount_picos=0), name="an_adjustment_changes_something"),
            models.UniqueConstraint(
                fields=("record",), condition=models.Q(kind=AdjustmentKind.LATE_RECORD), name="a_record_comes_late_once"
            ),
            models.UniqueConstraint(fields=("reference",), condition=~models.Q(reference=""), name="a_reference_adjusts_once"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.request_id or self.tenant_id}"


class ClosedMonth(models.Model):
    """A tenant's month whose statement is made: no usage and no adjustment is stamped with it any more."""

    tenant_id = models.UUIDField()
    month = models.CharField(max_length=7, help_text="YYYY-MM")
    closed_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant_id", "month"), name="a_month_is_closed_once"),)

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.month}"


class Price(models.Model):
    """What a model's tokens cost from an instant on. Append-only: a new price is a new version.

    Micro-dollars per million tokens. A price of a tier stands before one for all tiers.
    """

    model = models.CharField(max_length=200, help_text="public id")
    tier = models.CharField(max_length=16, blank=True, help_text="blank: all tiers")
    version = models.PositiveIntegerField(help_text="counts up within a model")
    input_micros = models.BigIntegerField()
    cached_micros = models.BigIntegerField()
    output_micros = models.BigIntegerField()
    effective_from = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("model", "version"), name="one_price_per_model_and_version"),)

    def __str__(self) -> str:
        return f"{self.model} v{self.version}"


class MonthSpend(models.Model):
    """The sum of `amount_picos` of the usage records and adjustments that have a billing month.

    Of a whole tenant (key and model blank), of one of its keys, or of one model as it uses it. Changed in the transaction
    that inserts them, and nowhere else.
    """

    tenant_id = models.UUIDField()
    key_id = models.CharField(max_length=16, blank=True)
    model = models.CharField(max_length=200, blank=True)
    month = models.CharField(max_length=7, help_text="YYYY-MM")
    amount_picos = PicosField(default=0)
    # Of the amount, what never passed through a dispatcher. Both only count up.
    raised_picos = PicosField(default=0, db_default=0, help_text="by adjustments above zero")
    lowered_picos = PicosField(default=0, db_default=0, help_text="by adjustments below zero, and by cheaper final records")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant_id", "month", "key_id", "model"), name="one_row_per_month_and_scope"),
        )

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.month} {self.key_id or self.model}".rstrip()


class UsageSlot(models.Model):
    """The ledger's records of a span of time, added up: changed with the ledger (usage_slots), and nowhere else."""

    tenant_id = models.UUIDField()
    starts_at = models.DateTimeField()
    key_id = models.CharField(max_length=16)
    member_id = models.BigIntegerField(help_text="0: nobody's")
    model = models.CharField(max_length=200)
    version = models.CharField(max_length=64, blank=True)
    tier = models.CharField(max_length=16)
    newest_at = models.DateTimeField(help_text="when the newest of them ended")
    # Counts are 4 bytes wide: PostgreSQL adds those up in integers, and 8 byte ones in numerics, which takes twice as long.
    requests = models.IntegerField()
    errors = models.IntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    amount_picos = models.BigIntegerField()
    ttft_count = models.IntegerField()
    ttft_ms_sum = models.BigIntegerField()
    # How many first tokens came within so many milliseconds, each counted in one bucket.
    ttft_le_50 = models.IntegerField()
    ttft_le_100 = models.IntegerField()
    ttft_le_200 = models.IntegerField()
    ttft_le_400 = models.IntegerField()
    ttft_le_800 = models.IntegerField()
    ttft_le_1600 = models.IntegerField()
    ttft_le_3200 = models.IntegerField()
    ttft_le_6400 = models.IntegerField()
    ttft_le_12800 = models.IntegerField()
    ttft_more = models.IntegerField()
    # Of what reports hold against targets (usage_slots): exactly, whatever the buckets' bounds.
    ttft_on_target = models.IntegerField(default=0)
    gap_count = models.IntegerField(default=0, help_text="answers of two tokens or more: those with a gap between tokens")
    gap_on_target = models.IntegerField(default=0)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.starts_at:%Y-%m-%d %H:%M} {self.model}"


_GROUP = ("tenant_id", "starts_at", "key_id", "member_id", "model", "version", "tier")


class UsageQuarter(UsageSlot):
    """Of a quarter of an hour: every time zone's hours and days begin on one."""

    class Meta:
        constraints = (models.UniqueConstraint(fields=_GROUP, name="one_row_per_quarter_and_group"),)


class UsageHour(UsageSlot):
    """Of an hour of UTC: a quarter of the rows, for the zones (nearly all) that are whole hours away from it."""

    class Meta:
        constraints = (models.UniqueConstraint(fields=_GROUP, name="one_row_per_hour_and_group"),)
        indexes = (models.Index(fields=("starts_at",), name="hours_by_time"),)


class UsageDay(UsageSlot):
    """Of a day of the tenant's own calendar: made anew when its time zone changes (usage_days)."""

    class Meta:
        constraints = (models.UniqueConstraint(fields=_GROUP, name="one_row_per_day_and_group"),)
        indexes = (models.Index(fields=("starts_at",), name="days_by_time"),)


class Verdict(models.TextChoices):
    EXPLAINED = "explained", "Explained"
    UNEXPLAINED = "unexplained", "Unexplained drift"
    NOT_COUNTED = "not_counted", "Not counted"


class Reconciliation(models.Model):
    """One comparison of the ledger with the engines' own counters. Kept."""

    day = models.DateField(null=True, unique=True, help_text="of UTC, of the daily one; null: somebody asked for it")
    asked_by = models.CharField(max_length=200, blank=True, help_text="who waits for a worker to do it; blank: nobody does")
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, help_text="null: it runs, or was cut off")
    incarnations = models.PositiveIntegerField(default=0)
    not_counted = models.PositiveIntegerField(default=0)
    # Added up without their signs: too much here does not make up for too little there.
    unexplained_prompt_tokens = models.BigIntegerField(default=0)
    unexplained_completion_tokens = models.BigIntegerField(default=0)
    inconsistent_requests = models.PositiveIntegerField(default=0, help_text="whose record and attempts do not agree")

    class Meta:
        indexes = (models.Index(fields=("started_at",), name="reconciliations_by_time"),)

    def __str__(self) -> str:
        return f"{self.started_at:%Y-%m-%d %H:%M} {'clean' if self.is_clean else 'drift'}"

    @property
    def is_clean(self) -> bool:
        return not (self.unexplained_prompt_tokens or self.unexplained_completion_tokens or self.inconsistent_requests)


class ReconciliationFinding(models.Model):
    """Of one incarnation (start) of one engine."""

    reconciliation = models.ForeignKey(Reconciliation, on_delete=models.CASCADE, related_name="findings")
    replica = models.CharField(max_length=64)
    replica_epoch = models.PositiveIntegerField()
    pool = models.CharField(max_length=64, blank=True)
    counted_at = models.DateTimeField(null=True, help_text="as of when; null: it is not counted")
    verdict = models.CharField(max_length=16, choices=Verdict.choices)
    reason = models.CharField(max_length=500, blank=True)
    engine_prompt_tokens = models.BigIntegerField(default=0)
    engine_completion_tokens = models.BigIntegerField(default=0)
    # What ledger, attempts and the agent's own work explain: from, to.
    low_prompt_tokens = models.BigIntegerField(default=0)
    high_prompt_tokens = models.BigIntegerField(default=0)
    low_completion_tokens = models.BigIntegerField(default=0)
    high_completion_tokens = models.BigIntegerField(default=0)
    # Above zero: the engine has counted more than can be explained; below: less.
    unexplained_prompt_tokens = models.BigIntegerField(default=0)
    unexplained_completion_tokens = models.BigIntegerField(default=0)
    # {cause: {"count", "low_prompt_tokens", "high_prompt_tokens", "low_completion_tokens", "high_completion_tokens"}}
    causes = models.JSONField(default=dict)
    inconsistent_requests = models.JSONField(default=list, help_text="some of their ids")
    is_told = models.BooleanField(default=False, help_text="operators were told of this drift, now or before")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("reconciliation", "replica", "replica_epoch"), name="one_finding_per_incarnation"),
        )

    def __str__(self) -> str:
        return f"{self.replica} epoch {self.replica_epoch}: {self.verdict}"

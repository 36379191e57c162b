"""The ledger: usage records, append-only; prices, append-only; what each tenant has spent in each month."""

from django.db import models

TTFT_BOUNDS_MS = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)
TTFT_BUCKETS = (*(f"ttft_le_{bound}" for bound in TTFT_BOUNDS_MS), "ttft_more")


class UsageRecord(models.Model):
    """One request's usage, whatever its end. Never edited: a correction is an Adjustment (a later step).

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
    amount_micros = models.BigIntegerField(null=True)
    gateway = models.CharField(max_length=64)
    journal_sequence = models.BigIntegerField()
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    recorded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = (models.Index(fields=("tenant_id", "ended_at"), name="usage_by_tenant_and_time"),)

    def __str__(self) -> str:
        return f"{self.request_id} {self.end_state}"


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
    """The sum of `amount_micros` of usage records that ended in a month of the tenant's time zone.

    Of a whole tenant (key and model blank), of one of its keys, or of one model as it uses it. Changed in the transaction
    that inserts the records, and nowhere else.
    """

    tenant_id = models.UUIDField()
    key_id = models.CharField(max_length=16, blank=True)
    model = models.CharField(max_length=200, blank=True)
    month = models.CharField(max_length=7, help_text="YYYY-MM")
    amount_micros = models.BigIntegerField(default=0)

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
    tier = models.CharField(max_length=16)
    newest_at = models.DateTimeField(help_text="when the newest of them ended")
    # Counts are 4 bytes wide: PostgreSQL adds those up in integers, and 8 byte ones in numerics, which takes twice as long.
    requests = models.IntegerField()
    errors = models.IntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    amount_micros = models.BigIntegerField()
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

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.starts_at:%Y-%m-%d %H:%M} {self.model}"


class UsageQuarter(UsageSlot):
    """Of a quarter of an hour: every time zone's hours and days begin on one."""

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant_id", "starts_at", "key_id", "member_id", "model", "tier"), name="one_row_per_quarter_and_group"
            ),
        )


class UsageHour(UsageSlot):
    """Of an hour of UTC: a quarter of the rows, for the zones (nearly all) that are whole hours away from it."""

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant_id", "starts_at", "key_id", "member_id", "model", "tier"), name="one_row_per_hour_and_group"
            ),
        )
        indexes = (models.Index(fields=("starts_at",), name="hours_by_time"),)

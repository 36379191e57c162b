"""The ledger: usage records, append-only."""

from django.db import models


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

"""Files too large for an answer: made by workers, kept for some days."""

import uuid

from django.db import models


class ExportKind(models.TextChoices):
    LEDGER = "ledger", "Ledger of a month"
    REQUESTS = "requests", "Requests"


class ExportState(models.TextChoices):
    """asked → running → ready → expired; asked or running → failed or cancelled → expired."""

    ASKED = "asked"
    RUNNING = "running"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


OPEN_STATES = (ExportState.ASKED, ExportState.RUNNING)
"""Of a file that is being made."""


class Export(models.Model):
    """One file that somebody asked for, and how far it is. Its rows are those that were there when work on it began."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=16, choices=ExportKind.choices)
    tenant_id = models.UUIDField(null=True, help_text="whose it is; null: the operators'")
    asked = models.JSONField(help_text="what of: by kind (services/export_rows.py)")
    asked_by = models.CharField(max_length=200, help_text="as the audit log names them")
    email = models.CharField(max_length=254, blank=True, help_text="who is told when it is ready")
    state = models.CharField(max_length=16, choices=ExportState.choices, default=ExportState.ASKED)
    reason = models.CharField(max_length=300, blank=True, help_text="why it failed")
    rows_done = models.BigIntegerField(default=0)
    rows_total = models.BigIntegerField(null=True, help_text="null: not counted yet")
    cursor = models.JSONField(default=dict, help_text="after which row it goes on, and up to which")
    bytes_done = models.BigIntegerField(
        default=0, help_text="of the file: what lies beyond is of a worker that died, and cut off"
    )
    starts = models.PositiveIntegerField(default=0, help_text="since it last came further")
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, help_text="when it was ready, failed or was cancelled")
    expires_at = models.DateTimeField(help_text="when its file is removed")

    class Meta:
        indexes = (
            models.Index(fields=("tenant_id", "-created_at"), name="exports_by_tenant"),
            models.Index(fields=("state", "expires_at"), name="exports_by_expiry"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.id} {self.state}"

"""Months that operators have asked to be closed: a worker closes them, tenant by tenant."""

from django.db import models


class ClosingState(models.TextChoices):
    """asked → running → done."""

    ASKED = "asked"
    RUNNING = "running"
    DONE = "done"


class ClosingRun(models.Model):
    """One month of all tenants in whose time zone it is over, and how far it is. What is closed, statements say."""

    month = models.CharField(max_length=7, help_text="YYYY-MM")
    actor = models.CharField(max_length=200, help_text="as the audit log names them")
    state = models.CharField(max_length=16, choices=ClosingState.choices, default=ClosingState.ASKED)
    tenants_total = models.PositiveIntegerField(null=True, help_text="null: not counted yet")
    tenants_done = models.PositiveIntegerField(default=0)
    closed = models.PositiveIntegerField(default=0, help_text="by this run")
    invoices = models.PositiveIntegerField(default=0, help_text="of those")
    closed_before = models.PositiveIntegerField(default=0)
    num_failed = models.PositiveIntegerField(default=0)
    failed = models.JSONField(default=list, help_text="[{tenant_id, reason}]: the first of those that stay open")
    last_tenant_id = models.UUIDField(null=True, help_text="after whom it goes on")
    created_at = models.DateTimeField()
    moved_at = models.DateTimeField(help_text="when it last came further")
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("month",), condition=models.Q(ended_at__isnull=True), name="one_run_closes_a_month_at_a_time"
            ),
        )

    def __str__(self) -> str:
        return f"{self.month} {self.state}"

"""Spans of requests that operators have had rated again: on pages, over REST and by the command."""

from django.db import models

from headway.picos_field import PicosField


class ReRating(models.Model):
    """What was asked for, and what has come of it so far. What changed of money is adjustments of the ledger.

    How far it is moves in the transaction that adds the adjustments: tenant by tenant, by when requests ended.
    """

    model = models.CharField(max_length=200)
    price_version = models.PositiveIntegerField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(help_text="the first instant that is not of it")
    tenant_id = models.UUIDField(null=True, help_text="of one tenant only; null: of all")
    reason = models.CharField(max_length=500)
    reference = models.CharField(max_length=200, blank=True, help_text="of what it is made for, once")
    actor = models.CharField(max_length=200)
    requests_total = models.PositiveIntegerField(null=True, help_text="when it was asked for; null: not counted yet")
    requests = models.PositiveIntegerField(default=0, help_text="that were looked at")
    adjusted = models.PositiveIntegerField(default=0)
    amount_picos = PicosField(default=0, help_text="below zero: they cost less now")
    last_tenant_id = models.UUIDField(null=True, help_text="after whose request it goes on")
    last_request_at = models.DateTimeField(null=True, help_text="when that ended")
    last_record_id = models.BigIntegerField(null=True)
    created_at = models.DateTimeField()
    moved_at = models.DateTimeField(null=True, help_text="when it last came further; null: nobody has begun")
    ended_at = models.DateTimeField(null=True, help_text="null: it waits, runs, or was cut off")

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("reference",), condition=~models.Q(reference=""), name="a_reference_rates_again_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.model} by {self.price_version} from {self.starts_at:%Y-%m-%d %H:%M}"

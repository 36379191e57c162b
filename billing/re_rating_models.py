"""Spans of requests that operators have had rated again over REST."""

from django.db import models

from headway.picos_field import PicosField


class ReRating(models.Model):
    """What was asked for, and what has come of it so far. What changed of money is adjustments of the ledger."""

    model = models.CharField(max_length=200)
    price_version = models.PositiveIntegerField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(help_text="the first instant that is not of it")
    tenant_id = models.UUIDField(null=True, help_text="of one tenant only; null: of all")
    reason = models.CharField(max_length=500)
    reference = models.CharField(max_length=200, blank=True, help_text="of what it is made for, once")
    actor = models.CharField(max_length=200)
    requests = models.PositiveIntegerField(default=0, help_text="that were looked at")
    adjusted = models.PositiveIntegerField(default=0)
    amount_picos = PicosField(default=0, help_text="below zero: they cost less now")
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, help_text="null: it runs, or was cut off")

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("reference",), condition=~models.Q(reference=""), name="a_reference_rates_again_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.model} by {self.price_version} from {self.starts_at:%Y-%m-%d %H:%M}"

"""How a candidate answered live requests that were mirrored to it, beside the stable version's answer. Never any text."""

from django.db import models

from headway.picos_field import PicosField


class ShadowScore(models.Model):
    """One mirrored request. Times are of the attempts, from dispatch on."""

    rollout = models.CharField(max_length=64, help_text="the salt of the split: the rollout's id")
    model = models.CharField(max_length=200)
    stable = models.CharField(max_length=64, help_text="version label")
    candidate = models.CharField(max_length=64, help_text="version label")
    at = models.DateTimeField()
    error = models.CharField(max_length=32, blank=True, help_text="the candidate's end state; empty: it answered")
    ttft_ms_stable = models.PositiveIntegerField(null=True)
    ttft_ms_candidate = models.PositiveIntegerField(null=True)
    inter_token_ms_stable = models.FloatField(null=True)
    inter_token_ms_candidate = models.FloatField(null=True)
    completion_tokens_stable = models.PositiveIntegerField()
    completion_tokens_candidate = models.PositiveIntegerField(default=0)
    finish_reason_stable = models.CharField(max_length=32, blank=True)
    finish_reason_candidate = models.CharField(max_length=32, blank=True)
    similarity = models.FloatField(null=True, help_text="0 to 1; null: the candidate gave no answer")
    cost_picos = PicosField(help_text="at the model's price")

    class Meta:
        indexes = (models.Index(fields=("rollout", "at"), name="shadow_scores_by_rollout"),)

    def __str__(self) -> str:
        return f"{self.model} {self.candidate} beside {self.stable} at {self.at}"

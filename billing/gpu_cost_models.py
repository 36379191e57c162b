"""What an hour of a machine costs us: configuration, append-only, each row from an instant on."""

from django.db import models

from headway.money import micros_to_usd


class GpuCost(models.Model):
    """Of a kind of machine, or of one model's replicas whatever they run on: a model's own stands before its machines'."""

    machine_kind = models.CharField(
        max_length=100, blank=True, help_text='as node agents name it; "external" of replicas by URL'
    )
    model = models.CharField(max_length=200, blank=True, help_text="public id")
    cost_micros = models.BigIntegerField(help_text="micro-dollars an hour that one replica exists")
    effective_from = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("machine_kind", "model", "effective_from"), name="one_gpu_cost_per_scope_and_time"),
            models.CheckConstraint(
                condition=models.Q(machine_kind="") ^ models.Q(model=""), name="a_gpu_cost_is_of_a_machine_or_of_a_model"
            ),
            models.CheckConstraint(condition=models.Q(cost_micros__gte=0), name="a_gpu_cost_is_not_below_zero"),
        )

    def __str__(self) -> str:
        return f"{self.model or self.machine_kind} from {self.effective_from:%Y-%m-%d %H:%M}"

    @property
    def usd_an_hour(self) -> str:
        """ "2.50"."""
        return micros_to_usd(self.cost_micros)

"""Operators looking at a tenant's pages."""

from django.db import models


class OperatorVisit(models.Model):
    """An operator sees a tenant's pages as one of its roles does, and changes nothing there. Kept: it is evidence."""

    operator = models.ForeignKey("tenants.User", on_delete=models.PROTECT, related_name="+")
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+")
    role = models.CharField(max_length=16, help_text="whose eyes it is seen with")
    reason = models.CharField(max_length=200)
    started_at = models.DateTimeField()
    ends_at = models.DateTimeField(help_text="at the latest; earlier when it was ended")

    class Meta:
        indexes = (models.Index(fields=("operator", "ends_at"), name="visits_by_operator"),)

    def __str__(self) -> str:
        return f"{self.operator} in {self.tenant} as {self.role}"

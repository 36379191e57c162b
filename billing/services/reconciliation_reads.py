"""Read what reconciliations have found."""

from typing import Any

from django.db.models import QuerySet

from billing.models import Reconciliation, ReconciliationFinding, Verdict
from headway.errors import NotFound

FINDING_FIELDS = tuple(
    field.name for field in ReconciliationFinding._meta.fields if field.name not in {"id", "reconciliation", "is_told"}
)
_VERDICT_ORDER = (Verdict.UNEXPLAINED, Verdict.NOT_COUNTED, Verdict.EXPLAINED)


def reconciliations() -> QuerySet[Reconciliation]:
    """Newest first."""
    return Reconciliation.objects.order_by("-id")


def one_reconciliation(run_id: int) -> Reconciliation:
    """Raises NotFound."""
    found = Reconciliation.objects.filter(id=run_id).first()
    if found is None:
        raise NotFound(f"there is no reconciliation {run_id}")
    return found


def newest_finished() -> Reconciliation | None:
    return Reconciliation.objects.exclude(finished_at=None).order_by("-finished_at", "-id").first()


def findings_of(run: Reconciliation) -> list[dict[str, Any]]:
    """Of each engine's start, as plain values; those with drift first."""
    findings = list(run.findings.order_by("replica", "replica_epoch").values(*FINDING_FIELDS))
    findings.sort(key=lambda each: (not each["inconsistent_requests"], _VERDICT_ORDER.index(each["verdict"])))
    return findings

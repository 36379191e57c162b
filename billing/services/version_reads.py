"""What two versions of a model did in the same time, as the ledger has it: counts, and samples of their latency."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Q, QuerySet

from billing.models import Attempt, AttemptOutcome, UsageRecord

MIRRORED = "shadow-"
"""What ids of mirrored requests begin with: nobody's answers."""
MAX_SAMPLES = 2000
"""Of each version: beyond, every so manieth record is read, over the whole time."""


@dataclass(frozen=True)
class VersionUse:
    requests: int = 0
    """However they ended."""
    answered: int = 0
    failed: int = 0
    """Attempts, those that were made up for by another replica among them."""
    too_long: int = 0
    """Of those answered: finish reason length."""
    ttft_ms: tuple[float, ...] = ()
    inter_token_ms: tuple[float, ...] = ()
    """Both in ascending order."""


def use_of_versions(
    *,
    model: str,
    versions: Collection[str],
    since: datetime,
    without: Collection[UUID] = (),
    unsure: tuple[datetime, datetime] | None = None,
) -> dict[str, VersionUse]:
    """By version, of requests that began and ended since then.

    `without`: tenants whose requests are left out. `unsure`: what ended after the one moment, up to the other, is left out.
    """
    rows = UsageRecord.objects.filter(model=model, version__in=versions, ended_at__gte=since, started_at__gte=since)
    rows = rows.exclude(_ended_in(unsure))
    if without:
        rows = rows.exclude(tenant_id__in=without)
    done = Q(end_state="done")
    counted = rows.values("version").annotate(
        requests=Count("id"),
        answered=Count("id", filter=done),
        too_long=Count("id", filter=done & Q(finish_reason="length")),
        measured=Count("id", filter=_MEASURED),
    )
    by_version: dict[str, Any] = {row["version"]: row for row in counted.order_by("version")}
    failed = _failed(model, versions, since, without, unsure)
    return {
        version: _use(by_version.get(version, {}), rows.filter(version=version), failed.get(version, 0)) for version in versions
    }


_MEASURED = Q(end_state="done", attempts=1, resumes=0, parks=0, ttft_ms__isnull=False)


def _ended_in(unsure: tuple[datetime, datetime] | None) -> Q:
    return Q(pk__in=()) if unsure is None else Q(ended_at__gt=unsure[0], ended_at__lte=unsure[1])


def _failed(
    model: str,
    versions: Collection[str],
    since: datetime,
    without: Collection[UUID],
    unsure: tuple[datetime, datetime] | None,
) -> dict[str, int]:
    """Attempts that are the version's fault, whatever became of their requests."""
    rows = Attempt.objects.filter(model=model, version__in=versions, outcome=AttemptOutcome.FAILED)
    rows = rows.exclude(request_id__startswith=MIRRORED).exclude(_ended_in(unsure))
    if without:
        theirs = UsageRecord.objects.filter(model=model, tenant_id__in=without, ended_at__gte=since)
        rows = rows.exclude(request_id__in=theirs.values("request_id"))
    counted = rows.filter(ended_at__gte=since, started_at__gte=since).values("version").annotate(number=Count("id"))
    return {row["version"]: row["number"] for row in counted.order_by("version")}


def _use(counted: Mapping[str, Any], rows: QuerySet[UsageRecord], failed: int) -> VersionUse:
    if not counted:
        return VersionUse(failed=failed)
    every = max(1, math.ceil(counted["measured"] / MAX_SAMPLES))
    sample = rows.filter(_MEASURED).annotate(part=F("id") % every).filter(part=0)
    first, pace = [], []
    for ttft_ms, total_ms, tokens in sample.values_list("ttft_ms", "total_ms", "completion_tokens"):
        assert ttft_ms is not None, "those without one are left out"
        first.append(float(ttft_ms))
        if tokens > 1 and total_ms > ttft_ms:
            pace.append((total_ms - ttft_ms) / (tokens - 1))
    return VersionUse(
        requests=counted["requests"],
        answered=counted["answered"],
        failed=failed,
        too_long=counted["too_long"],
        ttft_ms=tuple(sorted(first)),
        inter_token_ms=tuple(sorted(pace)),
    )

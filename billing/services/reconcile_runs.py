"""Compare the ledger with every engine's counters: once a day, and whenever somebody asks. What was found is kept."""

import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import structlog
from django.contrib.auth import get_user_model
from django.db import transaction
from django.utils import timezone

from billing.models import Reconciliation, ReconciliationFinding, Verdict
from billing.services.engine_work import causes_of, inconsistent_requests
from billing.services.reconciliation import EngineTotals, reconcile
from inference.services.engine_counters import Count, counts_since, uncounted_engines
from tenants.services.audit import record_audit
from workers.services import outbox
from workers.services.mail import queue_mail

log = structlog.get_logger(__name__)

KIND = "reconciliation"
LEASE_S = 300.0
"""Longer than a comparison and the pause before it take."""
LOOKS_BACK = timedelta(days=2)
SETTLE = timedelta(seconds=20)
"""So long after an engine was counted, all that had ended before is in the ledger: journals are carried over every second,
a lost gateway's after 10 s."""
FRESH = timedelta(hours=1)
CUT_OFF = timedelta(hours=1)
"""A daily run that has not finished by then was killed: another takes its place."""
BEGAN_BEFORE = "it was started before its agent counted its own requests"


def reconcile_today(now: datetime | None = None) -> Reconciliation | None:
    """The daily one: None where it is done, or being done, already. May be called as often as one likes."""
    now = now or timezone.now()
    run = _claim(now.astimezone(UTC).date(), now)
    return None if run is None else _carry_out(run, since=now - LOOKS_BACK, now=now)


def reconcile_now(
    *, since: datetime | None = None, now: datetime | None = None, pause: Callable[[float], None] = time.sleep
) -> Reconciliation:
    """Of engines that were counted since then (two days). Waits for up to SETTLE until the ledger has what they counted."""
    now = now or timezone.now()
    run = Reconciliation.objects.create(started_at=now)
    return _carry_out(run, since=since or now - LOOKS_BACK, now=now, pause=pause)


def ask_for_reconciliation(*, actor: str, now: datetime | None = None) -> Reconciliation:
    """A worker does it. While one that was asked for is under way it is given back."""
    now = now or timezone.now()
    with transaction.atomic():
        waiting = Reconciliation.objects.exclude(asked_by="").filter(finished_at=None, started_at__gt=now - CUT_OFF)
        if (under_way := waiting.order_by("-id").first()) is not None:
            return under_way
        run = Reconciliation.objects.create(started_at=now, asked_by=actor[:200])
        record_audit(actor=actor, action="reconciliation.ask", target=str(run.id))
        outbox.put(kind=KIND, ids={"reconciliation": run.id})
    return run


def carry_out(ids: dict[str, Any], *, pause: Callable[[float], None] = time.sleep) -> None:
    """An outbox entry's: {"reconciliation": id}. Done again it does nothing."""
    run = Reconciliation.objects.filter(id=ids["reconciliation"], finished_at=None).first()
    if run is not None:
        _carry_out(run, since=run.started_at - LOOKS_BACK, now=timezone.now(), pause=pause)


def _claim(day: date, now: datetime) -> Reconciliation | None:
    run, is_new = Reconciliation.objects.get_or_create(day=day, defaults={"started_at": now})
    if is_new:
        return run
    cut_off = Reconciliation.objects.filter(pk=run.pk, finished_at=None, started_at=run.started_at)
    if run.finished_at is None and now - run.started_at >= CUT_OFF and cut_off.update(started_at=now):
        return run
    return None


def _carry_out(
    run: Reconciliation, *, since: datetime, now: datetime, pause: Callable[[float], None] = time.sleep
) -> Reconciliation:
    counts = counts_since(since)
    newest = max((count.counted_at for count in counts), default=now - SETTLE)
    if newest + SETTLE > now:
        pause(min(SETTLE, newest + SETTLE - now).total_seconds())
    findings = [_finding(run, count) for count in counts]
    found = {(finding.replica, finding.replica_epoch) for finding in findings}
    for (replica, epoch), reason in uncounted_engines(now, fresh_within=FRESH).items():
        if (replica, epoch) not in found:
            findings.append(_not_counted(run, replica, epoch, reason))
    with transaction.atomic():
        _tell_operators(run, findings)
        run.findings.all().delete()  # of one that was cut off
        ReconciliationFinding.objects.bulk_create(findings)
        run.finished_at = timezone.now()
        run.incarnations = len(findings)
        run.not_counted = sum(finding.verdict == Verdict.NOT_COUNTED for finding in findings)
        run.unexplained_prompt_tokens = sum(abs(finding.unexplained_prompt_tokens) for finding in findings)
        run.unexplained_completion_tokens = sum(abs(finding.unexplained_completion_tokens) for finding in findings)
        run.inconsistent_requests = sum(len(finding.inconsistent_requests) for finding in findings)
        run.save()
    return run


def _finding(run: Reconciliation, count: Count) -> ReconciliationFinding:
    causes = causes_of(count)
    why_not = "" if count.is_whole else BEGAN_BEFORE
    found = reconcile(EngineTotals(count.prompt_tokens, count.completion_tokens, why_not), causes)
    return ReconciliationFinding(
        reconciliation=run,
        replica=count.replica,
        replica_epoch=count.epoch,
        pool=count.pool,
        counted_at=count.counted_at,
        verdict=found.verdict,
        reason=why_not,
        engine_prompt_tokens=count.prompt_tokens,
        engine_completion_tokens=count.completion_tokens,
        low_prompt_tokens=found.explained.low_prompt_tokens,
        high_prompt_tokens=found.explained.high_prompt_tokens,
        low_completion_tokens=found.explained.low_completion_tokens,
        high_completion_tokens=found.explained.high_completion_tokens,
        unexplained_prompt_tokens=found.unexplained_prompt_tokens,
        unexplained_completion_tokens=found.unexplained_completion_tokens,
        causes={cause: work.as_dict() for cause, work in sorted(causes.items())},
        inconsistent_requests=inconsistent_requests(count),
    )


def _not_counted(run: Reconciliation, replica: str, epoch: int, reason: str) -> ReconciliationFinding:
    return ReconciliationFinding(
        reconciliation=run, replica=replica, replica_epoch=epoch, verdict=Verdict.NOT_COUNTED, reason=reason
    )


def _tell_operators(run: Reconciliation, findings: list[ReconciliationFinding]) -> None:
    """Once a drift: again only where it has grown."""
    news = []
    for finding in findings:
        if not _has_drift(finding):
            continue
        told = ReconciliationFinding.objects.filter(
            replica=finding.replica, replica_epoch=finding.replica_epoch, is_told=True
        ).last()
        finding.is_told = True
        if told is None or _size(finding) > _size(told):
            news.append(finding)
    if not news:
        return
    log.error("reconciliation_found_drift", engines=[str(finding) for finding in news])
    text = "\n".join(_sentence(finding) for finding in news)
    staff: Any = get_user_model()._default_manager.filter(is_active=True, is_staff=True).exclude(email="")
    for email in staff.values_list("email", flat=True):
        queue_mail(
            to=email,
            subject=f"Reconciliation: unexplained drift on {len(news)} engines",
            text=f"{text}\n\nmanage.py reconcile shows the causes; docs/operations.md says what to do.",
        )


def _has_drift(finding: ReconciliationFinding) -> bool:
    return finding.verdict == Verdict.UNEXPLAINED or bool(finding.inconsistent_requests)


def _size(finding: ReconciliationFinding) -> int:
    tokens = abs(finding.unexplained_prompt_tokens) + abs(finding.unexplained_completion_tokens)
    return tokens + len(finding.inconsistent_requests)


def _sentence(finding: ReconciliationFinding) -> str:
    parts = [
        f"{finding.replica} (epoch {finding.replica_epoch}): the engine counted {finding.unexplained_prompt_tokens:+d} prompt "
        f"and {finding.unexplained_completion_tokens:+d} completion tokens beyond what ledger, attempts and own work explain"
    ]
    if finding.inconsistent_requests:
        parts.append(f"record and attempts do not agree: {', '.join(finding.inconsistent_requests)}")
    return "; ".join(parts)

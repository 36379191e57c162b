"""Do a running eval run: ask its cases of the gateway, check the answers, keep each. The outbox carries it out in parts.

Each answer is kept in a transaction of its own, with the run's counts, so a worker that is killed loses the requests that
were under way and nothing else: the next goes on with the cases that have no sample. Every part asks with a key of its own,
which is revoked at its end, or at the beginning of the next.
"""

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from billing.services.prices import list_unit_price
from billing.services.rating import UnitPrice
from inference.eval_models import EvalCase, EvalRun, EvalSample, EvalState
from inference.evals.checks import run_checks
from inference.evals.scores import wilson
from inference.models import Pool
from inference.services.evals.asking import Answer, Asker, GatewayAway, WrongVersion
from inference.services.evals.runs import KIND, advance, revoke_key, start_next
from inference.services.version_labels import version_label
from tenants.services.keys import issue_api_key
from tenants.services.operations import operations_tenant
from workers.errors import TryLater
from workers.services import outbox

log = structlog.get_logger(__name__)

ACTOR = "worker:evals"
TIER = "batch"
PART_S = 45.0
"""No case is begun later than that in one outbox entry."""
LEASE_S = 300.0
"""Longer than a part and the longest request begun in it (asking.REQUEST_TIMEOUT_S)."""
LOOK_S = 1.0
"""How often it is looked whether the run was cancelled."""
MAX_STARTS = 8
"""Without an answer: then the run has failed."""


class _Over(Exception):
    """The run was cancelled meanwhile."""


def carry_on(ids: dict[str, Any]) -> None:
    """An outbox entry's: {"run": id}. Raises TryLater. Done again it does nothing."""
    run = _started(ids["run"])
    if run is None:
        return
    try:
        with _key_of(run) as api_key:
            is_whole = _do_part(run, api_key)
    except _Over:
        return
    except WrongVersion as error:
        _fail(run, str(error))
        return
    except GatewayAway as error:
        _wait_for_gateway(run, str(error))
        return
    if is_whole:
        _finish(run)
    else:
        with transaction.atomic():
            outbox.put(kind=KIND, ids=ids)


def _wait_for_gateway(run: EvalRun, told: str) -> None:
    """Raises TryLater where nothing was answered: its entry waits longer each time, and is given up in the end. One that came
    further is not to be given up for that."""
    reason = f"waits: {told}"[:300]
    if not EvalRun.objects.filter(pk=run.pk, cases_done__gt=run.cases_done).exists():
        EvalRun.objects.filter(pk=run.pk, state=EvalState.RUNNING).update(reason=reason)
        raise TryLater(told)
    with transaction.atomic():
        if EvalRun.objects.filter(pk=run.pk, state=EvalState.RUNNING).update(reason=reason):
            outbox.put(kind=KIND, ids={"run": run.pk}, due_at=timezone.now() + timedelta(seconds=outbox.FIRST_RETRY_S))


def _started(run_id: int) -> EvalRun | None:
    """None: it is over, or now it has failed."""
    rows = EvalRun.objects.select_related("eval_set", "model", "version").filter(pk=run_id, state=EvalState.RUNNING)
    if EvalRun.objects.filter(pk=run_id, state=EvalState.RUNNING, starts__lt=MAX_STARTS).update(starts=F("starts") + 1):
        return rows.first()
    stuck = rows.first()
    if stuck is not None:
        _fail(stuck, f"it was begun {MAX_STARTS} times and came no further; {stuck.reason}")
    return None


@contextmanager
def _key_of(run: EvalRun) -> Iterator[str]:
    """A key of our own account for this part, for this model alone."""
    account = operations_tenant(actor=ACTOR)
    with transaction.atomic():
        revoke_key(run)
        issued = issue_api_key(
            tenant=account,
            name=f"eval run {run.id}",
            actor=ACTOR,
            allowed_models=[run.model.public_id],
            tier_ceiling=TIER,
            expires_at=timezone.now() + timedelta(seconds=2 * LEASE_S),
        )
        EvalRun.objects.filter(pk=run.pk).update(key_id=issued.key.id)
        run.key_id = issued.key.id
    try:
        yield issued.text
    finally:
        with transaction.atomic():
            revoke_key(run)


def _do_part(run: EvalRun, api_key: str) -> bool:
    """Returns whether that was all. Raises GatewayAway, WrongVersion, _Over."""
    until_s = time.monotonic() + PART_S
    stable = Pool.objects.select_related("version").get(model=run.model).version
    asker = Asker(
        base_url=settings.EVAL_API_URL,
        api_key=api_key,
        model=run.model.public_id,
        version=version_label(run.version),
        is_stable=run.version == stable,
        until_s=until_s,
    )
    price = list_unit_price(run.model.public_id, tier=TIER)
    left = _left(run)
    pool = ThreadPoolExecutor(run.concurrency, thread_name_prefix="eval")
    try:
        return _ask_all(run, left, pool, asker, price, until_s)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        asker.close()  # and with it what is still under way: nobody waits for that


def _left(run: EvalRun) -> Iterator[EvalCase]:
    answered = EvalSample.objects.filter(run=run).values("case_id")
    rows = EvalCase.objects.filter(eval_set=run.eval_set).exclude(pk__in=answered)
    return iter(list(rows.order_by("position")))


def _ask_all(
    run: EvalRun, left: Iterator[EvalCase], pool: ThreadPoolExecutor, asker: Asker, price: UnitPrice, until_s: float
) -> bool:
    """Keeps at most `run.concurrency` requests under way, and every answer as it comes."""
    waiting: dict[Future[Answer], EvalCase] = {}
    failure: GatewayAway | WrongVersion | None = None
    is_whole = False
    while True:
        while failure is None and len(waiting) < run.concurrency and time.monotonic() < until_s:
            case = next(left, None)
            if case is None:
                is_whole = True
                break
            waiting[pool.submit(asker.ask, case.content)] = case
        if not waiting:
            break
        done, _ = wait(waiting, timeout=LOOK_S, return_when=FIRST_COMPLETED)
        for future in done:
            case = waiting.pop(future)
            try:
                answer = future.result()
            except (GatewayAway, WrongVersion) as error:
                failure = failure if isinstance(failure, WrongVersion) else error
            else:
                keep(run, case, answer, price)
        if not done and not EvalRun.objects.filter(pk=run.pk, state=EvalState.RUNNING).exists():
            raise _Over
    if failure is not None:
        raise failure
    return is_whole


def keep(run: EvalRun, case: EvalCase, answer: Answer, price: UnitPrice) -> None:
    """One answer and what it adds to the run, or neither; what is kept already is left as it is. Raises _Over."""
    checks = [] if answer.error else run_checks(case.content["checks"], answer.text)
    num_passed = sum(1 for check in checks if check.has_passed)
    has_passed = bool(checks) and num_passed == len(checks)
    amount_picos = price.amount_picos(
        prompt_tokens=answer.prompt_tokens, cached_tokens=answer.cached_tokens, completion_tokens=answer.completion_tokens
    )
    try:
        with transaction.atomic():
            EvalSample.objects.create(
                run=run,
                case=case,
                has_passed=has_passed,
                score=num_passed / len(checks) if checks else 0.0,
                checks=[{"kind": each.kind, "has_passed": each.has_passed, "reason": each.reason} for each in checks],
                text=answer.text,
                finish_reason=answer.finish_reason,
                error=answer.error,
                request_id=answer.request_id,
                latency_ms=answer.latency_ms,
                prompt_tokens=answer.prompt_tokens,
                completion_tokens=answer.completion_tokens,
            )
            moved = EvalRun.objects.filter(pk=run.pk, state=EvalState.RUNNING).update(
                cases_done=F("cases_done") + 1,
                passed=F("passed") + int(has_passed),
                errors=F("errors") + int(bool(answer.error)),
                prompt_tokens=F("prompt_tokens") + answer.prompt_tokens,
                completion_tokens=F("completion_tokens") + answer.completion_tokens,
                cost_picos=F("cost_picos") + amount_picos,
                starts=0,
                reason="",
                changed_at=timezone.now(),
            )
            if not moved:
                raise _Over
    except IntegrityError:  # a worker that was taken for dead has kept it
        log.info("eval_case_answered_twice", run=run.pk, case=case.case_id)


def _finish(run: EvalRun) -> None:
    run.refresh_from_db(fields=["state", "passed", "cases_done"])
    found = wilson(run.passed, run.cases_done)
    with transaction.atomic():
        advance(
            run,
            to=EvalState.DONE,
            since=EvalState.RUNNING,
            score=found.value,
            score_low=found.low,
            score_high=found.high,
            reason="",
        )
        start_next()


def _fail(run: EvalRun, reason: str) -> None:
    with transaction.atomic():
        revoke_key(run)
        if advance(run, to=EvalState.FAILED, since=EvalState.RUNNING, reason=reason[:300]):
            log.error("eval_run_failed", run=run.id, reason=reason)
        start_next()

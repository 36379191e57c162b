"""Runs of eval sets: asked for, one after another begun, cancelled, made the baseline.

queued → running → done | failed; queued or running → cancelled. A worker does a running one (working.py).
"""

from typing import Any

import structlog
from django.db import transaction
from django.utils import timezone

from headway.errors import Conflict, InvalidInput
from inference.errors import UnknownEval, UnknownVersion
from inference.eval_models import EVAL_TRANSITIONS, OPEN_EVALS, EvalRun, EvalSet, EvalState
from inference.models import ModelVersion, Pool
from inference.services.evals.sets import set_label
from inference.services.registry import pool_of
from inference.services.version_labels import version_label
from tenants.services.audit import record_audit
from tenants.services.keys import revoke_api_key
from workers.services import outbox

log = structlog.get_logger(__name__)

KIND = "eval"
DEFAULT_CONCURRENCY = 4
MAX_CONCURRENCY = 32
MAX_AT_ONCE = 2
"""Runs that a worker is at; others wait for their turn, so that mails and webhooks find a free worker."""


def ask_for_run(
    *, eval_set: EvalSet, model: str, actor: str, version: str = "", concurrency: int = DEFAULT_CONCURRENCY
) -> EvalRun:
    """`version`: its label, such as v2; without: the stable one. Raises UnknownModel, UnknownVersion, InvalidInput."""
    if not 1 <= concurrency <= MAX_CONCURRENCY:
        raise InvalidInput(f"concurrency is from 1 to {MAX_CONCURRENCY}", param="concurrency")
    pool = pool_of(model)
    found = version_of(pool, version)
    with transaction.atomic():
        run = new_run(eval_set=eval_set, pool=pool, version=found, actor=actor, concurrency=concurrency)
        start_next()
    run.refresh_from_db()
    return run


def new_run(
    *, eval_set: EvalSet, pool: Pool, version: ModelVersion | None, actor: str, concurrency: int = DEFAULT_CONCURRENCY
) -> EvalRun:
    """Queued. Call it inside a transaction, and `start_next` after it."""
    run = EvalRun.objects.create(
        eval_set=eval_set,
        model=pool.model,
        version=version,
        concurrency=concurrency,
        cases_total=eval_set.num_cases,
        created_by=actor[:200],
        changed_at=timezone.now(),
    )
    after = {"eval_set": set_label(eval_set), "model": pool.model.public_id, "version": version_label(version)}
    record_audit(actor=actor, action="eval.run", target=str(run.id), after=after)
    return run


def version_of(pool: Pool, label: str) -> ModelVersion | None:
    """By its label; blank: the stable one, None where all replicas are registered by URL. Raises UnknownVersion."""
    if not label:
        return pool.version
    number = label.removeprefix("v")
    found = None
    if number.isdecimal() and len(number) < 9:
        found = ModelVersion.objects.filter(model=pool.model, number=int(number)).first()
    if found is None:
        raise UnknownVersion(f"{pool.model} has no version {label[:50]!r}; they are named v1, v2, ...", param="version")
    return found


def start_next() -> list[EvalRun]:
    """Begin queued runs, the oldest first, as far as there is room; what beat's sweep calls too. Returns those begun."""
    begun = []
    with transaction.atomic():
        room = MAX_AT_ONCE - EvalRun.objects.filter(state=EvalState.RUNNING).count()
        for run in EvalRun.objects.filter(state=EvalState.QUEUED).order_by("id")[: max(0, room)]:
            if advance(run, to=EvalState.RUNNING, started_at=timezone.now()):
                outbox.put(kind=KIND, ids={"run": run.id})
                begun.append(run)
    return begun


def cancel_run(*, run: EvalRun, actor: str) -> None:
    """What was answered is kept; requests under way are broken off. Raises Conflict for a run that is over."""
    with transaction.atomic():
        run.refresh_from_db(fields=["state", "key_id"])
        if not any(advance(run, to=EvalState.CANCELLED, since=each, reason=f"by {actor}") for each in OPEN_EVALS):
            raise Conflict(f"run {run.id} is over already")
        revoke_key(run, actor=actor)
        record_audit(actor=actor, action="eval.cancel", target=str(run.id))
        start_next()


def set_baseline(*, run: EvalRun, actor: str) -> None:
    """Other runs of the set on this model are held against it from now on. Raises Conflict for one that is not done."""
    with transaction.atomic():
        if run.state != EvalState.DONE:
            raise Conflict(f"run {run.id} is {run.state}: a baseline is done")
        EvalRun.objects.filter(eval_set=run.eval_set, model=run.model, is_baseline=True).update(is_baseline=False)
        EvalRun.objects.filter(pk=run.pk).update(is_baseline=True)
        record_audit(actor=actor, action="eval.baseline", target=str(run.id))
    run.is_baseline = True


def revoke_key(run: EvalRun, *, actor: str = "worker:evals") -> None:
    """The one it asks with, if it has one. Call it inside a transaction."""
    if run.key_id:
        revoke_api_key(key_id=run.key_id, actor=actor)
        EvalRun.objects.filter(pk=run.pk, key_id=run.key_id).update(key_id="")
        run.key_id = ""


def advance(run: EvalRun, *, to: EvalState, since: EvalState | None = None, **values: Any) -> bool:
    """Move it from the state it was read in, or `since`; False: it was in another."""
    before = since or EvalState(run.state)
    assert to in EVAL_TRANSITIONS[before], f"an eval run does not go from {before} to {to}"
    now = timezone.now()
    ended = {} if to in OPEN_EVALS else {"ended_at": now}
    moved = EvalRun.objects.filter(pk=run.pk, state=before).update(state=to, changed_at=now, **ended, **values)
    if moved:
        log.info("eval_run_moved", run=run.id, state=to.value, before=before.value, reason=values.get("reason", ""))
    return bool(moved)


def run_with(run_id: int) -> EvalRun:
    """Raises UnknownEval."""
    rows = EvalRun.objects.select_related("eval_set", "model", "version")
    found = rows.filter(pk=run_id).first() if 0 < run_id < 2**63 else None
    if found is None:
        raise UnknownEval(f"there is no eval run {run_id}", param="run")
    return found

"""Eval sets: imported whole or not at all, and never changed."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Max

from headway.errors import Conflict, InvalidInput
from inference.errors import UnknownEval
from inference.eval_models import EvalCase, EvalSet
from inference.evals.cases import Case
from inference.evals.readers import read_cases
from tenants.services.audit import record_audit

INSERT_BATCH = 500
MAX_DESCRIPTION_CHARS = 500


@dataclass(frozen=True)
class Imported:
    eval_set: EvalSet
    is_new: bool
    """False: the same cases are there under this name already."""


def import_eval_set(
    *,
    name: str,
    lines: Iterable[bytes],
    actor: str,
    format: str = "auto",  # noqa: A002
    limit: int | None = None,
    description: str = "",
) -> Imported:
    """The next number of that name. `format`: auto, jsonl, gsm8k or ifeval; `limit`: the first so many cases.

    Raises BadEvalSet with the line that is wrong, InvalidInput; nothing is imported then.
    """
    _check_name(name)
    if limit is not None and limit < 1:
        raise InvalidInput("a limit is at least 1", param="limit")
    if len(description) > MAX_DESCRIPTION_CHARS or "\0" in description:
        raise InvalidInput(f"a description has at most {MAX_DESCRIPTION_CHARS} characters", param="description")
    cases = read_cases(lines, format=format, limit=limit)
    digest = digest_of(cases)
    try:
        with transaction.atomic():
            found = EvalSet.objects.filter(name=name, digest=digest).first()
            if found is not None:
                return Imported(found, is_new=False)
            return Imported(_insert(name, cases, digest, description, actor), is_new=True)
    except IntegrityError:
        raise Conflict(f"somebody else is importing {name!r}: look at what is there, and import again") from None


def digest_of(cases: Iterable[Case]) -> str:
    """SHA-256 of all that a case is, in order."""
    digest = hashlib.sha256()
    for case in cases:
        digest.update(json.dumps([case.id, case.as_plain()], sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def eval_set_named(text: str) -> EvalSet:
    """`gsm8k` (its newest number) or `gsm8k@2`. Raises UnknownEval."""
    name, _, number = text.partition("@")
    rows = EvalSet.objects.filter(name=name)
    if number:
        rows = rows.filter(number=int(number) if number.isdecimal() and len(number) < 9 else 0)
    found = rows.order_by("-number").first()
    if found is None:
        raise UnknownEval(f"there is no eval set {text[:80]!r}; they are named as in gsm8k, or gsm8k@2", param="eval_set")
    return found


def set_label(eval_set: EvalSet) -> str:
    """As `eval_set_named` takes it."""
    return f"{eval_set.name}@{eval_set.number}"


def _check_name(name: str) -> None:
    try:
        EvalSet._meta.get_field("name").clean(name, None)
    except ValidationError:
        raise InvalidInput(
            f"{name[:80]!r} is not an eval set's name: 1 to 63 letters, digits, hyphens or underscores", param="name"
        ) from None


def _insert(name: str, cases: list[Case], digest: str, description: str, actor: str) -> EvalSet:
    newest = EvalSet.objects.filter(name=name).aggregate(newest=Max("number"))["newest"] or 0
    made = EvalSet.objects.create(
        name=name, number=newest + 1, description=description, digest=digest, num_cases=len(cases), created_by=actor[:200]
    )
    EvalCase.objects.bulk_create(
        [
            EvalCase(eval_set=made, position=position, case_id=case.id, content=case.as_plain())
            for position, case in enumerate(cases, start=1)
        ],
        batch_size=INSERT_BATCH,
    )
    after = {"cases": len(cases), "digest": digest}
    record_audit(actor=actor, action="eval_set.import", target=set_label(made), after=after)
    return made

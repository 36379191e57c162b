"""How two runs did on the cases that both have answered, counted by the database."""

from collections.abc import Mapping

from django.db.models import BigIntegerField, Count, OuterRef, Subquery, Value, When
from django.db.models import Case as SqlCase

from headway.errors import InvalidInput
from inference.eval_models import EvalRun, EvalSample
from inference.evals.scores import Paired


def paired_counts(new: EvalRun, old: EvalRun) -> Paired:
    """Raises InvalidInput for runs of different sets."""
    if new.eval_set_id != old.eval_set_id:
        raise InvalidInput("runs are compared on the same cases: these are of different sets", param="against")
    return paired_counts_of({new.pk: old.pk})[new.pk]


def paired_counts_of(old_of: Mapping[int, int]) -> dict[int, Paired]:
    """The same of many, in one query. `old_of`: by a run's id the id of the run it is held against."""
    if not old_of:
        return {}
    old_run = SqlCase(*(When(run=new, then=Value(old)) for new, old in old_of.items()), output_field=BigIntegerField())
    theirs = EvalSample.objects.filter(run=OuterRef("old_run"), case=OuterRef("case")).values("has_passed")[:1]
    rows = EvalSample.objects.filter(run__in=old_of).annotate(old_run=old_run).annotate(old_passed=Subquery(theirs))
    counts = rows.exclude(old_passed=None).values("run", "has_passed", "old_passed").annotate(number=Count("id"))
    found = {
        (run, has_passed, old_passed): number
        for run, has_passed, old_passed, number in counts.values_list("run", "has_passed", "old_passed", "number")
    }
    return {
        run: Paired(
            both=found.get((run, True, True), 0),
            only_new=found.get((run, True, False), 0),
            only_old=found.get((run, False, True), 0),
            neither=found.get((run, False, False), 0),
        )
        for run in old_of
    }

"""Sets in the database: whole or not at all, numbered, once."""

import pytest

from headway.errors import InvalidInput
from inference.errors import BadEvalSet, UnknownEval
from inference.eval_models import EvalCase, EvalSet
from inference.services.evals.sets import eval_set_named, import_eval_set, set_label
from tenants.models import AuditEntry
from tests.inference.evals.conftest import case_lines

pytestmark = pytest.mark.django_db


def test_a_set_is_imported_with_its_cases_in_order() -> None:
    made = import_eval_set(name="small", lines=case_lines(3), actor="operator:o", description="ours")
    assert made.is_new
    assert (set_label(made.eval_set), made.eval_set.num_cases, made.eval_set.created_by) == ("small@1", 3, "operator:o")
    assert list(EvalCase.objects.order_by("position").values_list("position", "case_id")) == [(1, "c1"), (2, "c2"), (3, "c3")]
    assert EvalCase.objects.get(case_id="c2").content["messages"] == [{"role": "user", "content": "say 2"}]
    assert AuditEntry.objects.filter(action="eval_set.import", target="small@1").count() == 1


def test_the_same_cases_are_there_once_and_others_are_the_next_number() -> None:
    first = import_eval_set(name="small", lines=case_lines(3), actor="test").eval_set
    again = import_eval_set(name="small", lines=case_lines(3), actor="test")
    assert (again.eval_set, again.is_new) == (first, False)
    other = import_eval_set(name="small", lines=case_lines(3, max_tokens=9), actor="test").eval_set
    assert set_label(other) == "small@2"
    assert EvalCase.objects.filter(eval_set=first, content__max_tokens=9).count() == 0, "a set never changes"
    assert eval_set_named("small") == other
    assert eval_set_named("small@1") == first
    assert import_eval_set(name="same", lines=case_lines(3), actor="test").eval_set.digest == first.digest


def test_of_a_file_with_an_error_nothing_is_imported() -> None:
    with pytest.raises(BadEvalSet, match="line 4"):
        import_eval_set(name="small", lines=[*case_lines(3), b"{}"], actor="test")
    assert not EvalSet.objects.exists()
    assert not EvalCase.objects.exists()


@pytest.mark.parametrize("name", ["", "a b", "x" * 64, "a@1", "a\0"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="not an eval set's name"):
        import_eval_set(name=name, lines=case_lines(1), actor="test")


@pytest.mark.parametrize("name", ["", "nothing", "small@2", "small@x", "small@99999999999999999999"])
def test_a_set_that_is_not_there_is_said_so(name: str) -> None:
    import_eval_set(name="small", lines=case_lines(1), actor="test")
    with pytest.raises(UnknownEval):
        eval_set_named(name)

"""The pure comparison, and what ledger, attempts and the agent's own work explain of an engine's counters."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import CommandError

from billing.models import Attempt, Reconciliation, UsageRecord, Verdict
from billing.selectors import latest_reconciliation
from billing.services import reconcile_runs
from billing.services.attempt_rows import AttemptDraft
from billing.services.engine_work import causes_of, inconsistent_requests
from billing.services.ledger import record_usage
from billing.services.open_months import close_month
from billing.services.reconcile_runs import reconcile_now, reconcile_today
from billing.services.reconciliation import EngineTotals, Work, reconcile
from inference.models import EngineCount, Model, Pool, Replica, ReplicaState
from inference.services.engine_counters import Count, note_count
from tenants.services.tenants import create_tenant
from tests.inference.gateway.usage_drafts import draft
from workers.models import Mail

AT = datetime(2027, 1, 15, 8, 10, tzinfo=UTC)
ENDED_S = (AT - timedelta(minutes=5)).timestamp()
RANGE = Work(count=1, low_prompt_tokens=10, high_prompt_tokens=20, low_completion_tokens=100, high_completion_tokens=150)


@pytest.mark.parametrize(
    ("prompt", "completion", "drift"),
    [
        (10, 100, (0, 0)),
        (20, 150, (0, 0)),
        (15, 120, (0, 0)),
        (9, 100, (-1, 0)),
        (21, 150, (1, 0)),
        (10, 99, (0, -1)),
        (10, 151, (0, 1)),
        (0, 1000, (-10, 850)),
    ],
)
def test_what_lies_outside_the_range_is_not_explained(prompt: int, completion: int, drift: tuple[int, int]) -> None:
    found = reconcile(EngineTotals(prompt, completion), {"answered": RANGE})
    assert (found.unexplained_prompt_tokens, found.unexplained_completion_tokens) == drift
    assert found.verdict == (Verdict.UNEXPLAINED if any(drift) else Verdict.EXPLAINED)


def test_ranges_of_all_causes_add_up() -> None:
    causes = {"answered": Work.exactly(3, 30, 60), "engine_died": RANGE, "open": Work.at_most(1, 7, 8)}
    found = reconcile(EngineTotals(57, 218), causes)
    assert found.explained == Work(5, 40, 57, 160, 218)
    assert found.verdict == Verdict.EXPLAINED
    assert reconcile(EngineTotals(58, 218), causes).unexplained_prompt_tokens == 1


def test_nothing_explains_nothing_and_what_was_not_counted_is_said_so() -> None:
    assert reconcile(EngineTotals(0, 0), {}).verdict == Verdict.EXPLAINED
    assert reconcile(EngineTotals(5, 0), {}).unexplained_prompt_tokens == 5
    found = reconcile(EngineTotals(5, 5, "an external engine"), {})
    assert (found.verdict, found.unexplained_prompt_tokens) == (Verdict.NOT_COUNTED, 0)


# -- with the database


def count(**changes: Any) -> Count:
    values: dict[str, Any] = {
        "replica": "rep-1",
        "epoch": 2,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "counted_from": AT,
        "counted_at": AT,
        "open_requests": 0,
        "is_whole": True,
        "began_at": AT - timedelta(hours=1),
        "pool": "m-pool",
        "max_model_len": 2048,
    }
    return Count(**(values | changes))


def used(request_id: str, end_state: str = "done", *, at_s: float = ENDED_S, **changes: Any) -> None:
    values: dict[str, Any] = {
        "replica": "rep-1",
        "replica_epoch": 2,
        "pool": "m-pool",
        "attempts": 1,
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "started_at_s": at_s - 5,
        "ended_at_s": at_s,
    }
    record_usage(drafts=[draft(request_id, end_state, **(values | changes))])


def attempt(number: int, ending: str = "engine_died", *, at_s: float = ENDED_S, **changes: Any) -> AttemptDraft:
    values: dict[str, Any] = {
        "replica": "rep-1",
        "replica_epoch": 2,
        "started_at_s": at_s - 5,
        "ended_at_s": at_s,
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "max_prompt_tokens": 10,
        "max_completion_tokens": 200,
    }
    return AttemptDraft(number=number, ending=ending, **(values | changes))


@pytest.mark.django_db
def test_records_of_this_start_of_this_engine_are_explained_exactly() -> None:
    used("r1")
    used("r2", prompt_tokens=1, completion_tokens=2)
    used("other start", replica_epoch=1)
    used("other engine", replica="rep-2")
    used("refused", "refused", replica="", replica_epoch=0, attempts=0, prompt_tokens=0, completion_tokens=0)
    assert causes_of(count()) == {"answered": Work.exactly(2, 11, 22)}


@pytest.mark.django_db
def test_what_ran_when_the_engine_was_counted_may_be_counted_in_part_and_what_began_later_is_not() -> None:
    used("ended long before")
    used("ends at that moment", at_s=AT.timestamp() - 1)
    used("ends after it", at_s=AT.timestamp() + 3)
    used("began later", at_s=AT.timestamp() + 60)
    assert causes_of(count()) == {"answered": Work.exactly(1, 10, 20), "open": Work.at_most(2, 20, 40)}
    causes = causes_of(count(open_requests=3))
    assert causes["not_on_record"] == Work.at_most(1, 2048, 2048), "one of three has not ended yet"


@pytest.mark.django_db
def test_attempts_take_the_place_of_their_record_each_at_its_own_engine() -> None:
    last = attempt(2, "done", replica="rep-2", prompt_tokens=30, max_prompt_tokens=30, max_completion_tokens=20)
    used("resumed", attempts=2, replica="rep-2", completion_tokens=40, attempt_rows=(attempt(1), last))
    assert causes_of(count()) == {"engine_died": Work(1, 10, 10, 20, 200)}
    assert causes_of(count(replica="rep-2")) == {"answered": Work.exactly(1, 30, 20)}
    assert inconsistent_requests(count(replica="rep-2")) == []


@pytest.mark.django_db
def test_a_lost_request_that_told_nothing_may_have_run_on_any_engine_of_its_pool_of_that_time() -> None:
    used("lost", "gateway_lost", replica="", replica_epoch=0, attempts=0, prompt_tokens=0, completion_tokens=0)
    assert causes_of(count()) == {"gateway_lost": Work.at_most(1, 2048, 2048)}
    assert causes_of(count(pool="other")) == {}
    assert causes_of(count(began_at=AT - timedelta(minutes=1))) == {}


@pytest.mark.django_db
def test_own_work_is_explained_from_what_is_known_to_what_may_have_been() -> None:
    found = causes_of(count(own_prompt_tokens=5, own_max_prompt_tokens=9, own_completion_tokens=1, own_max_completion_tokens=2))
    assert found == {"agent": Work(0, 5, 9, 1, 2)}


@pytest.mark.django_db
def test_attempts_are_written_once_with_their_record() -> None:
    for _ in range(2):
        used("r1", attempts=2, attempt_rows=(attempt(1), attempt(2, "done")))
    assert list(Attempt.objects.order_by("number").values_list("number", "ending")) == [(1, "engine_died"), (2, "done")]


@pytest.mark.django_db
def test_a_final_record_brings_its_own_attempts_in_the_place_of_a_lost_ones() -> None:
    used("r1", "gateway_lost", attempt_rows=(attempt(1, "gateway_lost"),))
    used("r1", "gateway_lost", usage_source="none", attempt_rows=(attempt(1, "parked"),))
    assert Attempt.objects.get().ending == "gateway_lost"
    used("r1", "done", attempt_rows=(attempt(1, "parked"), attempt(2, "done")), attempts=2)
    assert list(Attempt.objects.order_by("number").values_list("ending", flat=True)) == ["parked", "done"]
    used("r2", "gateway_lost", attempt_rows=(attempt(1, "gateway_lost"),))
    used("r2", "done")
    assert Attempt.objects.get(request_id="r2").max_completion_tokens == 20, "as exactly as its record tells it"


@pytest.mark.django_db
def test_a_record_that_stays_lost_on_its_statement_has_the_attempts_of_the_final_one() -> None:
    tenant = create_tenant(name="acme", actor="test")
    used("r1", "gateway_lost", tenant_id=str(tenant.id), completion_tokens=3, attempt_rows=(attempt(1, "gateway_lost"),))
    close_month(tenant_id=tenant.id, month=UsageRecord.objects.get().billing_month)
    used("r1", "done", tenant_id=str(tenant.id), completion_tokens=20)
    assert UsageRecord.objects.get().completion_tokens == 3
    assert causes_of(count()) == {"answered": Work.exactly(1, 10, 20)}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("record", "rows"),
    [
        ({"attempts": 2}, ()),
        ({"attempts": 3}, (attempt(1), attempt(2, "done"))),
        ({"attempts": 2, "completion_tokens": 41}, (attempt(1), attempt(2, "done"))),
        ({"end_state": "client_gone_after_first_token", "completion_tokens": 19}, (attempt(1),)),
        ({"end_state": "engine_died"}, ()),
    ],
)
def test_a_record_that_does_not_agree_with_its_attempts_is_named(record: dict[str, Any], rows: Any) -> None:
    used("good", attempts=2, completion_tokens=40, attempt_rows=(attempt(1), attempt(2, "done")))
    used("left", "client_gone_after_first_token", attempt_rows=(attempt(1, "client_gone_after_first_token"),))
    assert inconsistent_requests(count()) == []
    used("wrong", **{"end_state": "done", **record}, attempt_rows=rows)
    assert inconsistent_requests(count()) == ["wrong"]


# -- runs

Waits = list[float]


@pytest.fixture
def waits() -> Waits:
    return []


def run(waits: Waits, **changes: Any) -> Reconciliation:
    return reconcile_now(now=AT + timedelta(minutes=1), pause=waits.append, **changes)


@pytest.mark.django_db
def test_a_run_keeps_what_it_found_and_waits_for_the_ledger_only_after_a_fresh_count(waits: Waits) -> None:
    used("r1")
    note_count(count(prompt_tokens=10, completion_tokens=20))
    assert run(waits).is_clean
    assert waits == []
    note_count(count(counted_at=AT + timedelta(seconds=55), prompt_tokens=10, completion_tokens=25))
    assert not run(waits).is_clean
    assert waits == [15.0]
    found = latest_reconciliation()
    assert found is not None
    (finding,) = found.findings
    assert (found.unexplained_completion_tokens, finding["unexplained_completion_tokens"]) == (5, 5)
    assert finding["causes"]["answered"]["low_completion_tokens"] == 20
    assert Reconciliation.objects.count() == 2


@pytest.mark.django_db
def test_an_engine_that_is_not_counted_from_its_start_or_is_external_raises_no_alarm(waits: Waits) -> None:
    pool = Pool.objects.create(model=Model.objects.create(public_id="m"), name="m")
    common = {"pool": pool, "upstream_model": "m", "changed_at": AT}
    Replica.objects.create(id="rep-ext", state=ReplicaState.READY, url="http://engine:80", **common)
    Replica.objects.create(id="rep-new", state=ReplicaState.READY, node="n1", epoch=1, **common)
    note_count(count(prompt_tokens=500, is_whole=False))
    done = run(waits)
    assert (done.is_clean, done.incarnations, done.not_counted) == (True, 3, 3)
    reasons = {finding.replica: finding.reason for finding in done.findings.all()}
    assert "external" in reasons["rep-ext"]
    assert "no counters" in reasons["rep-new"]
    assert "before its agent counted" in reasons["rep-1"]


@pytest.mark.django_db
def test_the_daily_run_happens_once_a_day_and_again_where_it_was_cut_off() -> None:
    assert reconcile_today(AT) is not None
    assert reconcile_today(AT + timedelta(hours=2)) is None
    assert reconcile_today(AT + timedelta(days=1)) is not None
    cut_off = Reconciliation.objects.create(day=(AT + timedelta(days=2)).date(), started_at=AT + timedelta(days=2))
    assert reconcile_today(AT + timedelta(days=2, minutes=30)) is None, "it may still run"
    again = reconcile_today(AT + timedelta(days=2, hours=1))
    assert again is not None
    assert again.pk == cut_off.pk


@pytest.mark.django_db
def test_operators_are_told_of_a_drift_once_and_again_when_it_grows(waits: Waits) -> None:
    users = get_user_model()
    users.objects.create_user(username="op", email="op@example.com", password="x", is_staff=True)
    users.objects.create_user(username="customer", email="c@example.com", password="x")
    used("r1")
    note_count(count(prompt_tokens=10, completion_tokens=25))
    run(waits)
    run(waits)
    mail = Mail.objects.get()
    assert mail.to == "op@example.com"
    assert "+0 prompt and +5 completion tokens" in mail.text
    note_count(count(prompt_tokens=10, completion_tokens=26))
    run(waits)
    assert Mail.objects.count() == 2


@pytest.mark.django_db
def test_the_command_prints_a_table_and_fails_on_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(*, since: datetime | None) -> Reconciliation:
        return reconcile_runs.reconcile_now(since=since, now=AT + timedelta(minutes=1))

    monkeypatch.setattr("billing.management.commands.reconcile.reconcile_now", at_once)
    told = printed_by(lambda out: call_command("reconcile", stdout=out))
    assert "no engine was counted" in told
    used("r1")
    note_count(count(prompt_tokens=10, completion_tokens=20))
    told = printed_by(lambda out: call_command("reconcile", stdout=out))
    assert "rep-1" in told
    assert "answered" in told
    UsageRecord.objects.update(completion_tokens=13)
    out = StringIO()
    with pytest.raises(CommandError, match="drift that nothing explains"):
        call_command("reconcile", stdout=out)
    assert "+7" in out.getvalue()
    since = "2027-01-16"
    assert "no engine was counted" in printed_by(lambda out: call_command("reconcile", since=since, stdout=out))
    with pytest.raises(CommandError, match="takes a date"):
        call_command("reconcile", since="yesterday")


def printed_by(call: Callable[[StringIO], object]) -> str:
    out = StringIO()
    call(out)
    return out.getvalue()


@pytest.mark.django_db
def test_a_count_is_kept_by_start_and_the_newest_stays() -> None:
    note_count(count(prompt_tokens=1))
    note_count(replace(count(prompt_tokens=5), counted_at=AT + timedelta(minutes=1)))
    note_count(count(epoch=3))
    assert list(EngineCount.objects.order_by("epoch").values_list("epoch", "prompt_tokens")) == [(2, 5), (3, 0)]

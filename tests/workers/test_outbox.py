import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from headway.celery_app import app
from tests.workers.broker import Broker
from workers.effects import EFFECTS
from workers.errors import TryLater
from workers.models import Mail, OutboxEntry
from workers.services import outbox
from workers.services.outbox import Effect, carry_out, put, retry_after_s, sweep, try_again

pytestmark = pytest.mark.django_db


def entry(kind: str = "k", *, due_in_s: float = -1, **ids: Any) -> OutboxEntry:
    with transaction.atomic():
        return put(kind=kind, ids=ids, due_at=timezone.now() + timedelta(seconds=due_in_s))


def fresh(one: OutboxEntry) -> OutboxEntry:
    return OutboxEntry.objects.get(pk=one.pk)


def mail(ids: dict[str, Any]) -> None:
    Mail.objects.create(to="a@example.com", subject=str(ids.get("n", "")))


def fail(_ids: dict[str, Any]) -> None:
    Mail.objects.create(to="half@example.com", subject="half")
    raise TryLater("the other side is away")


class Calls:
    def __init__(self, error: Exception | None = None) -> None:
        self.ids: list[dict[str, Any]] = []
        self.error = error

    def __call__(self, ids: dict[str, Any]) -> None:
        self.ids.append(ids)
        if self.error is not None:
            raise self.error


def test_what_is_put_lives_and_dies_with_its_transaction() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        put(kind="k", ids={})
        raise ZeroDivisionError
    assert not OutboxEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_broker_is_told_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch)
    with transaction.atomic():
        one = put(kind="k", ids={})
        assert broker.told == []
    assert broker.told == [one.id]
    with pytest.raises(AssertionError):
        put(kind="k", ids={})


@pytest.mark.django_db(transaction=True)
def test_a_broker_that_is_away_hinders_nobody_and_the_sweep_makes_up_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch, is_away=True)
    with transaction.atomic():
        one = put(kind="k", ids={})
    broker.is_away = False
    assert sweep() == 1
    assert broker.told == [one.id]


def test_a_real_broker_that_is_not_there_is_noticed_at_once() -> None:
    """Its socket does not exist: no error, and no waiting."""
    assert app.conf.broker_url.startswith("redis+socket://")
    assert outbox.tell_broker([1, 2]) == 0


def test_the_sweep_names_what_is_due_and_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch)
    due, later, done, given_up = entry(), entry(due_in_s=60), entry(), entry()
    OutboxEntry.objects.filter(pk=done.pk).update(done_at=timezone.now())
    OutboxEntry.objects.filter(pk=given_up.pk).update(given_up_at=timezone.now())
    sweep()
    assert broker.told == [due.id]
    assert later.id not in broker.told


def test_what_the_broker_was_told_is_told_again_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that forgot is told again; one that has much to do does not get the same a hundred times."""
    broker, one = Broker(monkeypatch), entry()
    for _ in range(5):
        sweep()
    assert broker.told == [one.id]
    OutboxEntry.objects.update(told_at=timezone.now() - outbox.TELL_AGAIN - timedelta(seconds=1))
    sweep()
    assert broker.told == [one.id] * 2


def test_what_failed_is_told_as_soon_as_it_is_due_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, one = Broker(monkeypatch), entry()
    sweep()
    carry_out(one.id, {"k": Effect(Calls(TryLater("no")))})
    OutboxEntry.objects.update(due_at=timezone.now())
    sweep()
    assert broker.told == [one.id] * 2


def test_an_effect_in_the_database_and_its_mark_are_one() -> None:
    one = entry(n=7)
    assert carry_out(one.id, {"k": Effect(mail)})
    assert not carry_out(one.id, {"k": Effect(mail)})
    assert [each.subject for each in Mail.objects.all()] == ["7"]
    assert fresh(one).done_at is not None


def test_a_failure_undoes_what_was_half_done_and_is_tried_again_later() -> None:
    one = entry()
    before = timezone.now()
    assert not carry_out(one.id, {"k": Effect(fail)})
    left = fresh(one)
    assert not Mail.objects.exists()
    assert (left.attempts, left.done_at, left.last_error) == (1, None, "the other side is away")
    assert left.due_at >= before + timedelta(seconds=outbox.FIRST_RETRY_S)
    assert not carry_out(one.id, {"k": Effect(mail)}), "it is not due yet"


def test_an_error_that_is_not_ours_is_noted_by_its_kind_only() -> None:
    one = entry()
    carry_out(one.id, {"k": Effect(Calls(ValueError("secret text")))})
    assert fresh(one).last_error == "ValueError"


def test_an_outside_effect_is_claimed_first_and_marked_after() -> None:
    one, calls = entry(n=1), Calls()
    claimed: list[Any] = []

    def act(ids: dict[str, Any]) -> None:
        claimed.append(fresh(one))
        assert not carry_out(one.id, {"k": Effect(act, is_in_database=False)}), "it is being done"
        calls(ids)

    assert carry_out(one.id, {"k": Effect(act, is_in_database=False, lease_s=60)})
    assert (calls.ids, claimed[0].done_at, claimed[0].attempts) == ([{"n": 1}], None, 1)
    assert claimed[0].due_at > timezone.now() + timedelta(seconds=50)
    assert fresh(one).done_at is not None


def test_a_claim_whose_worker_died_is_taken_again_when_its_lease_is_over() -> None:
    one = entry()
    OutboxEntry.objects.filter(pk=one.pk).update(attempts=1, due_at=timezone.now() - timedelta(seconds=1))
    calls = Calls()
    assert carry_out(one.id, {"k": Effect(calls, is_in_database=False)})
    assert (len(calls.ids), fresh(one).attempts) == (1, 2)


def test_after_enough_attempts_it_is_given_up_until_somebody_asks_again() -> None:
    one, effects = entry(), {"k": Effect(Calls(TryLater("no")), is_in_database=False, max_attempts=2)}
    for _ in range(3):
        OutboxEntry.objects.filter(pk=one.pk).update(due_at=timezone.now())
        carry_out(one.id, effects)
    assert (fresh(one).attempts, fresh(one).given_up_at is not None) == (2, True)
    assert try_again(one.id) and not try_again(one.id)
    assert carry_out(one.id, {"k": Effect(Calls())})


def test_an_unknown_kind_is_kept_not_lost() -> None:
    one = entry("from-a-newer-release")
    assert not carry_out(one.id, EFFECTS)
    assert (fresh(one).done_at, fresh(one).attempts) == (None, 1)


def test_pauses_double_up_to_an_hour() -> None:
    waits = [retry_after_s(attempts) for attempts in (1, 2, 3, 20, 10_000)]
    for wait_s, least_s in zip(waits, (5, 10, 20, 3600, 3600), strict=True):
        assert least_s <= wait_s <= least_s * 1.1


def test_what_is_done_is_forgotten_after_a_week() -> None:
    old, new = entry(), entry()
    OutboxEntry.objects.filter(pk=old.pk).update(done_at=timezone.now() - timedelta(days=8))
    OutboxEntry.objects.filter(pk=new.pk).update(done_at=timezone.now())
    assert outbox.forget_done() == 1
    assert OutboxEntry.objects.get() == new


@pytest.mark.django_db(transaction=True)
def test_many_workers_that_are_told_the_same_do_it_once() -> None:
    entries = [entry(n=number) for number in range(10)]

    def work() -> None:
        try:
            for one in entries:
                carry_out(one.id, {"k": Effect(mail)})
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(each.subject) for each in Mail.objects.all()) == list(range(10))

import itertools
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, DataError, IntegrityError, connection

from billing.errors import UsageRefused
from billing.models import UsageRecord
from billing.services.ledger import UsageDraft, record_usage
from tests.inference.gateway.usage_drafts import TENANT_ID, draft

pytestmark = pytest.mark.django_db


def records() -> dict[str, UsageRecord]:
    return {record.request_id: record for record in UsageRecord.objects.all()}


def test_a_record_has_its_full_shape() -> None:
    full: dict[str, Any] = {
        "member_id": 7,
        "version": "v3",
        "pool": "m-pool",
        "replica": "rep-1",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 20,
        "usage_source": "engine",
        "queue_ms": 5,
        "ttft_ms": 90,
        "total_ms": 1000,
        "finish_reason": "stop",
        "attempts": 2,
        "gateway": "g1",
        "journal_sequence": 12,
    }
    assert record_usage(drafts=[draft("r1", "done", **full)]) == 1
    record = records()["r1"]
    assert {name: getattr(record, name) for name in full} == full
    assert str(record.tenant_id) == TENANT_ID
    assert record.started_at == datetime.fromtimestamp(1_800_000_000, UTC)
    assert record.ended_at == datetime.fromtimestamp(1_800_000_001, UTC)
    assert record.amount_picos is None


def test_a_request_is_recorded_once_and_what_is_there_stays() -> None:
    record_usage(drafts=[draft("r1", "done", prompt_tokens=10)])
    record_usage(drafts=[draft("r1", "engine_error", prompt_tokens=99), draft("r2", "done")])
    assert {name: record.end_state for name, record in records().items()} == {"r1": "done", "r2": "done"}
    assert records()["r1"].prompt_tokens == 10


def test_a_final_record_takes_the_place_of_gateway_lost() -> None:
    record_usage(drafts=[draft("r1"), draft("r2")])
    record_usage(drafts=[draft("r1", "done", completion_tokens=5, ttft_ms=3)])
    record = records()["r1"]
    assert (record.end_state, record.completion_tokens, record.ttft_ms) == ("done", 5, 3)
    assert records()["r2"].end_state == "gateway_lost"


def test_gateway_lost_never_takes_the_place_of_a_final_record() -> None:
    record_usage(drafts=[draft("r1", "done", completion_tokens=5)])
    record_usage(drafts=[draft("r1")])
    assert records()["r1"].end_state == "done"


@pytest.mark.parametrize("ends", [("gateway_lost", "done"), ("done", "gateway_lost")])
def test_both_in_one_batch_give_the_final_one(ends: tuple[str, str]) -> None:
    record_usage(drafts=[draft("r1", end) for end in ends])
    assert records()["r1"].end_state == "done"


def test_a_second_final_record_does_not_replace_the_one_that_replaced_gateway_lost() -> None:
    for end in ("gateway_lost", "done", "engine_died"):
        record_usage(drafts=[draft("r1", end)])
    assert records()["r1"].end_state == "done"


@pytest.mark.parametrize(
    "bad",
    [{"tenant_id": "not-a-uuid"}, {"prompt_tokens": -1}, {"completion_tokens": 2**70}, {"started_at_s": 1e20}],
    ids=["tenant", "negative", "too_large", "no_date"],
)
@pytest.mark.django_db(transaction=True)
def test_a_record_that_breaks_a_rule_is_refused_with_its_whole_batch(bad: dict[str, Any]) -> None:
    with pytest.raises((UsageRefused, ValidationError, DataError, IntegrityError, OverflowError, ValueError)):
        record_usage(drafts=[draft("r1", "done"), draft("r2", "done", **bad)])
    assert records() == {}


def test_text_that_clients_and_engines_write_is_cut_to_fit() -> None:
    long: UsageDraft = draft("r1", "done", model="m\0" * 500, route="/" * 100, finish_reason="x" * 100)
    record_usage(drafts=[long])
    record = records()["r1"]
    assert (len(record.model), len(record.route), len(record.finish_reason)) == (200, 64, 32)
    assert "\0" not in record.model


@pytest.mark.django_db(transaction=True)
def test_two_who_write_the_same_requests_at_once_leave_one_record_each() -> None:
    errors: list[Exception] = []

    def write(order: int) -> None:
        try:
            for start in range(0, 200, 20):
                ids = list(range(start, start + 20))[::order]
                record_usage(drafts=[draft(f"r{number}", "done" if order > 0 else "gateway_lost") for number in ids])
        except DatabaseError as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(order,)) for order in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert len(records()) == 200
    assert {record.end_state for record in records().values()} == {"done"}


LOST = [("gateway_lost", "none", 0), ("gateway_lost", "partial", 7), ("done", "engine", 9)]


@pytest.mark.parametrize("order", list(itertools.permutations(LOST)))
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_what_knows_more_takes_the_place_of_gateway_lost_in_whatever_order_they_come(
    order: tuple[tuple[str, str, int], ...], in_one_batch: bool
) -> None:
    for number in (2, 3):
        known = [each for each in order if each in LOST[:number]]
        drafts = [draft(f"r{number}", end, usage_source=how, completion_tokens=made) for end, how, made in known]
        for batch in [drafts] if in_one_batch else [[each] for each in drafts]:
            record_usage(drafts=batch)
        record = records()[f"r{number}"]
        assert (record.end_state, record.usage_source, record.completion_tokens) == LOST[number - 1]


def test_of_two_that_know_the_first_stays() -> None:
    for made in (7, 8):
        record_usage(drafts=[draft("r1", usage_source="partial", completion_tokens=made)])
    assert records()["r1"].completion_tokens == 7

"""A lost gateway's requests: settled by what it had last told, unless its journal says better; a final record always wins."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from billing.models import UsageRecord
from billing.services.ledger import UsageDraft, record_usage
from headway.clock import FakeClock
from inference.dispatch.lost_records import LostRecords
from inference.gateway.drain import LedgerAway, LedgerWriter
from inference.policy.decisions import PICOS_A_MICRO, Ending, TokenPrice, Usage
from tests.fakes.gateway import ACME
from tests.inference.dispatch.cell import Cell, Gateway, terms, until
from tests.inference.gateway.usage_drafts import MemoryLedger, draft

PRICE = TokenPrice(input_picos=5_000_000, output_picos=2_000_000)


class Kept:
    """What a dispatcher would write, as a RecordKeeper."""

    def __init__(self) -> None:
        self.drafts: dict[str, list[UsageDraft]] = {}
        self.written: dict[str, Callable[[], None]] = {}
        self.back: list[str] = []

    def keep(self, gateway: str, drafts: Sequence[UsageDraft], on_written: Callable[[], None]) -> None:
        self.drafts[gateway], self.written[gateway] = list(drafts), on_written

    def came_back(self, gateway: str) -> None:
        self.back.append(gateway)


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    made = Cell(tmp_path, terms(monthly_budget=10**9), slots=10)
    yield made
    await made.close()


async def serve(cell: Cell, epoch: int = 1, **options: Any) -> Kept:
    await cell.serve(epoch, **options)
    cell.server.records = kept = Kept()
    return kept


async def begun(cell: Cell, gateway: Gateway, name: str, made: int) -> dict[str, int]:
    """It runs, and has made so many tokens; the number may be changed."""
    tokens = {"made": made}
    grant = await gateway.dispatcher.submit(cell.ask(name, price=PRICE))
    told: dict[str, Any] = {
        "gateway": gateway.link.gateway,
        "tenant_id": ACME,
        "key_id": "k1",
        "price_version": "3",
        "prompt_tokens": 10,
    }
    grant.num_tokens = lambda: tokens["made"]
    grant.draft = lambda: draft(name, completion_tokens=tokens["made"], usage_source="partial", **told)
    return tokens


async def heard(cell: Cell, gateway: Gateway) -> None:
    """What was said so far has arrived."""
    gateway.dispatcher.report_progress()
    await gateway.dispatcher.rates(ACME, "k1", "m")


async def test_open_requests_are_settled_by_the_last_report_and_ended_ones_by_their_record(cell: Cell) -> None:
    kept = await serve(cell)
    gateway = await cell.gateway("g")
    tokens = await begun(cell, gateway, "r1", 3)
    await begun(cell, gateway, "r2", 0)
    await begun(cell, gateway, "r3", 4)
    await heard(cell, gateway)
    tokens["made"] = 8
    gateway.dispatcher.settle("r3", Ending.WELL, Usage(10, 0, 5, 60 * PICOS_A_MICRO), draft("r3", "done", completion_tokens=5))
    await heard(cell, gateway)
    gateway.die()
    await until(lambda: "g" in kept.drafts)
    assert {
        (each.request_id, each.end_state, each.usage_source, each.prompt_tokens, each.completion_tokens, each.amount_picos)
        for each in kept.drafts["g"]
    } == {("r1", "gateway_lost", "partial", 10, 8, 16 * PICOS_A_MICRO), ("r3", "done", "none", 0, 5, None)}
    snapshot = cell.host.snapshot()
    assert (snapshot.in_flight, snapshot.limits.open) == (0, 0)
    assert snapshot.limits.unacknowledged_picos == (60 + 16) * PICOS_A_MICRO, "as the ledger will have it"
    kept.written["g"]()
    await until(lambda: cell.host.snapshot().limits.unacknowledged_picos == 60 * PICOS_A_MICRO)


async def test_a_record_is_told_once_and_then_only_how_far_it_is(cell: Cell) -> None:
    await serve(cell)
    gateway = await cell.gateway("g")
    tokens = await begun(cell, gateway, "r1", 0)
    asked = 0
    told = gateway.dispatcher.running["r1"].draft
    assert told is not None

    def count() -> UsageDraft:
        nonlocal asked
        asked += 1
        return told()

    gateway.dispatcher.running["r1"].draft = count
    for made in (0, 0, 1, 2, 3):
        tokens["made"] = made
        await heard(cell, gateway)
    assert asked == 1
    assert cell.host.brain.usage_so_far("r1").completion_tokens == 3


async def test_what_the_ledger_has_is_kept_no_longer(cell: Cell) -> None:
    kept = await serve(cell)
    gateway = await cell.gateway("g")
    for name in ("r1", "r2"):
        await begun(cell, gateway, name, 1)
        gateway.dispatcher.settle(name, Ending.WELL, Usage(10, 0, 5, 60 * PICOS_A_MICRO), draft(name, "done"))
    gateway.link.acknowledged(["r1"])
    await heard(cell, gateway)
    gateway.die()
    await until(lambda: "g" in kept.drafts)
    assert [each.request_id for each in kept.drafts["g"]] == ["r2"]


async def test_the_next_dispatcher_is_told_all_of_it_again(cell: Cell) -> None:
    first = await serve(cell)
    gateway = await cell.gateway("g")
    await begun(cell, gateway, "r1", 3)
    await begun(cell, gateway, "r2", 1)
    gateway.dispatcher.settle("r2", Ending.WELL, Usage(10, 0, 5, 60 * PICOS_A_MICRO), draft("r2", "done"))
    await heard(cell, gateway)
    cell.kill()
    second = await serve(cell, 2, known=("g",))
    await until(lambda: gateway.link.num_attached == 2 and gateway.link.is_open)
    await heard(cell, gateway)
    gateway.die()
    await until(lambda: "g" in second.drafts)
    assert {each.request_id: each.end_state for each in second.drafts["g"]} == {"r1": "gateway_lost", "r2": "done"}
    assert not first.drafts, "a dispatcher that ends loses no gateway"


async def test_one_that_comes_back_is_not_lost(cell: Cell) -> None:
    kept = await serve(cell, tcp=True, freeze_s=0.05)
    gateway = await cell.gateway("g")
    await begun(cell, gateway, "r1", 3)
    await heard(cell, gateway)
    locate, gateway.link._locate = gateway.link._locate, lambda: None
    assert gateway.link._connection is not None
    gateway.link._connection.abandon()
    await until(lambda: "g" in kept.drafts)
    kept.back.clear()
    gateway.link._locate = locate
    await until(lambda: gateway.link.is_open)
    assert kept.back == ["g"] and cell.host.snapshot().in_flight == 1


# The thread that writes


class Writing:
    def __init__(self, folder: Path, wait_s: float = 10.0) -> None:
        self.ledger, self.clock, self.done = MemoryLedger(), FakeClock(), list[str]()
        self.records = LostRecords(LedgerWriter(folder, self.ledger, 10), wait_s=wait_s, now_s=self.clock.monotonic_s)

    def lose(self, gateway: str) -> None:
        self.records.keep(gateway, [draft(f"of-{gateway}")], lambda: self.done.append(gateway))


def test_the_journal_has_its_time_and_then_it_is_written_once(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    writing.lose("a")
    writing.clock.advance(4.0)
    writing.lose("b")
    assert writing.records.write_due() == pytest.approx(6.0)
    writing.clock.advance(6.0)
    assert writing.records.write_due() == pytest.approx(4.0)
    assert (set(writing.ledger.records), writing.done) == ({"of-a"}, ["a"])
    writing.clock.advance(4.0)
    assert writing.records.write_due() is None
    assert writing.done == ["a", "b"]


def test_of_one_that_came_back_nothing_is_written(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    writing.lose("a")
    writing.records.came_back("a")
    writing.clock.advance(60.0)
    assert writing.records.write_due() is None
    assert not writing.ledger.records and not writing.done


def test_with_the_ledger_away_it_is_kept_and_tried_again(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    writing.lose("a")
    writing.clock.advance(10.0)
    writing.ledger.is_away = True
    with pytest.raises(LedgerAway):
        writing.records.write_due()
    assert not writing.done
    writing.ledger.is_away = False
    writing.records.write_due()
    assert writing.done == ["a"]


async def test_a_thread_writes_what_is_due_and_at_its_end_the_rest(tmp_path: Path) -> None:
    soon = Writing(tmp_path, wait_s=0.0)
    soon.records.start()
    soon.lose("a")
    await until(lambda: soon.done == ["a"])
    await asyncio.to_thread(soon.records.stop)
    late = Writing(tmp_path)
    late.records.start()
    late.lose("b")
    await asyncio.to_thread(late.records.stop)
    assert late.done == ["b"]


@pytest.mark.django_db
@pytest.mark.parametrize("journal_first", [True, False])
@pytest.mark.parametrize("says", ["lost", "done"])
def test_against_a_real_ledger_the_better_record_stays(tmp_path: Path, journal_first: bool, says: str) -> None:
    told = draft("r1", usage_source="partial", completion_tokens=8)
    journal = draft("r1") if says == "lost" else draft("r1", "done", usage_source="engine", completion_tokens=9)
    clock = FakeClock()

    def commit(drafts: list[UsageDraft]) -> None:
        record_usage(drafts=drafts)

    records = LostRecords(LedgerWriter(tmp_path, commit, 10), wait_s=1.0, now_s=clock.monotonic_s)
    records.keep("g", [told], lambda: None)
    clock.advance(1.0)
    for step in (0, 1):
        if (step == 0) == journal_first:
            record_usage(drafts=[journal])
        else:
            records.write_due()
    row = UsageRecord.objects.get(request_id="r1")
    assert (row.end_state, row.completion_tokens) == (("gateway_lost", 8) if says == "lost" else ("done", 9))

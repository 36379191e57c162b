"""Exports: what a file holds, workers that are killed in the middle of one, mails, and what is removed."""

import csv
import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from billing.export_models import Export, ExportState
from billing.models import Adjustment, UsageRecord
from billing.services import export_work
from billing.services.adjustments import adjust_usage
from billing.services.export_work import carry_on
from billing.services.exports import (
    KIND,
    MAX_AT_ONCE,
    cancel_export,
    export_ledger,
    export_requests,
    file_of,
    finished_export,
    folder,
    forget_old_exports,
    part_of,
)
from billing.services.ledger import record_usage
from headway.errors import Conflict, InvalidInput, NotFound
from headway.home import Home
from headway.money import picos_to_usd
from tenants.models import AuditEntry, Tenant
from tenants.services.terms import set_limits
from tests.billing.priced_usage import used
from tests.fakes.migrated import migrated_sqlite
from tests.tenants.cast import tenant_with
from tests.tenants.test_at_once import at_once
from workers.effects import EFFECTS
from workers.errors import TryLater
from workers.models import Mail, OutboxEntry
from workers.services.outbox import carry_out

pytestmark = pytest.mark.django_db

AT = datetime(2026, 11, 10, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = Home(tmp_path)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_work, "ROWS_A_STEP", 3)
    monkeypatch.setattr(export_work, "ROWS_A_PART", 6)


@pytest.fixture
def tenants() -> list[Tenant]:
    made = [tenant_with("acme"), tenant_with("beta")]
    for tenant in made:
        drafts = [
            used(
                tenant,
                f"{tenant.name}-{n}",
                AT + timedelta(minutes=n // 3),
                model=("=cmd()", "tiny")[n % 2],
                amount_picos=None if n == 5 else 10**6 + n,
            )
            for n in range(11)
        ]
        record_usage(drafts=drafts, now=AT + timedelta(days=1))
        adjust_usage(
            tenant_id=tenant.id,
            request_id=f"{tenant.name}-3",
            amount_picos=-7,
            kind="correction",
            reason="=too much",
            actor="test",
            now=AT + timedelta(days=1),
        )
    return made


def ask(month: str = "2026-11", email: str = "fin@example.com") -> Export:
    return export_ledger(month=month, actor="operator:op", email=email)


def work(at_most: int = 50) -> int:
    """As workers do: every entry that is due, until none is. Returns how many there were."""
    done = 0
    while entry := OutboxEntry.objects.filter(kind=KIND, done_at=None, given_up_at=None, due_at__lte=timezone.now()).first():
        carry_out(entry.id, EFFECTS)
        done += 1
        assert done <= at_most, "it ends"
    return done


def rows_of(export: Export) -> list[dict[str, str]]:
    with file_of(export).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("steps")
def test_a_ledgers_file_has_each_record_and_adjustment_of_the_month_once(tenants: list[Tenant]) -> None:
    record_usage(drafts=[used(tenants[0], "december", AT + timedelta(days=30))], now=AT + timedelta(days=31))
    export = ask()
    assert work() > 4, "in parts, so that no entry outlasts its lease"
    export.refresh_from_db()
    assert (export.state, export.rows_done, export.rows_total) == ("ready", 24, 24)
    rows = rows_of(export)
    assert sorted(row["request_id"] for row in rows if row["row"] == "usage") == sorted(
        UsageRecord.objects.filter(billing_month="2026-11").values_list("request_id", flat=True)
    )
    assert [row["reason"] for row in rows if row["row"] == "adjustment"] == ["'=too much"] * 2
    ledger: list[Any] = [*UsageRecord.objects.all(), *Adjustment.objects.all()]
    total = sum(row.amount_picos or 0 for row in ledger)
    assert sum(Decimal(row["amount_usd"] or 0) for row in rows) == Decimal(picos_to_usd(total))
    assert {row["model"] for row in rows} == {"'=cmd()", "tiny"}
    assert {row["tenant"] for row in rows} == {"acme", "beta"}
    assert [row["amount_usd"] for row in rows if row["request_id"] == "acme-5"] == [""]


def test_a_tenants_file_has_its_requests_of_whole_days_of_its_zone_and_nobody_elses(tenants: list[Tenant]) -> None:
    acme = tenants[0]
    set_limits(tenant=acme, limits={}, time_zone="Asia/Tokyo", actor="test")
    acme.refresh_from_db()
    edge = datetime(2026, 11, 11, 15, tzinfo=UTC)  # midnight in Tokyo
    drafts = [used(acme, name, edge + timedelta(seconds=s)) for name, s in (("last", -1), ("first", 0))]
    record_usage(drafts=drafts, now=edge + timedelta(days=1))
    days: dict[str, Any] = {"first": date(2026, 11, 10), "last": date(2026, 11, 11)}
    export = export_requests(tenant=acme, **days, actor="user:x", email="")
    work()
    rows = rows_of(Export.objects.get(id=export.id))
    wanted = UsageRecord.objects.filter(tenant_id=acme.id).exclude(request_id="first").order_by("ended_at", "id")
    assert [row["request_id"] for row in rows] == list(wanted.values_list("request_id", flat=True))
    assert rows[-1]["ended_at (Asia/Tokyo)"] == "2026-11-11T23:59:59+09:00"
    narrowed = export_requests(tenant=acme, **days, actor="user:x", email="", model="tiny")
    work()
    assert {row["model"] for row in rows_of(narrowed)} == {"tiny"}
    assert not Mail.objects.exists(), "who has no address is not told"


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("dies_at", range(1, 12))
def test_a_worker_that_dies_anywhere_leaves_a_file_that_the_next_makes_whole(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    """It dies at its n-th write or note: before it, and with half of what it wrote in the file."""
    whole = ask(email="")
    work()
    export, calls = ask(), 0

    def dying(real: Callable[..., Any], *, torn: bool) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == dies_at:
                if torn:
                    arguments[0].write(b"half of a li")
                raise KeyboardInterrupt
            return real(*arguments)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(export_work, "_append", dying(export_work._append, torn=True))
        patched.setattr(export_work, "_note", dying(export_work._note, torn=False))
        with pytest.raises(KeyboardInterrupt):
            work()
    assert not Mail.objects.exists()
    OutboxEntry.objects.update(due_at=timezone.now())  # its lease is over
    work()
    assert file_of(export).read_bytes() == file_of(whole).read_bytes()
    export.refresh_from_db()
    assert (export.state, export.rows_done) == ("ready", 24)
    assert [mail.to for mail in Mail.objects.all()] == ["fin@example.com"]


@pytest.mark.usefixtures("steps")
def test_a_worker_that_dies_between_the_whole_file_and_the_mail_mails_later_and_once(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    export = ask()

    def die(_export: Export) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(export_work, "_finish", die)
        with pytest.raises(KeyboardInterrupt):
            work()
    content = file_of(export).read_bytes()
    OutboxEntry.objects.update(due_at=timezone.now())
    work()
    for _ in range(2):
        carry_on({"export": str(export.id)})
    assert Mail.objects.count() == 1
    assert file_of(export).read_bytes() == content


_WORKER = """
import os, signal, sys
import django
django.setup()
from billing.services import export_work
from workers.effects import EFFECTS
from workers.models import OutboxEntry
from workers.services.outbox import carry_out
export_work.ROWS_A_STEP = 2
real, notes = export_work._note, 0
def note(*arguments):
    global notes
    notes += 1
    if notes == 4:
        arguments[1].write(b"torn")
        arguments[1].flush()
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments)
export_work._note = note
carry_out(OutboxEntry.objects.get().id, EFFECTS)
"""


def test_a_real_worker_is_killed_in_the_middle_and_another_goes_on(tmp_path: Path) -> None:
    """Processes of their own, on a database of their own."""
    environment = os.environ | {"HEADWAY_HOME": str(tmp_path / "home"), "DJANGO_SETTINGS_MODULE": "headway.settings"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    environment.pop("DATABASE_URL", None)
    migrated_sqlite(tmp_path / "home")

    def run(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)

    setup = """
import django
django.setup()
from datetime import UTC, datetime
from tests.tenants.cast import tenant_with
from tests.tenants.test_at_once import at_once
from tests.billing.priced_usage import used
from billing.services.ledger import record_usage
from billing.services.exports import export_ledger
at = datetime(2026, 11, 10, tzinfo=UTC)
tenant = tenant_with("acme")
record_usage(drafts=[used(tenant, f"r{n}", at) for n in range(9)], now=at)
export_ledger(month="2026-11", actor="operator:op", email="fin@example.com")
"""
    made = run(setup)
    assert made.returncode == 0, made.stderr
    killed = run(_WORKER)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    look = """
import django
django.setup()
from django.utils import timezone
from billing.export_models import Export
from billing.services.exports import file_of
from workers.effects import EFFECTS
from workers.models import Mail, OutboxEntry
from workers.services.outbox import carry_out
before = Export.objects.get()
OutboxEntry.objects.update(due_at=timezone.now())
carry_out(OutboxEntry.objects.get(kind="export").id, EFFECTS)
after = Export.objects.get()
lines = file_of(after).read_text().splitlines()
print(before.state, before.rows_done, after.state, after.rows_done, len(lines), len(set(lines)), Mail.objects.count())
"""
    found = run(look)
    assert found.stdout.split() == ["running", "4", "ready", "9", "10", "10", "1"], found.stderr


@pytest.mark.usefixtures("steps")
def test_a_file_that_is_gone_is_begun_anew(tenants: list[Tenant]) -> None:
    export = ask()
    carry_on({"export": str(export.id)})
    export.refresh_from_db()
    assert export.rows_done == 6
    part_of(export).unlink()
    work()
    assert len(rows_of(export)) == 24


def test_two_workers_never_write_one_file(tenants: list[Tenant]) -> None:
    export = ask()
    with part_of(export).open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TryLater):
            carry_on({"export": str(export.id)})
        export.refresh_from_db()
        assert (export.state, export.rows_done) == ("running", 0)
    work()
    assert len(rows_of(export)) == 24


def test_a_disk_that_is_full_fails_it_in_the_end_with_the_reason(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    export = ask()

    def full(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(export_work, "_append", full)
        for _ in range(export_work.MAX_STARTS):
            with pytest.raises(TryLater):
                carry_on({"export": str(export.id)})
        carry_on({"export": str(export.id)})
    export.refresh_from_db()
    assert export.state == ExportState.FAILED and "No space left" in export.reason
    assert "could not be made" in Mail.objects.get().subject
    carry_on({"export": str(export.id)})
    export.refresh_from_db()
    assert export.state == ExportState.FAILED, "what failed stays so"


def test_nobody_else_may_read_the_file_and_the_mail_has_a_link_and_no_data(tenants: list[Tenant]) -> None:
    export = ask()
    work()
    assert stat.S_IMODE(file_of(export).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder().stat().st_mode) == 0o700
    mail = Mail.objects.get()
    assert f"{settings.SITE_URL}/operator/exports/" in mail.text and str(export.id) not in mail.text
    with pytest.raises(NotFound):
        finished_export(export.id, tenant_id=tenants[0].id)
    entry = AuditEntry.objects.get(action="export.ask")
    assert (entry.actor, entry.target) == ("operator:op", str(export.id))


def test_old_files_go_and_so_does_what_nobody_knows(tenants: list[Tenant]) -> None:
    old, new = ask(), ask(month="2026-10")
    work()
    (folder() / "stranger.part").write_text("x")
    Export.objects.filter(id=old.id).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert forget_old_exports() == 1
    assert sorted(path.name for path in folder().iterdir()) == [f"{new.id}.csv"]
    with pytest.raises(NotFound):
        finished_export(old.id, tenant_id=None)
    assert finished_export(new.id, tenant_id=None).id == new.id
    assert forget_old_exports() == 0
    assert forget_old_exports(now=timezone.now() + timedelta(days=98)) == 1
    assert not Export.objects.filter(id=old.id).exists()


def test_what_is_being_made_is_not_removed(tenants: list[Tenant]) -> None:
    export = ask()
    part_of(export).write_bytes(b"")
    assert forget_old_exports(now=timezone.now() + timedelta(days=30)) == 0
    assert part_of(export).exists()


@pytest.mark.parametrize("month", ["", "2026-13", "26-11", "2026-11-01", "2026-1\u0661"])
def test_a_month_that_is_none_is_refused(month: str) -> None:
    with pytest.raises(InvalidInput):
        ask(month=month)
    assert not Export.objects.exists() and not OutboxEntry.objects.exists()


def test_so_many_at_once_and_days_in_order(tenants: list[Tenant]) -> None:
    acme, beta = tenants
    days: dict[str, Any] = {"first": date(2026, 11, 1), "last": date(2026, 11, 2), "actor": "user:x", "email": ""}
    for _ in range(MAX_AT_ONCE):
        export_requests(tenant=acme, **days)
    with pytest.raises(Conflict):
        export_requests(tenant=acme, **days)
    export_requests(tenant=beta, **days)
    for wrong in ({"last": date(2026, 10, 31)}, {"last": date(2028, 1, 1)}):
        with pytest.raises(InvalidInput):
            export_requests(tenant=beta, **(days | wrong))
    assert Export.objects.count() == MAX_AT_ONCE + 1


@pytest.mark.usefixtures("steps")
def test_one_that_is_cancelled_is_made_no_further_and_leaves_no_file_nor_mail(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    export = ask()
    carry_on({"export": str(export.id)})
    assert part_of(export).exists()
    with monkeypatch.context() as patched:
        append = export_work._append

        def cancelled_meanwhile(file: Any, rows: list[Any]) -> None:
            append(file, rows)
            cancel_export(export.id, tenant_id=None, actor="operator:op")

        patched.setattr(export_work, "_append", cancelled_meanwhile)
        with pytest.raises(TryLater):
            carry_on({"export": str(export.id)})
    assert cancel_export(export.id, tenant_id=None, actor="operator:op").state == "cancelled", "again"
    work()
    export.refresh_from_db()
    assert (export.state, export.rows_done) == ("cancelled", 6)
    assert not part_of(export).exists() and not file_of(export).exists() and not Mail.objects.exists()
    assert AuditEntry.objects.filter(action="export.cancel", target=str(export.id)).count() == 1
    assert forget_old_exports() == 1
    export.refresh_from_db()
    assert export.state == "expired"


def test_what_is_over_or_of_others_is_not_cancelled_and_a_cancelled_one_makes_room(tenants: list[Tenant]) -> None:
    exports = [ask() for _ in range(MAX_AT_ONCE)]
    with pytest.raises(Conflict):
        ask()
    with pytest.raises(NotFound):
        cancel_export(exports[0].id, tenant_id=tenants[0].id, actor="user:x")
    cancel_export(exports[0].id, tenant_id=None, actor="operator:op")
    ask()
    work()
    with pytest.raises(Conflict):
        cancel_export(exports[1].id, tenant_id=None, actor="operator:op")
    assert file_of(exports[1]).exists()


@pytest.mark.django_db(transaction=True)
def test_of_many_who_ask_at_once_three_are_made() -> None:
    acme = tenant_with("acme")
    days: dict[str, Any] = {"first": date(2026, 11, 10), "last": date(2026, 11, 11)}
    of_operators = [ask] * (MAX_AT_ONCE + 3)
    of_acme = [lambda: export_requests(tenant=acme, **days, actor="user:x", email="")] * (MAX_AT_ONCE + 2)
    assert at_once(*of_operators, *of_acme) == {"done": 2 * MAX_AT_ONCE, Conflict.__name__: 5}
    assert Export.objects.filter(tenant_id=None).count() == Export.objects.filter(tenant_id=acme.id).count() == MAX_AT_ONCE

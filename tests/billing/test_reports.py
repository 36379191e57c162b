"""Reports are sums of the ledger, whatever the zone, and of a tenant's own calendar what its statement says."""

import importlib
import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext

from billing.models import Adjustment, Grant, GrantUse, MonthSpend, UsageDay, UsageHour, UsageQuarter, UsageRecord
from billing.services.adjustments import adjust_usage
from billing.services.ledger import record_usage
from billing.services.reports import OWN, ReportQuery, credits_of_months, report
from billing.services.statements import draft_statement
from billing.services.usage_series import UsageQuery, aligned, usage_series
from headway.errors import InvalidInput
from headway.months import month_named, whole_months
from tenants.models import Tenant
from tenants.services.terms import set_limits
from tests.billing.priced_usage import LONG_AGO, price, used
from tests.tenants.cast import tenant_with

pytestmark = pytest.mark.django_db

ZONES = {"acme": "America/Los_Angeles", "beta": "UTC", "chat": "Pacific/Chatham"}
NOVEMBER = (date(2026, 11, 1), date(2026, 12, 1))


@pytest.fixture
def tenants() -> list[Tenant]:
    """With records of some weeks round a month's edge, the edges themselves among them, and an adjustment each."""
    made, chance = [], random.Random(3)
    for name, zone in ZONES.items():
        tenant = tenant_with(name)
        set_limits(tenant=tenant, limits={}, time_zone=zone, actor="test")
        tenant.refresh_from_db()
        edge = datetime(2026, 12, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
        times = [edge - timedelta(microseconds=1), edge, edge - timedelta(hours=11), edge + timedelta(hours=11)]
        times += [edge - timedelta(minutes=chance.randrange(60 * 24 * 40)) for _ in range(20)]
        drafts = [
            used(
                tenant,
                f"{name}-{number}",
                at,
                tokens=(chance.randrange(1, 900), 0, chance.randrange(1, 60)),
                model=chance.choice(["tiny", "big"]),
                version=chance.choice(["v1", "v2"]),
                tier=chance.choice(["standard", "batch"]),
                end_state=chance.choice(["done", "done", "engine_died"]),
                ttft_ms=chance.choice([None, 90, 500, 501, 2000]),
                total_ms=chance.choice([2000, 2400, 9000]),
                amount_picos=chance.randrange(10**9),
            )
            for number, at in enumerate(times)
        ]
        record_usage(drafts=drafts, now=edge)
        adjust_usage(
            tenant_id=tenant.id, request_id=f"{name}-1", amount_picos=77, kind="correction", reason="r", actor="a", now=edge
        )
        made.append(tenant)
    return made


def slowly(query: ReportQuery) -> dict[tuple[date, tuple[str, ...]], Counter[str]]:
    """The ledger added up one by one."""
    own = {tenant.id: tenant.time_zone for tenant in Tenant.objects.all()}
    found: dict[tuple[date, tuple[str, ...]], Counter[str]] = {}
    ledger: list[Any] = [*UsageRecord.objects.all(), *Adjustment.objects.all()]
    for row in ledger:
        at = row.ended_at if isinstance(row, UsageRecord) else row.usage_at
        zone = own[row.tenant_id] if query.time_zone == OWN else query.time_zone
        day = at.astimezone(ZoneInfo(zone)).date()
        if not query.first <= day < query.end:
            continue
        names = {"tenant": str(row.tenant_id), "model": row.model, "version": row.version, "tier": row.tier}
        bucket = day if query.granularity == "day" else day.replace(day=1)
        into = found.setdefault((bucket, tuple(names[name] for name in query.group_by)), Counter())
        into["amount_picos"] += row.amount_picos or 0
        if isinstance(row, UsageRecord):
            into.update({"requests": 1, "errors": int(row.end_state == "engine_died")})
            into.update({name: getattr(row, name) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")})
            if row.ttft_ms is not None:
                into.update({"ttft_count": 1, "ttft_on_target": int(row.ttft_ms <= 500)})
                if row.completion_tokens > 1:
                    gap_ms = (row.total_ms - row.ttft_ms) / (row.completion_tokens - 1)
                    into.update({"gap_count": 1, "gap_on_target": int(gap_ms < 50)})
    return found


@pytest.mark.parametrize("zone", [OWN, "UTC", "Europe/Berlin", "Asia/Kathmandu", "Pacific/Chatham"])
@pytest.mark.parametrize("group_by", [(), ("tenant",), ("model", "version"), ("tier", "tenant", "model")])
@pytest.mark.parametrize("granularity", ["day", "month"])
def test_a_report_is_the_ledgers_sum(tenants: list[Tenant], zone: str, group_by: tuple[str, ...], granularity: str) -> None:
    query = ReportQuery(date(2026, 11, 5), date(2026, 12, 2), zone, granularity, group_by)
    found = {(row.bucket, row.group): row.sums for row in report(query).rows}
    expected = slowly(query)
    assert len(expected) > 1 or (granularity, group_by) == ("month", ())
    assert {key: +sums for key, sums in found.items()} == {key: +sums for key, sums in expected.items()}


def test_filters_leave_out_everything_else(tenants: list[Tenant]) -> None:
    of_beta = report(ReportQuery(*NOVEMBER, group_by=("tenant", "model"), tenant_id=tenants[1].id, model="tiny")).by_group()
    every = report(ReportQuery(*NOVEMBER, group_by=("tenant", "model"))).by_group()
    key = (str(tenants[1].id), "tiny")
    assert list(of_beta) == [key] and of_beta[key] == every[key]


def test_b150_a_month_of_own_calendars_is_what_the_page_the_api_and_the_statement_say(tenants: list[Tenant]) -> None:
    """Records lie at the very edges of the month, in zones on both sides of UTC."""
    told = report(ReportQuery(*NOVEMBER, OWN, "month", ("tenant",))).by_group()
    for tenant in tenants:
        month = month_named("2026-11", tenant.time_zone)
        starts_at, ends_at = (datetime.fromtimestamp(at_s, UTC) for at_s in (month.starts_s, month.ends_s))
        series = usage_series(tenant.id, aligned(UsageQuery(starts_at, ends_at, tenant.time_zone, "day")))
        picos = told[str(tenant.id),]["amount_picos"]
        assert picos > 0
        assert series.totals()["amount_picos"] == picos
        assert MonthSpend.objects.get(tenant_id=tenant.id, month="2026-11", key_id="", model="").amount_picos == picos


def test_b150_a_report_in_the_zone_of_a_tenant_is_its_invoice_to_the_pico_dollar() -> None:
    tenant = tenant_with("acme")
    set_limits(tenant=tenant, limits={}, time_zone="Asia/Kolkata", actor="test")
    tenant.refresh_from_db()
    its_price = price(1, 3, 1, 7)
    edges = [datetime(2026, month, 1, tzinfo=ZoneInfo("Asia/Kolkata")) for month in (11, 12)]
    times = [edge + timedelta(seconds=seconds) for edge in edges for seconds in (-1, 0, 1800)]
    drafts = [used(tenant, f"r{n}", at.astimezone(UTC), tokens=(7, 2, 5), price=its_price) for n, at in enumerate(times)]
    record_usage(drafts=drafts, now=edges[1])
    found = report(ReportQuery(*NOVEMBER, "Asia/Kolkata", "month", tenant_id=tenant.id)).total()
    draft = draft_statement(tenant.id, "2026-11")
    assert found["requests"] == 3
    assert found["amount_picos"] == sum(line.amount_picos or 0 for line in draft.lines) == 3 * (5 * 3 + 2 * 1 + 5 * 7)


def test_a_report_takes_two_queries_however_many_tenants(tenants: list[Tenant]) -> None:
    for zone, at_most in ((OWN, 2), ("UTC", 1)):
        with CaptureQueriesContext(connection) as queries:
            report(ReportQuery(*NOVEMBER, zone, group_by=("tenant", "model", "version", "tier")))
        assert len(queries) <= at_most
        assert not any("billing_usagerecord" in each["sql"] for each in queries)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"time_zone": "Mars/Base"}, "zone"),
        ({"granularity": "hour"}, "granularity"),
        ({"group_by": ("key",)}, "group"),
        ({"group_by": ("model", "model")}, "group"),
        ({"end": date(2026, 11, 1)}, "to"),
        ({"end": date(2029, 11, 1)}, "to"),
        ({"first": date(1, 1, 1), "end": date(1, 1, 2)}, "from"),
    ],
)
def test_what_cannot_be_reported_is_refused_by_name(wrong: dict[str, object], param: str) -> None:
    asked = {"first": date(2026, 11, 1), "end": date(2026, 12, 1)} | wrong
    with pytest.raises(InvalidInput) as refused:
        report(ReportQuery(**asked))  # type: ignore[arg-type]
    assert refused.value.param == param


def test_months_that_a_range_cuts_are_not_whole() -> None:
    assert whole_months(date(2026, 10, 31), date(2027, 1, 2)) == ["2026-11", "2026-12"]
    assert whole_months(date(2026, 11, 1), date(2026, 11, 30)) == []
    assert whole_months(*NOVEMBER) == ["2026-11"]


def test_credits_are_those_of_the_billing_months_and_of_no_other(tenants: list[Tenant]) -> None:
    acme, beta, _ = tenants
    for tenant, month, picos in ((acme, "2026-11", 5), (acme, "2026-12", 9), (beta, "2026-11", 0)):
        grant = Grant.objects.create(
            tenant_id=tenant.id,
            kind="promotion",
            amount_micros=1,
            left_picos=0,
            reason="r",
            created_by="t",
            created_at=LONG_AGO,
        )
        GrantUse.objects.create(grant=grant, billing_month=month, amount_picos=picos)
    assert credits_of_months(["2026-11"]) == {acme.id: 5}
    assert credits_of_months([]) == {}


def test_targets_of_what_was_there_before_they_were_counted_are_filled_in(tenants: list[Tenant]) -> None:
    names = ("ttft_on_target", "gap_count", "gap_on_target")

    def kept() -> list[list[tuple[int, ...]]]:
        return [
            list(model._default_manager.order_by("id").values_list(*names)) for model in (UsageQuarter, UsageHour, UsageDay)
        ]

    before = kept()
    assert any(any(numbers) for numbers in before[0])
    for model in (UsageQuarter, UsageHour, UsageDay):
        model._default_manager.update(**dict.fromkeys(names, 0))
    assert kept() != before
    importlib.import_module("billing.migrations.0020_fill_targets_met").fill(apps, None)
    assert kept() == before

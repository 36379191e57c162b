"""The request log, the limits, the audit log and the settings as their pages show them."""

import csv
import io
import json
import shlex
from typing import Any

import pytest
from django.test import Client

from billing.models import UsageRecord
from dashboard import audit_log
from dashboard.limit_page import limit_page
from dashboard.request_log import curl_of
from tenants.models import AuditEntry, LimitKind
from tenants.services.alert_mails import alert_roles
from tenants.services.audit import record_audit
from tenants.services.terms import set_limits
from tests.dashboard.furnished import MODELS, REQUEST_ID, Furnished, furnish
from tests.tenants.cast import full_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Furnished:
    return furnish(num_requests=5)


def client_of(acme: Furnished, role: str = "owner") -> Client:
    client = Client()
    client.force_login(acme.people[role])
    return client


# A request as curl


def record(**given: Any) -> dict[str, Any]:
    usual = {"route": "/v1/chat/completions", "model": "m", "finish_reason": "stop", "completion_tokens": 9, "tier": "standard"}
    return {**usual, **given}


def sent(record: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    words = shlex.split(curl_of(record, "https://api.example/v1").replace("\\\n", " "))
    assert words[0] == "curl" and words[2:4] == ["-H", "Authorization: Bearer $HEADWAY_API_KEY"]
    return words[1], json.loads(words[words.index("-d") + 1])


def test_a_request_as_curl_has_its_route_and_model_and_a_placeholder_for_what_is_not_stored() -> None:
    address, body = sent(record())
    assert address == "https://api.example/v1/chat/completions"
    assert body == {"model": "m", "messages": [{"role": "user", "content": "Your prompt"}]}
    assert sent(record(route="/v1/completions"))[1] == {"model": "m", "prompt": "Your prompt"}
    assert sent(record(route="WS /v1/generate"))[0] == "https://api.example/v1/generate"


def test_what_is_known_of_its_parameters_is_in_it() -> None:
    body = sent(record(finish_reason="length", tier="batch", model="it's"))[1]
    assert (body["max_tokens"], body["priority"], body["model"]) == (9, "batch", "it's")


@pytest.mark.parametrize("given", [{"model": ""}, {"route": "unknown"}])
def test_a_request_of_no_model_has_none(given: dict[str, str]) -> None:
    assert curl_of(record(**given), "https://api.example/v1") == ""


def test_a_receipt_leads_to_the_playground_with_its_model(acme: Furnished) -> None:
    page = client_of(acme).get(f"/t/acme/requests/{REQUEST_ID}/").content.decode()
    used = UsageRecord.objects.get(request_id=REQUEST_ID).model
    assert f"/t/acme/playground/?model={used}" in page
    assert "Copy as curl" in page and "never stored" in page
    opened = client_of(acme).get(f"/t/acme/playground/?model={MODELS[1]}").content.decode()
    assert f'<option value="{MODELS[1]}" selected>' in opened
    assert "Open in playground" not in client_of(acme, "viewer").get(f"/t/acme/requests/{REQUEST_ID}/").content.decode()


# Limits


def test_limits_of_single_models_are_shown_with_their_bar_and_the_answer_at_them(acme: Furnished) -> None:
    set_limits(tenant=acme.tenant, limits={LimitKind.REQUESTS: 12}, model=MODELS[1], actor="test")
    shown = limit_page(acme.tenant)
    assert [group.title for group in shown.groups] == [
        "In force for the whole organisation",
        "Of single models",
        "Of single keys",
    ]
    assert [meter.whose for meter in shown.groups[1].meters] == [f"Model {name}" for name in sorted(MODELS)]
    page = client_of(acme).get("/t/acme/limits/").content.decode()
    for model, kind in ((MODELS[0], "concurrent_requests"), (MODELS[1], "requests_per_minute")):
        assert f'data-live-meter="model/{acme.tenant.id}/{model}/{kind}"' in page
    assert "The limit of 12 requests a minute for your organisation on this model is reached" in page
    assert "HTTP/1.1 429 Too Many Requests" in shown.model_error


def test_without_a_limit_of_a_model_that_refuses_no_answer_of_one_is_shown(acme: Furnished) -> None:
    assert limit_page(acme.tenant).model_error == ""


# The audit log as a file


def rows_of(client: Client, query: str = "") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(client.get(f"/t/acme/audit.csv{query}").getvalue().decode())))


def test_the_audit_log_is_exported_as_it_is_filtered_newest_first(acme: Furnished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "ROWS_A_READ", 3)
    rows = rows_of(client_of(acme))
    entries = list(AuditEntry.objects.filter(tenant=acme.tenant).order_by("-id"))
    assert [(row["action"], row["target"]) for row in rows] == [(entry.action, entry.target) for entry in entries]
    issued = rows_of(client_of(acme), "?action=key.issue&q=owner")
    assert issued and {row["action"] for row in issued} == {"key.issue"}
    assert len(issued) < len(rows)
    assert json.loads(issued[0]["after"])["name"]


def test_the_audit_file_has_nothing_of_others_and_runs_nothing_in_a_spreadsheet(acme: Furnished) -> None:
    full_tenant("globex")
    record_audit(actor='=HYPERLINK("http://evil.example")', action="test.formula", target="+1", tenant=acme.tenant)
    rows = rows_of(client_of(acme))
    assert rows[0]["actor"].startswith("'=") and rows[0]["target"] == "'+1"
    assert "globex" not in str(rows)
    assert client_of(acme, "developer").get("/t/acme/audit.csv").status_code == 403


# Who is told by mail


def test_who_is_told_by_mail_is_set_on_the_settings_page(acme: Furnished) -> None:
    client = client_of(acme)
    page = client.get("/t/acme/settings/").content.decode()
    assert page.count('value="owner"') == len(alert_roles(acme.tenant)), "one box a kind"
    client.post("/t/acme/settings/alerts/", {"key.expiring": ["admin", "developer"], "model.retiring": ["owner"]})
    assert alert_roles(acme.tenant) == {
        "key.expiring": ["admin", "developer"],
        "budget.reached": [],
        "model.retiring": ["owner"],
        "balance.low": [],
    }
    refused = client.post("/t/acme/settings/alerts/", {"key.expiring": "emperor"}, follow=True).content.decode()
    assert "Nothing was changed" in refused
    assert alert_roles(acme.tenant)["key.expiring"] == ["admin", "developer"]
    assert client_of(acme, "billing").post("/t/acme/settings/alerts/", {}).status_code == 403
    assert "nobody" in client_of(acme, "viewer").get("/t/acme/settings/").content.decode()
